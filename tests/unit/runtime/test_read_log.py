"""Reading spans of a log: only files that hold some of it are opened, and those that go meanwhile hold nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaplain.journal.consensus.events import ReadLog
from chaplain.runtime.disk import log_files
from chaplain.runtime.disk.log_files import read_log
from chaplain.runtime.disk.operations import DataFiles
from chaplain.runtime.disk.syscalls import DataDirectory
from chaplain.segment.files import OpenSegment, list_segments
from chaplain.segment.layout import HEADER_COPIES, PAGE_BYTES
from chaplain.segment.record import Kind, Record
from chaplain.segment.settings import LogSettings
from chaplain.segment.write import SegmentWriter
from tests.support.unreadable_file import make_unreadable

SEGMENT_BYTES = 16 * 1024
RECORDS = 200


class Log:
    """Records of a thousand octets, a few in each file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spans: list[tuple[int, int]] = []
        files = DataFiles(DataDirectory(str(folder)))
        writer = SegmentWriter(LogSettings("log", 5, segment_bytes=SEGMENT_BYTES), random.Random(1))
        for index in range(RECORDS):
            for operation in writer.append([Record(Kind.META, b"x" * 1000, index=index)]):
                files.perform(operation)
            self.spans.append((writer.written - 1144, writer.written))
        files.close()

    def read(self, first: int, last: int) -> list[int]:
        start, end = self.spans[first][0], self.spans[last][1]
        return [record.index for record in read_log(self.folder, "log", ReadLog(1, start, end)).records]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_written_records_are_read_back(log: Log) -> None:
    for first, last in ((0, 0), (0, 30), (95, 130), (199, 199), (0, 199)):
        assert log.read(first, last) == list(range(first, last + 1))


def test_reading_one_record_opens_one_file_only(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    records = OpenSegment.records

    def counted(segment: OpenSegment, start: int, end: int) -> tuple[Record, ...]:
        read.append(segment.header.sequence)
        return records(segment, start, end)

    monkeypatch.setattr(OpenSegment, "records", counted)
    assert len(list_segments(log.folder)) > 10
    for index in range(0, RECORDS, 7):
        read.clear()
        assert log.read(index, index) == [index]
        assert len(read) == 1


def test_record_in_an_unreadable_sector_is_missing_and_its_neighbours_are_read(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = list_segments(log.folder)[2]
    with OpenSegment(segment.path) as file:
        bad = file.header.base + 12 * 1024
    lost = {index for index, (start, end) in enumerate(log.spans) if start < bad + PAGE_BYTES and end > bad}
    make_unreadable(monkeypatch, segment.path, 12 * 1024)
    found = {index for index in range(RECORDS) if log.read(index, index) == [index]}
    assert found == set(range(RECORDS)) - lost
    assert lost


@pytest.mark.parametrize("sequence", [0, 7, 15])
def test_file_with_an_unreadable_header_hides_no_other(log: Log, sequence: int) -> None:
    with list_segments(log.folder)[sequence].path.open("r+b") as file:
        for place in HEADER_COPIES:
            file.seek(place)
            file.write(b"rot!")
    hidden = [index for index in range(0, RECORDS, 5) if log.read(index, index) != [index]]
    assert 0 < len(hidden) <= 3
    assert hidden == list(range(hidden[0], hidden[-1] + 1, 5))


def test_files_dropped_during_a_read_return_nothing(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = list_segments(log.folder)
    monkeypatch.setattr(log_files, "list_segments", lambda folder, name: listed)
    for file in listed[:5]:
        file.path.unlink()
    assert log.read(199, 199) == [199]
    assert log.read(0, 0) == []
