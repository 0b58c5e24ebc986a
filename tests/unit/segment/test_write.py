"""The writer: rolling, recycling, what it claims to be proven, and how it goes on after a crash at any point."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaplain.core import Remove, Rename, WriteAt
from chaplain.errors import ConfigError, StorageError
from chaplain.segment.layout import RECORDS_START, segment_name
from chaplain.segment.record import Kind, Record
from chaplain.segment.scan import ScanVerdict
from chaplain.segment.settings import LogSettings
from chaplain.segment.write import SegmentWriter, mend_header
from tests.support.segment_stage import SMALL, Disk, chained, header_of, written


def name(sequence: int) -> str:
    return segment_name("log", sequence)


def test_append_is_one_write_and_the_next_begins_at_its_end_mark():
    writer = SegmentWriter(SMALL, random.Random(1))
    writer.append(chained(1))
    end = writer.written
    (operation,) = writer.append(chained(3))
    assert isinstance(operation, WriteAt)
    assert (operation.file, operation.position) == (name(0), end)
    assert len(operation.data) == writer.written - end + 144
    assert writer.append([]) == ()


def test_full_segment_is_followed_by_another_and_the_log_reads_as_one():
    records = chained(100, 1000)
    disk = written(records)
    survey, found = disk.survey()
    assert found == records
    assert survey.clean
    assert [ending.header.sequence for ending in survey.endings] == list(range(len(disk.files)))
    assert [ending.sealed for ending in survey.endings] == [True] * (len(disk.files) - 1) + [False]
    assert all(len(content) == SMALL.segment_bytes for content in disk.files.values())
    identities = {ending.header.identity for ending in survey.endings}
    assert len(identities) == len(disk.files) > 10


def test_records_of_one_append_can_span_segments():
    disk = Disk()
    disk.perform(SegmentWriter(SMALL, random.Random(1)).append(chained(100, 1000)))
    survey, found = disk.survey()
    assert (found, survey.clean) == (chained(100, 1000), True)


def test_new_segment_is_begun_before_the_old_one_is_sealed():
    writer = SegmentWriter(SMALL, random.Random(1), free=["x.free"])
    assert isinstance(writer.append(chained(1, 7000))[0], Rename)
    operations = writer.append(chained(1, 7000))
    kinds = [(type(operation), operation.file) for operation in operations]
    assert kinds == [(WriteAt, name(1)), (WriteAt, name(1)), (WriteAt, name(0)), (WriteAt, name(1))]


def test_unused_new_segment_leaves_the_log_clean():
    disk = Disk()
    writer = SegmentWriter(SMALL, random.Random(1))
    disk.perform(writer.append(chained(1, 5000)))
    end = writer.written
    disk.perform(writer.append(chained(1, 5000, first=1))[:2])
    survey, found = disk.survey()
    assert (survey.clean, survey.unused, found) == (True, (1,), chained(1, 5000))
    writer = SegmentWriter(SMALL, random.Random(2), survey)
    assert writer.written == end
    disk.perform(writer.append(chained(2, 5000, first=1)))
    survey, found = disk.survey()
    assert (survey.clean, survey.unused, len(found)) == (True, (), 3)


def test_released_files_are_recycled_up_to_a_bound():
    writer = SegmentWriter(LogSettings("log", 5, "deep/", 16 * 1024, free_max=1), random.Random(1))
    for _ in range(3):
        writer.append(chained(1, 7000))
    assert writer.release(0) == (Rename(f"deep/{name(0)}", "deep/log-00000000000000000000.free"),)
    assert writer.release(1) == (Remove(f"deep/{name(1)}"),)
    assert writer.append(chained(1, 7000))[0] == Rename("deep/log-00000000000000000000.free", f"deep/{name(3)}")
    with pytest.raises(ValueError, match="still written"):
        writer.release(3)


def test_proven_position_covers_only_synced_records():
    writer = SegmentWriter(SMALL, random.Random(1))
    disk = Disk()
    disk.perform(writer.append(chained(1)))
    first_end = writer.written
    disk.perform(writer.append(chained(1)))
    assert disk.scan(name(0)).proven == 0
    writer.synced(first_end)
    disk.perform(writer.append(chained(1)))
    assert disk.scan(name(0)).proven == writer.proven == first_end
    with pytest.raises(AssertionError):
        writer.synced(writer.written + 1)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("more", [0, 1, 50_000])
def test_record_larger_than_a_segment_gets_a_segment_that_fits(more: int, free: bool):
    disk = Disk()
    room = SMALL.record_bytes_max - 144
    files = ["log-00000000000000000099.free"] if free else []
    disk.files.update({file: bytearray(SMALL.segment_bytes) for file in files})
    writer = SegmentWriter(SMALL, random.Random(1), free=files)
    records = [*chained(3), Record(Kind.META, bytes(room + more), index=3), *chained(20, 1000, first=4)]
    disk.perform(writer.append(records[:3]))
    disk.perform(writer.append(records[3:]))
    disk.files.pop(files[0] if free else "", None)
    sizes = {len(content) for content in disk.files.values()}
    assert sizes == {SMALL.segment_bytes, SMALL.segment_bytes + -(-more // 4096) * 4096}
    assert all(len(content) == header_of(bytes(content)).size_bytes for content in disk.files.values())
    survey, found = disk.survey()
    assert survey.clean
    assert found == records
    disk.perform(SegmentWriter(SMALL, random.Random(2), survey).append(chained(1, first=24)))
    assert disk.survey()[0].clean


def test_log_with_impossible_segment_sizes_is_refused():
    with pytest.raises(ConfigError):
        SegmentWriter(LogSettings("log", 5, segment_bytes=5000), random.Random(1))


def test_clean_log_continues_in_its_last_segment():
    disk = written(chained(20, 1000))
    survey, _ = disk.survey()
    writer = SegmentWriter(SMALL, random.Random(2), survey)
    assert writer.written == survey.endings[-1].end
    disk.perform(writer.append(chained(20, 1000, first=20, seed=2)))
    survey, found = disk.survey()
    assert survey.clean
    assert found == chained(20, 1000) + chained(20, 1000, first=20, seed=2)


@pytest.mark.parametrize(("was", "now"), [(16, 32), (32, 16)])
def test_existing_segment_keeps_its_size_when_the_setting_changes(was: int, now: int):
    """Nobody reads a file further than its header says."""
    disk = Disk()
    records = chained(60, 1000)
    before, after = (LogSettings("log", 5, segment_bytes=size * 1024) for size in (was, now))
    disk.perform(SegmentWriter(before, random.Random(1)).append(records[:5]))
    survey, _ = disk.survey()
    disk.perform(SegmentWriter(after, random.Random(2), survey).append(records[5:]))
    assert all(len(content) == header_of(bytes(content)).size_bytes for content in disk.files.values())
    survey, found = disk.survey()
    assert survey.clean
    assert found == records


def test_log_in_doubt_is_cut_only_on_request_and_nothing_cut_returns():
    disk = Disk()
    writer = SegmentWriter(SMALL, random.Random(1))
    disk.perform(writer.append(chained(2)))
    end = writer.written
    disk.perform(writer.append(chained(3, first=2)))
    disk.files[name(0)][end + 20] ^= 1  # the first record of an unsynced write; two more of it are whole
    survey, found = disk.survey()
    assert [finding.verdict for finding in survey.findings] == [ScanVerdict.IN_DOUBT]
    assert len(found) == 4
    with pytest.raises(StorageError, match="in doubt at position"):
        SegmentWriter(SMALL, random.Random(2), survey)
    writer = SegmentWriter(SMALL, random.Random(2), survey, cut_doubt=True)
    disk.perform(writer.append(chained(1, first=2, seed=3)))
    survey, found = disk.survey()
    assert survey.clean
    assert found == chained(2) + chained(1, first=2, seed=3)
    assert len(survey.endings) == 2


def test_damage_in_the_middle_does_not_stop_a_log():
    disk = written(chained(20, 1000))
    disk.files[name(0)][RECORDS_START + 300] ^= 1
    survey, _ = disk.survey()
    assert [finding.verdict for finding in survey.findings] == [ScanVerdict.DAMAGED]
    writer = SegmentWriter(SMALL, random.Random(2), survey)
    disk.perform(writer.append(chained(1, first=20)))
    survey, found = disk.survey()
    assert [finding.verdict for finding in survey.findings] == [ScanVerdict.DAMAGED]
    assert found[-1] == chained(1, first=20)[0]


def test_missing_foreign_and_headerless_segments_are_named():
    whole = written(chained(40, 1000))
    disk = whole.copy()
    del disk.files[name(1)]
    assert [finding.reason for finding in disk.survey()[0].findings][:1] == ["segment 1 is missing"]
    disk = whole.copy()
    disk.files[name(1)] = written(chained(40, 1000), seed=2).files[name(1)]
    assert disk.survey()[0].findings[0].reason == "segment 1 is foreign"
    disk = whole.copy()
    last = max(disk.files)
    del disk.files[last]
    (finding,) = disk.survey()[0].findings
    assert finding.verdict is ScanVerdict.IN_DOUBT
    assert "is missing" in finding.reason


def test_one_lost_header_copy_costs_nothing_and_two_are_reconstructed():
    whole = written(chained(40, 1000))
    disk = whole.copy()
    disk.files[name(1)][:512] = bytes(512)
    survey, found = disk.survey()
    assert found == chained(40, 1000)
    assert [(finding.verdict, finding.reason) for finding in survey.findings] == [
        (ScanVerdict.DAMAGED, "header: one copy is bad")
    ]
    disk.files[name(1)][4096:4200] = b"x" * 104
    survey, found = disk.survey()
    assert found == chained(40, 1000)
    assert [finding.reason for finding in survey.findings] == ["header: both copies are bad"]


def test_lost_header_copies_of_a_larger_segment_are_reconstructed():
    records = [*chained(3), Record(Kind.META, bytes(50_000), index=3), *chained(20, 1000, first=4)]
    disk = written(records)
    disk.files[name(1)][:8192] = b"x" * 8192
    survey, found = disk.survey()
    assert found == records
    assert [finding.reason for finding in survey.findings] == ["header: both copies are bad"]


def test_log_without_its_first_segment_and_proof_is_begun_anew_on_request():
    disk = written(chained(40, 1000))
    disk.files = {name(1): disk.files[name(1)]}
    disk.files[name(1)][:8192] = b"x" * 8192
    survey, _ = disk.survey()
    with pytest.raises(StorageError, match="in doubt at position 0"):
        SegmentWriter(SMALL, random.Random(2), survey)
    writer = SegmentWriter(SMALL, random.Random(2), survey, cut_doubt=True)
    disk.perform(writer.append(chained(3)))
    assert set(disk.files) == {name(0)}
    survey, found = disk.survey()
    assert survey.clean
    assert found == chained(3)


sizes = st.lists(st.integers(0, 6000), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), sizes=sizes, recycle=st.booleans())
def test_process_killed_between_any_two_operations_leaves_a_usable_log(data, sizes, recycle):
    """Whole operations are lost, as when a process dies: nothing is in doubt, nothing written before is missing."""
    crashed, kept = _run(data, sizes, recycle, tear=False)
    survey, found = crashed.survey()
    assert found[: len(kept)] == kept
    writer = SegmentWriter(SMALL, random.Random(9), survey, cut_doubt=False)
    more = chained(2, 3000, first=len(found), seed=5)
    crashed.perform(writer.append(more))
    survey, again = crashed.survey()
    assert survey.clean
    assert again[: len(kept)] == kept
    assert again[-2:] == more


@settings(max_examples=150, deadline=None)
@given(data=st.data(), sizes=sizes, recycle=st.booleans())
def test_power_cut_in_any_write_loses_nothing_synced(data, sizes, recycle):
    """Any sectors of the unsynced writes are lost: what was synced is there, and after a cut the log goes on clean."""
    crashed, kept = _run(data, sizes, recycle, tear=True)
    survey, found = crashed.survey()
    assert found[: len(kept)] == kept
    assert all("header: one copy" in f.reason for f in survey.findings if f.verdict is ScanVerdict.DAMAGED)
    writer = SegmentWriter(SMALL, random.Random(9), survey, cut_doubt=True)
    more = chained(2, 3000, first=len(kept), seed=5)
    crashed.perform(writer.append(more))
    crashed.perform(tuple(mend_header(ending.header) for ending in crashed.survey()[0].endings))
    survey, again = crashed.survey()
    assert survey.clean
    assert again[: len(kept)] == kept
    assert again[-2:] == more


def _run(data, sizes, recycle, *, tear):
    """Append and sync records; in the last append the machine fails. Returns what should survive."""
    disk = Disk()
    writer = SegmentWriter(SMALL, random.Random(1))
    records = [record for number, size in enumerate(sizes) for record in chained(1, size, first=number, seed=number)]
    kept = []
    if recycle:
        kept = _recycle(disk, writer)
    synced = data.draw(st.integers(0, len(records) - 1))
    for record in records[:synced]:
        disk.perform(writer.append([record]))
        writer.synced(writer.written)
    operations = writer.append(records[synced:])
    crashed = disk.copy()
    done = data.draw(st.integers(0, len(operations)))
    crashed.perform(operations[:done])
    if tear:
        _lose_sectors(crashed, disk, data.draw(st.randoms(use_true_random=False)))
    return crashed, [*kept, *records[:synced]]


def _recycle(disk: Disk, writer: SegmentWriter) -> list[Record]:
    """Three segments come and go; what stands in the fourth is left."""
    for number in range(4):
        (kept,) = chained(1, 7000, seed=70 + number)
        disk.perform(writer.append([kept]))
        writer.synced(writer.written)
    for sequence in range(3):
        disk.perform(writer.release(sequence))
    return [kept]


def _lose_sectors(crashed: Disk, before: Disk, chance: random.Random) -> None:
    """Each sector that changed may have stayed as it was; renames have arrived."""
    for file, content in crashed.files.items():
        old = before.files.get(file)
        if old is None:
            old = next((was for was in before.files.values() if was[RECORDS_START + 4096 :] == content[-4096:]), None)
        old = (old or bytearray()).ljust(len(content), b"\0")
        for at in range(0, len(content), 512):
            if content[at : at + 512] != old[at : at + 512] and chance.random() < 0.4:
                content[at : at + 512] = old[at : at + 512]
