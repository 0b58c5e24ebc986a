"""What a scan says about every way in which bytes can be wrong."""

import random

import pytest

from chaplain.segment.layout import RECORDS_START, segment_name
from chaplain.segment.record import Kind, Record, encode, size_of
from chaplain.segment.scan import ScanTail, ScanVerdict, scan
from chaplain.segment.settings import LogSettings
from chaplain.segment.write import SegmentWriter, refill
from tests.support.segment_stage import SMALL, Disk, chained, header_of, written

FIRST = segment_name("log", 0)


def places(disk: Disk) -> list[int]:
    """Where the records of the first segment stand in its file; base is 0."""
    return [head.position for head, _ in disk.scan(FIRST).records]


def verdicts(disk: Disk) -> list[tuple[ScanVerdict, int]]:
    return [(finding.verdict, finding.position) for finding in disk.scan(FIRST).findings]


def bodies(disk: Disk) -> list[bytes]:
    return [bytes(record.body) for _, record in disk.scan(FIRST).records]


def test_complete_segment_is_clean_and_open():
    records = chained(5)
    found = written(records).scan(FIRST)
    assert [record for _, record in found.records] == records
    assert (found.clean, found.tail, found.short_bytes) == (True, ScanTail.OPEN, 0)
    assert found.end == found.records[-1][0].end
    assert found.proven == found.records[-1][0].position


@pytest.mark.parametrize("within", [0, 9, 13, 24, 100, 150, 300])
def test_flip_in_the_last_synced_record_causes_doubt_and_keeps_earlier_records(within):
    disk = written(chained(5))
    last = places(disk)[-1]
    disk.files[FIRST][last + within] ^= 0x10
    assert verdicts(disk) == [(ScanVerdict.IN_DOUBT, last)]
    assert bodies(disk) == [record.body for record in chained(5)[:4]]


@pytest.mark.parametrize("within", [0, 9, 13, 24, 100, 150, 300])
def test_flip_before_a_later_write_is_damage_and_later_records_are_found(within):
    records = chained(5)
    disk = written(records)
    place = places(disk)[2]
    disk.files[FIRST][place + within] ^= 0x10
    assert verdicts(disk) == [(ScanVerdict.DAMAGED, place)]
    assert bodies(disk) == [record.body for record in records[:2] + records[3:]]
    assert disk.scan(FIRST).findings[0].end == place + size_of(records[2])


def test_damage_among_unsynced_records_causes_doubt():
    disk = written(chained(5), sync=False)
    place = places(disk)[2]
    disk.files[FIRST][place + 150] ^= 1
    assert verdicts(disk) == [(ScanVerdict.IN_DOUBT, place)]


def test_flip_in_the_end_mark_causes_doubt():
    disk = written(chained(3))
    end = disk.scan(FIRST).end
    disk.files[FIRST][end + 30] ^= 1
    assert verdicts(disk) == [(ScanVerdict.IN_DOUBT, end)]


def test_write_of_which_only_later_sectors_arrived_is_torn():
    disk = Disk()
    writer = SegmentWriter(SMALL, random.Random(1))
    disk.perform(writer.append(chained(3)))
    writer.synced(writer.written)
    end = writer.written
    before = bytes(disk.files[FIRST])
    disk.perform(writer.append(chained(4, first=3)))
    sector = (end // 512 + 1) * 512
    disk.files[FIRST][:sector] = before[:sector]
    assert verdicts(disk) == [(ScanVerdict.TORN, end)]
    assert len(bodies(disk)) == 3


def test_write_of_which_only_the_first_sectors_arrived_causes_doubt():
    disk = Disk()
    writer = SegmentWriter(SMALL, random.Random(1))
    disk.perform(writer.append(chained(3)))
    writer.synced(writer.written)
    end = writer.written
    before = bytes(disk.files[FIRST])
    disk.perform(writer.append(chained(1, 2000, first=3)))
    sector = (end // 512 + 2) * 512
    disk.files[FIRST][sector:] = before[sector:]
    assert verdicts(disk) == [(ScanVerdict.IN_DOUBT, end), (ScanVerdict.IN_DOUBT, writer.written)]
    assert len(bodies(disk)) == 3


def test_lost_write_of_a_proven_record_is_damage():
    disk = Disk()
    writer = SegmentWriter(SMALL, random.Random(1))
    disk.perform(writer.append(chained(3)))
    writer.synced(writer.written)
    end = writer.written
    before = bytes(disk.files[FIRST])
    disk.perform(writer.append(chained(1, first=3)))
    middle = writer.written
    writer.synced(middle)
    disk.perform(writer.append(chained(1, first=4)))
    disk.files[FIRST][end:middle] = before[end:middle]
    assert verdicts(disk) == [(ScanVerdict.DAMAGED, end)]


def test_swapped_records_are_invalid():
    disk = written(chained(5))
    first, second, third = places(disk)[1:4]
    content = disk.files[FIRST]
    content[first:third] = content[second:third] + content[first:second]
    assert verdicts(disk) == [(ScanVerdict.DAMAGED, first)]
    assert len(bodies(disk)) == 3


def test_swapped_bodies_are_invalid():
    disk = written(chained(5))
    first, second = places(disk)[1:3]
    content = disk.files[FIRST]
    one, other = slice(first + 144, second), slice(second + 144, second + second - first)
    content[one], content[other] = content[other], content[one]
    assert verdicts(disk) == [(ScanVerdict.DAMAGED, first), (ScanVerdict.DAMAGED, second)]


def test_misdirected_write_is_invalid():
    disk = written(chained(5))
    place = places(disk)
    content = disk.files[FIRST]
    content[place[1] : place[2]] = content[place[3] : place[4]]
    assert verdicts(disk) == [(ScanVerdict.DAMAGED, place[1])]


def test_records_of_another_segment_are_invalid():
    disk, foreign = written(chained(5)), written(chained(5, seed=2), seed=2)
    place = places(disk)
    disk.files[FIRST][place[1] : place[2]] = foreign.files[FIRST][place[1] : place[2]]
    assert verdicts(disk) == [(ScanVerdict.DAMAGED, place[1])]
    disk.files[FIRST][RECORDS_START:] = foreign.files[FIRST][RECORDS_START:]
    assert verdicts(disk) == [(ScanVerdict.IN_DOUBT, RECORDS_START)]


def test_old_records_of_a_recycled_file_are_never_read():
    settings = LogSettings("log", 5, segment_bytes=16 * 1024)
    disk = Disk()
    writer = SegmentWriter(settings, random.Random(1))
    while writer.written < 2 * 16 * 1024:
        disk.perform(writer.append(chained(1, 1000)))
        writer.synced(writer.written)
        if segment_name("log", 1) in disk.files and FIRST in disk.files:
            disk.perform(writer.release(0))
    name = segment_name("log", 2)
    found = disk.scan(name)
    assert sorted(disk.files) == [segment_name("log", number) for number in (1, 2)]
    assert found.clean
    assert [head.position for head, _ in found.records] == [found.header.records_start]
    assert any(disk.files[name][found.end - found.header.base + 1000 :]), "the former life should still be there"


def test_head_that_points_outside_the_segment_is_invalid():
    disk = written(chained(2))
    header = header_of(disk.files[FIRST])
    place = places(disk)[1]
    huge = encode(Record(Kind.META, bytes(20_000)), header.identity, place, 0)
    disk.files[FIRST][place:] = huge[: len(disk.files[FIRST]) - place]
    assert verdicts(disk) == [(ScanVerdict.IN_DOUBT, place)]


def test_damaged_range_is_refilled_in_place():
    records = chained(5)
    disk = written(records)
    place = places(disk)[2]
    disk.files[FIRST][place : place + 200] = bytes(200)
    (finding,) = disk.scan(FIRST).findings
    header = header_of(disk.files[FIRST])
    disk.perform((refill(header, finding.position, finding.end, [records[2]]),))
    found = disk.scan(FIRST)
    assert found.clean
    assert [record for _, record in found.records] == records
    with pytest.raises(ValueError, match="stretch"):
        refill(header, finding.position, finding.end, chained(1, 300))


def test_scan_without_a_search_stops_at_the_first_bad_head():
    disk = written(chained(5))
    disk.files[FIRST][places(disk)[2]] ^= 1
    data = bytes(disk.files[FIRST])
    found = scan(data, header_of(data), search=False)
    assert (len(found.records), found.tail) == (2, ScanTail.BROKEN)
