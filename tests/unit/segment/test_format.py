"""The byte tables of docs/data-on-disk.md, and everything that must come back as it was written."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaplain.errors import ConfigError, Malformed
from chaplain.segment import layout
from chaplain.segment.header import SegmentHeader, decode_header, encode_header, encode_pages, read_headers
from chaplain.segment.pack import Pack, decode_pack, digest_of, encode_pack, heads_of, stated_digest, with_signature
from chaplain.segment.record import Kind, Record, decode_body, decode_head, encode, size_of
from chaplain.segment.verdicts import AppliedBatch, decode_verdict, encode_verdict

DOCUMENT = Path(__file__).parents[3] / "docs" / "data-on-disk.md"
HEADER = SegmentHeader("demo", 5, bytes(range(16)), 7, 65536, 16384)
PACK = Pack(5, 10, (b"alpha", b"be", b""), keys=(b"k1", None, b"k2"), request_counts=(2, 1))
RECORD = Record(
    Kind.BATCH,
    encode_pack(PACK),
    index=41,
    first_offset=1000,
    timestamp_ns=1_700_000_000_000_000_000,
    count=3,
    regime=2,
    stream="orders",
    origin_node=1,
    origin_journal=1,
    origin_index=9,
    previous_hash=b"\x99" * 32,
    chain_hash=b"\xaa" * 32,
)


def example(name: str) -> bytes:
    found = re.search(rf"```hex {name}\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found, f"the document has no example {name}"
    return bytes.fromhex(found[1])


def test_documented_header_matches_the_codec():
    raw = example("segment-header").ljust(512, b"\0")
    assert decode_header(raw) == HEADER
    assert encode_header(HEADER) == raw


def test_documented_record_matches_the_codec():
    raw = example("record")
    head = decode_head(raw, HEADER.identity, 73728)
    body = decode_body(raw, head)
    assert (head.proven, head.end - head.position) == (73728, len(raw))
    assert decode_pack(body) == PACK
    assert digest_of(body) == stated_digest(body)
    assert encode(RECORD, HEADER.identity, 73728, 73728) == raw
    assert size_of(RECORD) == len(raw)


def test_documented_batches_of_a_verdict_are_read_and_written():
    batches = (AppliedBatch(1, 7, 3, ((0, 64), (128, 256))), AppliedBatch(2, 0, 1))
    assert encode_verdict(batches, b"") == example("verdict-batches")
    assert decode_verdict(example("verdict-batches") + b"layer") == (batches, b"layer")
    for broken in (b"", b"\1\0\0\0", example("verdict-batches")[:-1], example("verdict-batches")[:48]):
        with pytest.raises(Malformed):
            decode_verdict(broken)


def test_record_is_valid_only_at_its_place_in_its_segment():
    raw = encode(RECORD, HEADER.identity, 73728, 0)
    with pytest.raises(Malformed, match="head checksum"):
        decode_head(raw, HEADER.identity, 73736)
    with pytest.raises(Malformed, match="another segment"):
        decode_head(raw, bytes(16), 73728)
    with pytest.raises(Malformed, match="head checksum"):
        decode_head(raw, HEADER.identity[:8] + bytes(8), 73728)


def test_newer_of_two_header_copies_is_used():
    old = encode_header(HEADER)
    new_header = SegmentHeader("demo", 5, b"n" * 16, 9, 131072, 16384, b"p" * 16)
    pages = bytearray(encode_pages(HEADER))
    pages[:512] = encode_header(new_header)
    found = read_headers(pages)
    assert (found.header, found.stale, found.bad) == (new_header, (4096,), ())
    pages[100] ^= 1
    found = read_headers(pages)
    assert (found.header, found.bad) == (HEADER, (0,))
    assert read_headers(old).bad == (4096,)
    assert read_headers(bytes(8192)).blank


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "-a", "a" * 65])
def test_log_names_unsuitable_as_file_names_are_refused(name):
    with pytest.raises(ConfigError):
        encode_header(SegmentHeader(name, 5, bytes(16), 0, 0, 16384))


def test_segment_file_names_round_trip():
    assert layout.parse_name(layout.segment_name("a-b", 7)) == ("a-b", 7, False)
    assert layout.parse_name(layout.free_name("log", 7)) == ("log", 7, True)
    with pytest.raises(Malformed):
        layout.parse_name("log-7.segment")


u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
hashes = st.binary(min_size=32, max_size=32)
records = st.builds(
    Record,
    kind=u16,
    body=st.binary(max_size=100),
    index=u64,
    first_offset=u64,
    timestamp_ns=st.integers(-(1 << 63), (1 << 63) - 1),
    count=u32,
    regime=u32,
    stream=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    part=st.integers(0, 9),
    parts=st.integers(10, 0xFFFF),
    flags=u16,
    origin_node=st.integers(0, 255),
    origin_journal=u16,
    origin_index=u32,
    previous_hash=hashes,
    chain_hash=hashes,
)


@given(records, st.binary(min_size=16, max_size=16), u32, u64)
def test_any_record_round_trips(record, identity, place, proven):
    position = place * 8
    raw = encode(record, identity, position, proven)
    head = decode_head(raw + b"more", identity, position)
    body = decode_body(raw + b"more", head)
    assert len(raw) == size_of(record) == head.end - position
    assert not len(raw) % 8
    assert head.proven == proven
    assert encode(_with_body(head.record, bytes(body)), identity, position, proven) == raw
    assert _with_body(head.record, bytes(body)) == record


def _with_body(record, body):
    return Record(**{name: getattr(record, name) for name in Record.__struct_fields__} | {"body": body})


@st.composite
def packs(draw):
    count = draw(st.integers(1, 12))
    cells = st.lists(st.none() | st.binary(max_size=20), min_size=count, max_size=count).map(tuple)
    counts = draw(st.none() | st.integers(1, count))
    return Pack(
        client_id=draw(u32),
        first_id=draw(u32),
        values=tuple(draw(st.lists(st.binary(max_size=20), min_size=count, max_size=count))),
        keys=draw(st.none() | cells),
        headers=draw(st.none() | cells),
        request_counts=None if counts is None else (1,) * (counts - 1) + (count - counts + 1,),
        message_type=draw(st.integers(0, 255)),
        signature_type=draw(st.integers(0, 255)),
        signature=draw(st.binary(max_size=70)),
    )


@given(packs(), st.binary(max_size=16))
def test_any_pack_round_trips_and_can_be_concatenated(pack, other):
    raw = encode_pack(pack)
    assert decode_pack(raw) == pack
    assert digest_of(raw) == stated_digest(raw)
    neighbour = encode_pack(Pack(1, 1, (other,)))
    heads = heads_of(raw + neighbour + raw)
    assert [head.count for head in heads] == [len(pack.values), 1, len(pack.values)]
    assert decode_pack((raw + neighbour + raw)[heads[2].start : heads[2].end]) == pack


def test_signature_is_inserted_after_the_digest():
    blank = encode_pack(Pack(5, 10, (b"alpha",), signature_type=1, signature=bytes(61)))
    signed = with_signature(blank, b"s" * 61)
    assert stated_digest(signed) == digest_of(signed) == stated_digest(blank)
    assert decode_pack(signed).signature == b"s" * 61
    with pytest.raises(ValueError, match="61"):
        with_signature(blank, b"short")


@pytest.mark.parametrize(
    "pack",
    [
        Pack(1, 1, ()),
        Pack(1, 1, (b"a",), keys=()),
        Pack(1, 1, (b"a",), request_counts=(2,)),
        Pack(1, 1, (b"a",), request_counts=(1, 0)),
    ],
)
def test_packs_that_do_not_add_up_are_refused(pack):
    with pytest.raises(ValueError, match=r"."):
        encode_pack(pack)
