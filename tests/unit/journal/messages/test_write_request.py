"""Requests: what is a whole pack, and what a signature covers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaplain.errors import Malformed
from chaplain.journal.messages.signing import PackCheck, SignatureType, Wrapping, holds
from chaplain.journal.messages.write_request import (
    _end_of_few,
    _end_of_many,
    check_pack,
    check_stream,
    client_id_of,
    read_heading,
    request_digest,
)
from chaplain.segment.arrow import to_record_batches
from chaplain.segment.layout import octets
from chaplain.segment.pack import ISOLATED_MAX, Pack, decode_pack, digest_of, encode_pack, read_head
from chaplain.segment.record import Kind, Record
from tests.support.execution_stage import ADMIN, BOB, CLUSTER, WRAPPING, pack, sealed_pack

ENTRY = pack(7, 3, (b"a", b"bb", b"ccc"), counts=(1, 2))
SIGNATURE_AT = 64


def check(entry=ENTRY, *, key=ADMIN.key, cluster=CLUSTER, stream="orders", kind=SignatureType.ED25519):
    return holds(PackCheck(kind, key, cluster, stream, entry.raw))


def repaired(raw: bytes) -> bytes:
    """The same octets with the digest that they ought to have."""
    return raw[:32] + digest_of(raw) + raw[64:]


@pytest.mark.parametrize(("count", "accepted"), [(ISOLATED_MAX, True), (ISOLATED_MAX + 1, False)])
def test_isolated_pack_has_a_bounded_number_of_messages(count, accepted):
    raw = encode_pack(Pack(1, 1, (b"",) * count, isolated=True))
    if accepted:
        assert check_pack(raw).count == count
    else:
        with pytest.raises(Malformed, match="an isolated pack has at most 8192 messages, not 8193"):
            check_pack(raw)


def test_heading_contains_lane_ids_and_digest():
    heading = read_heading(ENTRY.raw)
    assert (heading.client_id, heading.first_id, heading.requests, heading.messages) == (7, 3, 2, 3)
    assert heading.last_id == 4
    assert heading.digest == digest_of(ENTRY.raw)
    assert client_id_of(ENTRY.raw) == 7


def test_valid_signature_is_accepted():
    assert check()


@pytest.mark.parametrize(
    "changed",
    [{"key": BOB.key}, {"cluster": "other"}, {"stream": "other"}, {"kind": SignatureType.HMAC_SHA256}, {"kind": 9}],
)
def test_signature_is_invalid_for_another_key_cluster_or_stream(changed):
    assert not check(**changed)


def test_every_flipped_bit_breaks_the_signature():
    for at in range(len(ENTRY.raw)):
        for bit in range(8):
            raw = bytearray(ENTRY.raw)
            raw[at] ^= 1 << bit
            assert not holds(PackCheck(SignatureType.ED25519, ADMIN.key, CLUSTER, "orders", bytes(raw))), (at, bit)


def test_wrong_digest_is_malformed():
    raw = bytearray(ENTRY.raw)
    raw[-8] ^= 1
    with pytest.raises(Malformed, match="digest"):
        check_pack(bytes(raw))
    check_pack(repaired(bytes(raw)))


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [(8, 0, "lane"), (12, 0, "first id"), (12, 0xFFFFFFFF, "first id")],
)
def test_ids_outside_one_to_their_maximum_are_malformed(field, value, what):
    raw = bytearray(ENTRY.raw)
    raw[field : field + 4] = value.to_bytes(4, "little")
    with pytest.raises(Malformed, match=what):
        read_heading(bytes(raw))


def test_tables_that_do_not_add_up_are_malformed():
    raw = encode_pack(Pack(1, 1, (b"abc", b"de"), keys=(None, b"k"), request_counts=(1, 1)))
    tables = np.frombuffer(raw, "<u4", offset=64)[:6]
    assert tables.tolist()[:6] == [1, 1, 3, 2, 0xFFFFFFFF, 1]
    for place, value in ((0, 2), (0, 0), (2, 40), (2, 0xFFFFFFFF), (3, 200), (5, 0xFFFFFFFE), (4, 0)):
        broken = bytearray(raw)
        broken[64 + 4 * place : 68 + 4 * place] = value.to_bytes(4, "little")
        if place == 4:
            check_pack(repaired(bytes(broken)))  # an empty key in place of none is another pack, and a whole one
            continue
        with pytest.raises(Malformed):
            check_pack(repaired(bytes(broken)))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_every_whole_pack_can_be_read_by_file_readers(data):
    """A reader of files must never meet a pack that execution applied and that it cannot take apart."""
    raw = bytearray(
        encode_pack(
            Pack(1, 1, (b"abc", b"de", b""), keys=(None, b"k", b"l"), headers=(b"h", None, b""), request_counts=(2, 1))
        )
    )
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        fixed = repaired(bytes(raw))
        heading = read_heading(fixed)
        check_pack(fixed)
    except Malformed:
        return
    decode_pack(fixed)
    record = Record(Kind.BATCH, fixed, 1, 0, 1, heading.messages, stream="s")
    assert sum(batch.num_rows for batch in to_record_batches([record])) == heading.messages


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_packs_with_few_and_many_messages_are_judged_equally(data):
    """Few are added up one by one, many by numpy: a pack that one takes and the other refuses would split a cluster."""
    values = tuple(data.draw(st.lists(st.binary(max_size=9), min_size=1, max_size=6)))
    cells = st.lists(st.none() | st.binary(max_size=3), min_size=len(values), max_size=len(values)).map(tuple)
    counts = data.draw(st.sampled_from([None, (len(values),), (1,) * len(values)]))
    whole = Pack(1, 1, values, keys=data.draw(st.none() | cells), headers=data.draw(cells), request_counts=counts)
    raw = bytearray(encode_pack(whole))
    for _ in range(data.draw(st.integers(0, 2))):
        raw[data.draw(st.integers(64, len(raw) - 1))] = data.draw(st.sampled_from([0, 1, 2, 255]))
    head = read_head(raw, 0)
    ends = []
    for judge, view in ((_end_of_few, memoryview(raw)), (_end_of_many, octets(raw))):
        try:
            ends.append(judge(view, head))
        except Malformed as error:
            ends.append(str(error))
    assert ends[0] == ends[1]


def test_request_name_depends_only_on_signed_content():
    digest = digest_of(ENTRY.raw)
    names = {
        request_digest(*args, digest) for args in ((CLUSTER, "a"), (CLUSTER, "b"), ("c", "a"), (CLUSTER + "a", ""))
    }
    assert len(names) == 4


@pytest.mark.parametrize("name", ["", "x" * 256, "a b", "ü", "_config", "a\n"])
def test_stream_name_outside_visible_ascii_is_malformed(name):
    with pytest.raises(Malformed):
        check_stream(name)


def test_hmac_is_valid_only_with_its_secret():
    entry = sealed_pack(1, 1, b"s" * 32)
    assert check(entry, key=b"s" * 32, kind=SignatureType.HMAC_SHA256)
    assert not check(entry, key=b"t" * 32, kind=SignatureType.HMAC_SHA256)
    assert not check(entry, key=ADMIN.key)


def test_wrapped_secret_opens_only_for_its_client():
    wrapped = WRAPPING.wrap(b"s" * 32, BOB.key, b"n" * 12)
    assert WRAPPING.unwrap(wrapped, BOB.key) == b"s" * 32
    assert WRAPPING.unwrap(wrapped, ADMIN.key) is None
    assert Wrapping(b"w" * 32, "other").unwrap(wrapped, BOB.key) is None
    assert Wrapping(b"x" * 32, CLUSTER).unwrap(wrapped, BOB.key) is None
    assert WRAPPING.unwrap(wrapped[:-1], BOB.key) is None
    assert b"s" * 32 not in wrapped
