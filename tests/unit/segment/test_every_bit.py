"""Every single flipped bit and every truncation of a 64 KiB segment is detected or shown to be harmless.

The walk up to a record does not depend on bytes behind its start, which the scan of the whole segment has covered. So a
flip inside record k is judged by the walk from k on: the findings must name exactly the record that was hit.
"""

import random

import numpy as np
import pytest

from chaplain.errors import Malformed
from chaplain.segment.header import decode_header, read_headers
from chaplain.segment.layout import HEADER_BYTES, PAGE_BYTES, RECORDS_START, segment_name
from chaplain.segment.record import decode_body, decode_head
from chaplain.segment.scan import Scan, ScanTail, ScanVerdict, scan
from chaplain.segment.settings import LogSettings
from chaplain.segment.write import SegmentWriter
from tests.support.segment_stage import Disk, chained, header_of

SIZE = 64 * 1024
SIZES = (30_000, 0, 17_000, 5, 333)


@pytest.fixture(scope="module")
def segment() -> bytes:
    """A recycled segment: behind its end stand records of a former life."""
    settings = LogSettings("log", 5, segment_bytes=SIZE)
    disk = Disk()
    writer = SegmentWriter(settings, random.Random(1))
    for _ in range(2):
        disk.perform(writer.append(chained(1, SIZE - RECORDS_START - 1000)))
        writer.synced(writer.written)
    disk.perform(writer.release(0))
    for size in SIZES:
        disk.perform(writer.append(chained(1, size)))
        writer.synced(writer.written)
    data = bytes(disk.files[segment_name("log", 2)])
    assert len(data) == SIZE
    return data


@pytest.fixture(scope="module")
def whole(segment) -> Scan:
    found = scan(segment, header_of(segment))
    assert found.clean
    assert [len(record.body) for _, record in found.records] == list(SIZES)
    assert np.frombuffer(segment, np.uint8)[found.end - found.header.base + 500 :].any()
    return found


def test_flip_in_a_header_page_is_noticed_and_the_other_copy_serves(segment):
    """In either copy it is noticed and the other copy serves; between the copies nothing is ever read."""
    header = header_of(segment)
    pages = bytearray(segment[:RECORDS_START])
    for copy in (0, PAGE_BYTES):
        for bit in range(HEADER_BYTES * 8):
            pages[copy + bit // 8] ^= 1 << bit % 8
            with pytest.raises(Malformed):
                decode_header(pages[copy:])
            pages[copy + bit // 8] ^= 1 << bit % 8
        pages[copy] ^= 1
        assert (read_headers(pages).header, read_headers(pages).bad) == (header, (copy,))
        pages[copy] ^= 1
    for place in (*range(HEADER_BYTES, PAGE_BYTES), *range(PAGE_BYTES + HEADER_BYTES, RECORDS_START)):
        assert not segment[place]
        pages[place] = 0xFF
    assert read_headers(pages) == read_headers(segment)


def test_flip_in_any_record_head_or_end_mark_is_named_by_the_scan(segment, whole):
    """The scan names the record that was hit, and finds all that follow."""
    base = whole.header.base
    data = bytearray(segment)
    heads = [(head.position, head.body_at, head.end) for head, _ in whole.records] + [(whole.end, 144, whole.end)]
    for number, (position, size, end) in enumerate(heads):
        last = number == len(heads) - 1
        verdict = ScanVerdict.DAMAGED if position < whole.proven else ScanVerdict.IN_DOUBT
        for bit in range(size * 8):
            at, mask = position - base + bit // 8, 1 << bit % 8
            data[at] ^= mask
            found = scan(data, whole.header, position)
            data[at] ^= mask
            (finding,) = found.findings
            assert (finding.verdict, finding.position, finding.end) == (verdict, position, end), bit
            assert found.tail is (ScanTail.BROKEN if last else ScanTail.OPEN)
            assert [head for head, _ in found.records] == [head for head, _ in whole.records[number + 1 :]]


def test_flip_in_any_record_body_is_found(segment, whole):
    """The body's checksum fails for each bit; one flip a body goes through the whole scan."""
    base = whole.header.base
    data = np.frombuffer(segment, np.uint8).copy()
    for head, _ in whole.records:
        start, body = head.position - base, head.position - base + head.body_at
        end = head.end - base
        for at in range(body, end):
            for bit in range(8):
                data[at] ^= 1 << bit
                assert _body_is_bad(data[start:end], head), (at, bit)
                data[at] ^= 1 << bit
        if end > body:
            data[body + 1] ^= 4
            (finding,) = scan(data, whole.header).findings
            data[body + 1] ^= 4
            assert (finding.position, finding.end, finding.reason) == (
                head.position,
                head.end,
                "record: body checksum does not match",
            )


def _body_is_bad(data, head) -> bool:
    try:
        decode_body(data, head)
    except Malformed:
        return True
    return False


def test_flip_behind_the_end_changes_nothing(segment, whole):
    """No single flip makes a trace of this segment there, so the scan says the same as before."""
    base, tag = whole.header.base, whole.header.tag
    data = np.frombuffer(segment, np.uint8)
    behind = data[whole.end - base + 144 :]
    words = behind[: len(behind) // 8 * 8].reshape(-1, 8)
    distance = np.unpackbits(words ^ np.frombuffer(tag, np.uint8), axis=1).sum(axis=1)
    assert len(words) > 500
    assert distance.min() > 1
    for at in range(whole.end - base + 144, SIZE, 97):
        flipped = bytearray(segment)
        flipped[at] ^= 1
        assert scan(flipped, whole.header) == whole


def test_truncation_behind_the_end_is_reported_and_before_it_causes_doubt(segment, whole):
    """Behind the end mark it costs nothing and is reported as short; before, something is in doubt or damaged."""
    base = whole.header.base
    ends = [head.end - base for head, _ in whole.records]
    needed = whole.end - base + 144
    view = np.frombuffer(segment, np.uint8)
    for size in range(RECORDS_START, SIZE):
        found = scan(view[:size], whole.header, search=False)
        assert found.short_bytes == SIZE - size
        assert len(found.records) == sum(end <= size for end in ends)
        if size >= needed:
            assert (found.clean, found.tail) == (True, ScanTail.OPEN)
        else:
            assert found.tail is ScanTail.BROKEN
            assert found.findings
    for size in range(RECORDS_START):
        found = scan(view[:size], whole.header)
        assert (found.records, found.tail, found.clean) == ((), ScanTail.BROKEN, False)
        assert (read_headers(view[:size]).header is None) == (size < HEADER_BYTES)


def test_two_flips_within_a_word_of_a_head_are_found(segment, whole):
    """Beyond what was asked: bursts up to 32 bits are always caught by CRC-32C."""
    head, _ = whole.records[1]
    chance = random.Random(1)
    start = head.position - whole.header.base
    for _ in range(2000):
        data = bytearray(segment[start : start + head.body_at])
        at = chance.randrange(len(data) - 4)
        data[at : at + 4] = (int.from_bytes(data[at : at + 4], "big") ^ chance.randrange(1, 1 << 32)).to_bytes(4, "big")
        with pytest.raises(Malformed):
            decode_head(data, whole.header.identity, head.position)
