from hashlib import sha256
from random import Random

import numpy as np
import pytest

from chaplain.errors import Malformed
from chaplain.proofs import groups, merkle
from chaplain.proofs.groups import PackGroups, decode_group, group_bounds


def slow_bounds(lengths):
    """The rule, message by message."""
    bounds = [0]
    messages = octets = 0
    for index, length in enumerate(lengths):
        if messages and (messages == 16 or octets + length > 1024):
            bounds.append(index)
            messages = octets = 0
        messages += 1
        octets += length
    return [*bounds, len(lengths)] if lengths else [0]


@pytest.mark.parametrize(
    ("lengths", "bounds"),
    [
        ([], [0]),
        ([0], [0, 1]),
        ([5_000_000], [0, 1]),
        ([0] * 33, [0, 16, 32, 33]),
        ([64] * 17, [0, 16, 17]),
        ([65] * 17, [0, 15, 17]),
        ([100] * 25, [0, 10, 20, 25]),
        ([1024, 0, 1], [0, 2, 3]),
        ([1025, 1], [0, 1, 2]),
        ([1000, 25, 999, 2000, 3], [0, 1, 3, 4, 5]),
    ],
)
def test_groups_end_at_16_messages_or_one_kib(lengths, bounds):
    assert group_bounds(lengths) == bounds
    assert slow_bounds(lengths) == bounds


def test_groups_of_random_lengths_follow_the_rule():
    draw = Random(3)
    for _ in range(300):
        most = draw.choice([1, 64, 65, 200, 1024, 1025, 5000])
        lengths = [draw.randrange(most + 1) for _ in range(draw.randrange(1, 120))]
        assert group_bounds(lengths) == slow_bounds(lengths)


@pytest.mark.parametrize("at_once", [16, 17, 40])
def test_groups_do_not_depend_on_how_many_sizes_are_added_up_at_once(monkeypatch, at_once):
    monkeypatch.setattr(groups, "BOUNDS_AT_ONCE", at_once)
    draw = Random(at_once)
    for most in (30, 200, 1500):
        lengths = [draw.randrange(most + 1) for _ in range(300)] + [65, 0]
        assert group_bounds(lengths) == slow_bounds(lengths)
        assert group_bounds(np.array(lengths)) == slow_bounds(lengths)


def test_isolated_messages_are_groups_by_themselves():
    assert group_bounds([1, 2, 3], isolated=True) == [0, 1, 2, 3]


def a_pack(draw, count, columns, most=200):
    """Sizes and data in the layout of a pack, and the cells they are made of."""
    cells = []
    for column in range(columns):
        cells.append(
            [None if column and draw.random() < 0.3 else draw.randbytes(draw.randrange(most)) for _ in range(count)]
        )
    sizes = b"".join(
        (groups.ABSENT if cell is None else len(cell)).to_bytes(4, "little") for column in cells for cell in column
    )
    return sizes, b"".join(cell for column in cells for cell in column if cell), cells


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 100])
def test_every_group_is_proven_and_decoded(columns, count):
    draw = Random(count * 10 + columns)
    sizes, data, cells = a_pack(draw, count, columns)
    padded = data + bytes(-len(data) % 8)
    made = PackGroups(sizes, padded, count, columns)
    seen = []
    for group in range(len(made)):
        octets = made.octets(group)
        assert merkle.is_included(merkle.leaf_hash(octets), group, len(made), made.root(), made.path(group))
        found = decode_group(octets, columns > 1, columns > 2)
        assert found.first == len(seen)
        seen += found.values
        last = found.first + len(found.values)
        assert columns < 2 or list(found.keys) == cells[1][found.first : last]
        assert columns < 3 or list(found.headers) == cells[2][found.first : last]
        assert all(made.group_of(message) == group for message in range(found.first, last))
    assert seen == cells[0]
    assert made.hashes() == [merkle.leaf_hash(made.octets(group)) for group in range(len(made))]


def test_octets_of_a_group_are_its_place_its_sizes_and_its_cells():
    sizes = b"".join(size.to_bytes(4, "little") for size in (2, 1, 0, groups.ABSENT))
    made = PackGroups(sizes, b"abc", 2, 2)
    assert made.octets(0) == bytes(4) + b"\2\0\0\0" + sizes + b"abc"
    assert made.root() == sha256(b"\0" + made.octets(0)).digest()


def test_isolated_pack_shows_one_message():
    made = PackGroups(b"\1\0\0\0\1\0\0\0", b"ab", 2, 1, isolated=True)
    assert decode_group(made.octets(1), False, False) == groups.MessageGroup(1, (b"b",), None, None)


def test_short_way_for_one_message_agrees():
    for value in (b"", b"a", b"x" * 5000):
        size = len(value).to_bytes(4, "little")
        assert groups.small_root(len(value), value) == PackGroups(size, value + b"\0" * 5, 1, 1).root()


def test_every_octet_of_sizes_and_data_changes_the_root():
    draw = Random(9)
    sizes, data, _ = a_pack(draw, 20, 3, 30)
    root = PackGroups(sizes, data, 20, 3).root()
    for at in range(len(sizes) + len(data)):
        changed = bytearray(sizes + data)
        changed[at] ^= 1 << draw.randrange(8)
        try:
            assert PackGroups(bytes(changed[: len(sizes)]), bytes(changed[len(sizes) :]), 20, 3).root() != root
        except Malformed as error:
            assert "sizes add up" in str(error)  # noqa: PT017  most changes of a size are refused, the others change the root


def test_digest_covers_head_requests_and_root():
    head, root = bytes(range(32)), bytes(32)
    label = b"chaplain pack 2\0"
    assert groups.pack_digest(head, b"", root) == sha256(label + head + root).digest()
    requests = sha256(b"\1\0\0\0").digest()
    assert groups.pack_digest(head, b"\1\0\0\0", root) == sha256(label + head + requests + root).digest()
    assert groups.pack_digest_from(head, requests, root) == groups.pack_digest(head, b"\1\0\0\0", root)


def test_tables_that_do_not_fit_are_refused():
    for sizes, count, columns in ((b"", 0, 1), (bytes(8), 1, 1), (bytes(4), 1, 4), (bytes(4), 2, 1), (bytes(3), 1, 1)):
        with pytest.raises(Malformed, match="octets of sizes"):
            PackGroups(sizes, b"", count, columns)
    with pytest.raises(Malformed, match="add up to 4294967295 octets"):
        PackGroups(b"\xff" * 4, b"abc", 1, 1)  # the size of an absent cell is no size of a value


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (b"", "at least 8 octets"),
        (bytes(8), "0 messages"),
        (bytes(4) + b"\x11" + bytes(3 + 17 * 4), "17 messages"),
        (bytes(4) + b"\2" + bytes(3 + 4), "2 messages in 12 octets"),
        (bytes(4) + b"\1\0\0\0" + b"\2\0\0\0" + b"a", "add up to 14 octets"),
        (bytes(4) + b"\1\0\0\0" + b"\0\0\0\0" + b"a", "add up to 12 octets"),
        (bytes(4) + b"\1\0\0\0" + b"\xff" * 4, "add up to"),
        (bytes(4) + b"\2\0\0\0" + b"\0\2\0\0" + b"\1\2\0\0" + bytes(1025), "more than 1024"),
    ],
)
def test_impossible_groups_are_refused(octets, reason):
    with pytest.raises(Malformed, match=reason):
        decode_group(octets, False, False)
