"""Only agreed records are shown, and never bytes of another life of the file."""

import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaplain.errors import Malformed, StorageError
from chaplain.segment.files import (
    LogReader,
    OpenSegment,
    Recycled,
    list_free,
    list_segments,
    read_log,
    scan_file,
    survey_folder,
)
from chaplain.segment.header import SegmentHeader
from chaplain.segment.layout import NO_HASH, segment_name
from chaplain.segment.read import Agreement, Incomplete, agreed
from chaplain.segment.record import Flag, Kind, Record
from chaplain.segment.scan import ScanVerdict, scan
from chaplain.segment.verdicts import AppliedBatch, encode_verdict
from chaplain.segment.write import SegmentWriter
from tests.support.segment_stage import SMALL, Disk, chained, written


def mark(index: int, chain_hash: bytes = NO_HASH) -> Record:
    return Record(Kind.MARK, index=index, chain_hash=chain_hash)


def indexes(records) -> list[int]:
    return [record.index for record in records]


def test_message_is_returned_when_its_chained_successor_follows():
    assert indexes(agreed(chained(5))) == [0, 1, 2, 3]


def test_mark_shows_the_last_message_if_it_names_its_hash():
    records = chained(3)
    assert indexes(agreed([*records, mark(2, records[2].chain_hash)])) == [0, 1, 2]
    assert indexes(agreed([*records, mark(2, b"x" * 32)])) == [0, 1]
    assert indexes(agreed([*records[:2], mark(2, records[2].chain_hash)])) == [0]


def test_message_is_shown_only_with_its_verdict_and_with_the_offsets_of_it():
    heads = {"index": 1, "chain_hash": b"a" * 32, "parts": 3}
    message = Record(Kind.META, **heads)
    batch = Record(Kind.BATCH, b"packs", stream="orders", part=1, **heads)
    verdict = Record(Kind.VERDICT, encode_verdict([AppliedBatch(1, 7, 2)], b""), part=2, **heads)
    proof = mark(1, b"a" * 32)
    assert list(agreed([message, batch, verdict])) == []
    assert list(agreed([message, batch, proof])) == []
    shown = list(agreed([message, batch, verdict, proof]))
    assert [(one.kind, one.first_offset, one.count) for one in shown[1:2]] == [(Kind.BATCH, 7, 2)]
    assert [one.kind for one in shown] == [Kind.META, Kind.BATCH, Kind.VERDICT]


def test_mark_shows_all_earlier_messages_of_a_log_without_chains():
    records = [Record(Kind.META, b"x", index=index) for index in range(5)]
    assert indexes(agreed(records)) == []
    assert indexes(agreed([*records, mark(3)])) == [0, 1, 2, 3]


def test_settled_record_is_returned_at_once():
    assert indexes(agreed([Record(Kind.META, index=7, flags=Flag.SETTLED)])) == [7]


def test_successor_with_another_predecessor_shows_nothing():
    first, _ = chained(2)
    stranger = Record(Kind.META, index=1, previous_hash=b"s" * 32, chain_hash=b"t" * 32)
    assert indexes(agreed([first, stranger])) == []
    late = Record(Kind.META, index=2, previous_hash=first.chain_hash, chain_hash=b"t" * 32)
    assert indexes(agreed([first, late])) == []


def test_chain_selects_one_of_two_proposals_for_an_index():
    zero, old, *_ = chained(2)
    new = Record(Kind.META, b"new", index=1, regime=2, previous_hash=zero.chain_hash, chain_hash=b"n" * 32)
    after_new = Record(Kind.META, index=2, previous_hash=b"n" * 32, chain_hash=b"m" * 32)
    after_old = Record(Kind.META, index=2, previous_hash=old.chain_hash, chain_hash=b"m" * 32)
    agreement = Agreement()
    assert list(agreed([zero, old, new, after_new], agreement)) == [zero, new]
    assert (agreement.superseded, agreement.waiting) == (1, 1)
    assert list(agreed([zero, old, new, after_old])) == [zero, old]


def test_parts_of_a_message_are_returned_together_or_not_at_all():
    hashes = {"previous_hash": NO_HASH, "chain_hash": b"a" * 32}
    parts = [Record(Kind.META, index=1, part=part, parts=3, **hashes) for part in range(3)]
    assert list(agreed([*parts, mark(1, b"a" * 32)])) == parts
    agreement = Agreement()
    assert list(agreed([parts[0], parts[2], mark(1, b"a" * 32)], agreement)) == []
    assert agreement.incomplete == [Incomplete(1, 2, 3)]


def test_message_that_contradicts_a_returned_one_is_a_fork():
    zero, one, two = chained(3)
    other = Record(Kind.META, b"other", index=1, previous_hash=zero.chain_hash, chain_hash=b"o" * 32)
    agreement = Agreement()
    assert list(agreed([zero, one, two, other, mark(1, b"o" * 32)], agreement)) == [zero, one]
    assert agreement.forks == [1]
    assert list(agreed([mark(2, two.chain_hash)], agreement)) == [two]
    assert list(agreed([zero, one, two, mark(2, two.chain_hash)], agreement)) == []
    assert (agreement.forks, agreement.waiting) == ([1], 0)


class CountedRecord:
    """A record that counts how often its index is read: a measure of work that no busy machine changes."""

    reads = 0

    def __init__(self, record: Record) -> None:
        self._record = record

    @property
    def index(self) -> int:
        CountedRecord.reads += 1
        return self._record.index

    def __getattr__(self, name: str) -> object:
        return getattr(self._record, name)


def reads_of(records: list[Record]) -> tuple[int, list[int]]:
    """How often indexes are read while an agreement processes these records, and the indexes it shows."""
    CountedRecord.reads, shown = 0, []
    agreement = Agreement()
    for record in records:
        shown += agreement.feed(CountedRecord(record))
    return CountedRecord.reads, [record._record.index for record in shown]


def test_work_is_linear_in_the_parts_of_a_message():
    parts, hashes = 3_000, [bytes([number]) * 32 for number in (1, 2, 3)]
    first = [
        Record(Kind.BATCH, index=1, part=part, parts=parts, previous_hash=hashes[0], chain_hash=hashes[1])
        for part in range(parts)
    ]
    reads, shown = reads_of([*first, Record(Kind.BATCH, index=2, previous_hash=hashes[1], chain_hash=hashes[2])])
    assert shown == [1] * parts
    assert reads < 20 * parts


def test_work_is_linear_in_the_length_of_a_chain_that_one_mark_shows():
    records = chained(3_000, size_bytes=8)
    reads, shown = reads_of([*reversed(records), mark(records[-1].index, records[-1].chain_hash)])
    assert shown == [record.index for record in records]
    assert reads < 20 * len(records)


def test_waiting_records_are_bounded():
    agreement = Agreement(waiting_max=3)
    with pytest.raises(StorageError, match="marks"):
        list(agreed([Record(Kind.META, index=index) for index in range(4)], agreement))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 2), st.booleans()), max_size=30))
def test_index_of_a_chained_log_is_returned_at_most_once_and_in_order(steps):
    def name(index, branch):
        return bytes([index + 1, branch]) * 16

    records = [
        mark(index, name(index, branch))
        if is_mark
        else Record(
            Kind.META,
            index=index,
            previous_hash=name(index - 1, before) if index else NO_HASH,
            chain_hash=name(index, branch),
        )
        for index, branch, before, is_mark in steps
    ]
    shown = list(agreed(records))
    assert all(record in records for record in shown)
    assert indexes(shown) == sorted(set(indexes(shown)))
    for one, other in pairwise(shown):
        assert other.index > one.index + 1 or other.previous_hash == one.chain_hash


def put(disk: Disk, folder: Path) -> None:
    for name, content in disk.files.items():
        (folder / name).write_bytes(content)


def test_log_in_a_folder_is_read_across_segments(tmp_path):
    records = chained(60, 1000)
    put(written(records), tmp_path)
    (tmp_path / "other.txt").write_text("not a segment")
    (tmp_path / "log-00000000000000000099.free").write_bytes(bytes(100))
    assert list(read_log(tmp_path, "log")) == records[:-1]
    assert survey_folder(tmp_path, "log").clean
    assert scan_file(tmp_path / segment_name("log", 0)).clean
    assert {file.log for file in list_segments(tmp_path)} == {"log"}
    assert list_free(tmp_path, "log", 100) == ["log-00000000000000000099.free"]
    assert list_free(tmp_path, "log", 200) == []


def test_records_larger_than_a_window_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("chaplain.segment.files.WINDOW_BYTES", 512)
    records = chained(20, 3000)
    put(written(records), tmp_path)
    assert list(read_log(tmp_path, "log")) == records[:-1]


def test_polling_follows_a_log_after_every_single_operation(tmp_path):
    records = chained(42, 1500)
    disk, writer, reader = Disk(), SegmentWriter(SMALL, random.Random(1)), LogReader(tmp_path, "log")
    shown = []
    for first in range(0, 42, 3):  # four fit in a segment, so that rolls fall within appends
        for operation in writer.append(records[first : first + 3]):
            disk.perform((operation,))
            put(disk, tmp_path)
            shown += reader.poll()
        writer.synced(writer.written)
    assert shown == records[:-1]
    assert reader.findings == []
    assert list(reader.poll()) == []


def test_damage_is_named_and_the_rest_is_returned(tmp_path):
    records = chained(60, 1000)
    disk = written(records)
    disk.files[segment_name("log", 1)][9000] ^= 1
    put(disk, tmp_path)
    reader = LogReader(tmp_path, "log")
    shown = list(reader.poll())
    assert [finding.verdict for finding in reader.findings] == [ScanVerdict.DAMAGED]
    missing = set(range(59)) - set(indexes(shown))
    assert len(missing) == 2, "the damaged one, and the one that only it could have shown"


def test_missing_segment_is_named(tmp_path):
    disk = written(chained(60, 1000))
    del disk.files[segment_name("log", 1)]
    put(disk, tmp_path)
    reader = LogReader(tmp_path, "log")
    list(reader.poll())
    assert [finding.reason for finding in reader.findings] == ["segments between are missing"]


def test_file_recycled_between_two_reads_is_noticed(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(written(chained(9, 1000)).files[segment_name("log", 0)])
    with OpenSegment(path) as segment:
        assert segment.read(segment.header.records_start, 100)
        new_life = written(chained(40, 1000)).files[segment_name("log", 2)]
        with path.open("r+b") as stream:
            stream.write(new_life)
        with pytest.raises(Recycled):
            segment.read(segment.header.records_start, 100)


WRITER = """
import os, random, sys
from chaplain.core import Rename, WriteAt
from chaplain.segment.record import Flag, Kind, Record
from chaplain.segment.settings import LogSettings
from chaplain.segment.verdicts import AppliedBatch, encode_verdict
from chaplain.segment.write import SegmentWriter

folder = sys.argv[1]
writer = SegmentWriter(LogSettings("log", 1, folder + "/", 16 * 1024, free_max=9), random.Random(1))
number = released = 0
print("ready", flush=True)
while not os.path.exists(folder + "/stop"):
    bodies = [(number + step).to_bytes(8, "little") * 100 for step in range(3)]
    records = [Record(Kind.META, body, number + step, flags=Flag.SETTLED) for step, body in enumerate(bodies)]
    operations = list(writer.append(records))
    number += 3
    while released < writer.written // (16 * 1024) - 1:
        operations += writer.release(released)
        released += 1
    for operation in operations:
        if isinstance(operation, Rename):
            os.rename(operation.file, operation.to)
        elif isinstance(operation, WriteAt):
            with open(os.open(operation.file, os.O_RDWR | os.O_CREAT), "r+b", buffering=0) as stream:
                os.pwrite(stream.fileno(), operation.data, operation.position)
"""


def test_reader_beside_a_recycling_writer_never_sees_foreign_octets(tmp_path):
    """Another process overwrites two or three files over and over; every record read is whole and of its segment."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        read, recycled = _race(tmp_path, until=time.monotonic() + 20, reads=400)
    finally:
        (tmp_path / "stop").touch()
        process.stdout.close()
        assert process.wait(20) == 0
    assert read >= 400
    assert recycled >= 20, "the race hardly happened"


def _race(folder: Path, until: float, reads: int) -> tuple[int, int]:
    """Hold each file open and read it again and again, until it has been recycled under the open descriptor."""
    read = recycled = 0
    while (read < reads or recycled < 20) and time.monotonic() < until:
        for file in list_segments(folder, "log"):
            try:
                with OpenSegment(file.path) as segment:
                    while time.monotonic() < until:
                        data = segment.read(segment.header.base, segment.header.size_bytes)
                        read += _check(data, segment.header)
            except Recycled:
                recycled += 1
            except (FileNotFoundError, Malformed):
                continue  # renamed since it was listed, or just being begun
    return read, recycled


def _check(data: bytes, header: SegmentHeader) -> bool:
    """All records are this segment's own, without a gap: the copy is of one life."""
    found = scan(data, header, search=False)
    for head, record in found.records:
        assert bytes(record.body) == record.index.to_bytes(8, "little") * 100
        assert header.records_start <= head.position < header.end
    numbers = indexes(record for _, record in found.records)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
    return bool(numbers)
