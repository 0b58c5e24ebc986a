"""The digest of a pack: what it covers, and how a message is proven with it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaplain.errors import Malformed
from chaplain.proofs.groups import pack_digest
from chaplain.proofs.merkle import leaf_hash, root_from_inclusion
from chaplain.segment.pack import (
    ISOLATED,
    PACK_HEAD_BYTES,
    Pack,
    decode_pack,
    digest_of,
    encode_pack,
    groups_of,
    read_head,
    stated_digest,
)

cells = st.one_of(st.none(), st.binary(max_size=40))


@st.composite
def packs(draw):
    count = draw(st.integers(1, 40))
    values = tuple(
        draw(st.lists(st.binary(max_size=draw(st.sampled_from([3, 200, 1500]))), min_size=count, max_size=count))
    )
    keys = draw(st.one_of(st.none(), st.lists(cells, min_size=count, max_size=count).map(tuple)))
    requests = draw(st.sampled_from([None, (count,)]))
    slot = draw(st.sampled_from([0, 64]))
    return Pack(3, 7, values, keys, request_counts=requests, signature=bytes(slot), isolated=draw(st.booleans()))


@settings(max_examples=150, deadline=None)
@given(packs())
def test_digest_of_a_pack_is_the_one_that_its_encoder_stated(pack):
    raw = encode_pack(pack)
    assert digest_of(raw) == stated_digest(raw)
    assert decode_pack(raw) == pack


@settings(max_examples=60, deadline=None)
@given(packs(), st.data())
def test_every_group_is_proven_by_its_path(pack, data):
    raw = encode_pack(pack)
    groups = groups_of(raw)
    message = data.draw(st.integers(0, len(pack.values) - 1))
    group = groups.group_of(message)
    root = root_from_inclusion(leaf_hash(groups.octets(group)), group, len(groups), groups.path(group))
    head = read_head(raw, 0)
    table = raw[head.tables_at : head.tables_at + 4 * head.tabled_requests]
    assert pack_digest(raw[:32], table, root) == stated_digest(raw)


@pytest.mark.parametrize("requests", [None, (3, 2)])
def test_every_changed_bit_changes_the_digest_or_is_refused(requests):
    pack = Pack(3, 7, (b"a", b"", b"ccc", b"dd", b"e"), (None, b"k", b"", None, b"x"), request_counts=requests)
    raw = encode_pack(pack)
    head = read_head(raw, 0)
    used = head.data_at + sum(map(len, (*pack.values, *(key or b"" for key in pack.keys))))
    tables_end = head.tables_at + 4 * (head.tabled_requests + 2 * head.count)
    covered = [*range(32), *range(head.tables_at, tables_end), *range(head.data_at, used)]
    for at in covered:
        for bit in range(8):
            changed = bytearray(raw)
            changed[at] ^= 1 << bit
            try:
                found = digest_of(bytes(changed))
            except Malformed:
                continue
            assert found != stated_digest(raw), f"bit {bit} of octet {at} is not covered"


def test_each_message_of_an_isolated_pack_is_a_group():
    values = tuple(b"%d" % number for number in range(50))
    raw = encode_pack(Pack(1, 1, values, isolated=True))
    assert read_head(raw, 0).columns == ISOLATED
    assert [groups_of(raw).octets(number)[12:] for number in range(50)] == list(values)
    plain = encode_pack(Pack(1, 1, values))
    assert len(groups_of(plain)) == 4
    assert stated_digest(raw) != stated_digest(plain)


def test_sizes_beyond_the_pack_have_no_digest():
    raw = bytearray(encode_pack(Pack(1, 1, (b"alpha", b"be"))))
    raw[PACK_HEAD_BYTES + 3] = 1
    with pytest.raises(Malformed, match="add up"):
        digest_of(bytes(raw))
