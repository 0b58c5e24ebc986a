"""Octets on disk: headers, records, packs, whole segments. Checksums are put right first where they would hide bugs."""

from __future__ import annotations

import random

from chaplain.core import WriteAt
from chaplain.errors import Malformed
from chaplain.segment.arrow import to_record_batches
from chaplain.segment.header import SegmentHeader, decode_header, encode_header, read_headers
from chaplain.segment.layout import (
    HEADER_BYTES,
    RECORDS_START,
    checksum,
    checksum_seed,
    padded,
    parse_name,
    segment_name,
)
from chaplain.segment.pack import Pack, decode_pack, encode_pack, heads_of
from chaplain.segment.read import agreed
from chaplain.segment.record import HEAD_BYTES, Kind, Record, decode_body, decode_head, encode
from chaplain.segment.scan import ScanTail, scan
from chaplain.segment.settings import LogSettings
from chaplain.segment.survey import Surveyor
from chaplain.segment.write import SegmentWriter

IDENTITY = bytes(range(16))
POSITION = 8192
HEADER = SegmentHeader("demo", 5, IDENTITY, 7, 65536, 16384)
PACKS = (
    Pack(5, 10, (b"alpha", b"be", b""), keys=(b"k1", None, b"k2"), request_counts=(2, 1)),
    Pack(1, 1, (b"x",), headers=(b"h",), signature_type=1, signature=bytes(64)),
    Pack(2, 3, (b"one", b"two"), keys=(None, None), headers=(None, b"")),
)
RECORDS = (
    Record(Kind.META, b"body", 1, stream="orders", chain_hash=b"a" * 32),
    Record(Kind.MARK, index=1, chain_hash=b"a" * 32),
    Record(Kind.BATCH, b"".join(map(encode_pack, PACKS)), 2, 0, 5, 6, stream="x", previous_hash=b"a" * 32),
)


def _segment() -> bytes:
    """A segment of RECORDS, each in a write of its own."""
    data = bytearray(16384)
    writer = SegmentWriter(LogSettings("demo", 5, segment_bytes=16384), random.Random(1))
    for record in RECORDS:
        for operation in writer.append([record]):
            assert isinstance(operation, WriteAt)
            data[operation.position : operation.position + len(operation.data)] = operation.data
        writer.synced(writer.written)
    return bytes(data)


SEGMENT = _segment()
SEGMENT_HEADER = decode_header(SEGMENT)
WRITTEN = {head.position: record for head, record in scan(SEGMENT, SEGMENT_HEADER).records}
assert tuple(WRITTEN.values()) == RECORDS
USED = SEGMENT[RECORDS_START : RECORDS_START + 1400]

SEEDS = {
    "target_header": [encode_header(HEADER)],
    "target_record": [encode(record, IDENTITY, POSITION, 0) for record in RECORDS],
    "target_pack": [encode_pack(pack) for pack in PACKS],
    "target_batch": [b"".join(map(encode_pack, PACKS)), encode_pack(PACKS[0]) * 2],
    "target_scan": [USED],
    "target_survey": [SEGMENT],
    "target_name": [segment_name("log", 7).encode()],
}


def target_header(data: bytes) -> None:
    fixed = data[:8] + checksum(data[12:HEADER_BYTES]).to_bytes(4, "little") + data[12:]
    read_headers(data)
    try:
        header = decode_header(fixed)
    except Malformed:
        return
    assert encode_header(header) == fixed[:HEADER_BYTES]


def target_record(data: bytes) -> None:
    """Any head whose checksum is right comes back as it was, with a body or without."""
    if len(data) < HEAD_BYTES:
        return
    covered = data[12 : HEAD_BYTES + padded(data[60])]
    crc = checksum(covered, checksum_seed(checksum(IDENTITY), POSITION)).to_bytes(4, "little")
    fixed = b"".join((IDENTITY[:8], crc, data[12:]))
    try:
        head = decode_head(fixed, IDENTITY, POSITION)
        again = decode_head(encode(head.record, IDENTITY, POSITION, head.proven), IDENTITY, POSITION)
        assert (again.record, again.proven) == (head.record, head.proven)
        assert len(decode_body(fixed, head)) == head.body_bytes
    except Malformed:
        return


def target_pack(data: bytes) -> None:
    try:
        pack = decode_pack(data)
    except Malformed:
        return
    assert decode_pack(encode_pack(pack)) == pack


def target_batch(data: bytes) -> None:
    """The decoder by columns and the decoder by messages find the same, or both find fault."""
    values, count = None, 1
    try:
        heads = heads_of(data)
        count = sum(head.count for head in heads) & 0xFFFFFFFF
        values = [value for head in heads for value in decode_pack(data[head.start : head.end]).values]
    except Malformed:
        pass
    record = Record(Kind.BATCH, data, first_offset=0, count=count)
    try:
        columns = [value for made in to_record_batches([record]) for value in made.column("value").to_pylist()]
    except Malformed:
        columns = None
    assert columns == values


def target_scan(data: bytes) -> None:
    """Whatever stands where records should: only what was written is found, at its place, and no loss is silent."""
    found = scan(SEGMENT[:RECORDS_START] + data, SEGMENT_HEADER)
    places = {head.position: record for head, record in found.records}
    assert all(WRITTEN.get(position) == record for position, record in places.items())
    assert found.findings or (places == WRITTEN and found.tail is ScanTail.OPEN)
    list(agreed(record for _, record in found.records))


def target_survey(data: bytes) -> None:
    """A file of anything never makes a survey fail, and never shows a record that was not written."""
    surveyor = Surveyor("demo")
    found = surveyor.add(0, data)
    assert all(record in RECORDS for _, record in (found.records if found else ()))
    surveyor.add(1, data)
    survey = surveyor.finish()
    assert survey.findings or len(found.records if found else ()) in (0, len(RECORDS))


def target_name(data: bytes) -> None:
    try:
        log, sequence, free = parse_name(data.decode("latin-1"))
    except Malformed:
        return
    assert free or segment_name(log, sequence) == data.decode("latin-1")
