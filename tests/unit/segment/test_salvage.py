"""Reading files of which some sectors cannot be read: zeros stand for them, and everything else is read."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaplain.runtime.disk.operations import DataFiles
from chaplain.runtime.disk.syscalls import DataDirectory
from chaplain.segment import salvage
from chaplain.segment.files import LogReader, list_segments, refuse_other_versions, scan_file, survey_folder
from chaplain.segment.record import Flag, Kind, Record
from chaplain.segment.scan import ScanVerdict
from chaplain.segment.settings import LogSettings
from chaplain.segment.write import SegmentWriter
from tests.support.unreadable_file import PAGE_BYTES, make_unreadable

CONTENT = random.Random(1).randbytes(10 * PAGE_BYTES + 100)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def descriptor(file: Path) -> Iterator[int]:
    opened = os.open(file, os.O_RDONLY)
    yield opened
    os.close(opened)


def zeroed(start: int, end: int) -> bytes:
    return CONTENT[:start] + bytes(min(end, len(CONTENT)) - start) + CONTENT[end:]


@pytest.mark.parametrize("page", [0, 3, 9, 10])
def test_unreadable_page_reads_as_zeros_and_the_rest_unchanged(
    file: Path, descriptor: int, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = zeroed(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
    make_unreadable(monkeypatch, file, page * PAGE_BYTES)
    assert salvage.read(descriptor, len(CONTENT), 0) == expected
    assert salvage.read(descriptor, 2 * len(CONTENT), 0) == expected
    assert salvage.read(descriptor, 5000, page * PAGE_BYTES + 10) == expected[page * PAGE_BYTES + 10 :][:5000]
    assert not salvage.is_readable(descriptor, 0, len(CONTENT))


def test_readable_file_is_read_completely(descriptor: int) -> None:
    assert salvage.read(descriptor, 2 * len(CONTENT), 0) == CONTENT
    assert salvage.read(descriptor, 50, len(CONTENT) + 10) == b""
    assert salvage.is_readable(descriptor, 0, len(CONTENT))


def test_long_unreadable_range_takes_few_attempts(file: Path, descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 64 << 20
    os.truncate(file, size)
    make_unreadable(monkeypatch, file, 0, size)
    attempts = 0
    preadv = os.preadv

    def counted(*given: object) -> int:
        nonlocal attempts
        attempts += 1
        return preadv(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "preadv", counted)
    assert salvage.read(descriptor, size, 0) == bytes(size)
    assert attempts < 100


def test_other_read_errors_are_raised(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> bytes:
        raise OSError(errno.ESTALE, "stale")

    monkeypatch.setattr(os, "pread", refused)
    with pytest.raises(OSError, match="stale"):
        salvage.read(descriptor, 10, 0)


def test_readers_of_segments_report_an_unreadable_page_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = DataFiles(DataDirectory(str(tmp_path)))
    writer = SegmentWriter(LogSettings("log", 5, segment_bytes=64 * 1024), random.Random(1))
    for index in range(80):
        for operation in writer.append([Record(Kind.META, bytes(1000), index=index, flags=Flag.SETTLED)]):
            files.perform(operation)
        writer.synced(writer.written)
    files.close()
    first = list_segments(tmp_path)[0].path
    make_unreadable(monkeypatch, first, 5 * PAGE_BYTES)
    refuse_other_versions(tmp_path)
    [found] = scan_file(first).findings
    assert found.verdict is ScanVerdict.DAMAGED
    assert [one.position for one in survey_folder(tmp_path, "log").findings] == [found.position]
    reader = LogReader(tmp_path, "log")
    read = [record.index for record in reader.poll()]
    assert 70 < len(read) < 80
    assert [one.position for one in reader.findings] == [found.position]


def test_segment_with_an_unreadable_header_copy_is_read_by_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = DataFiles(DataDirectory(str(tmp_path)))
    writer = SegmentWriter(LogSettings("log", 5, segment_bytes=64 * 1024), random.Random(1))
    for operation in writer.append([Record(Kind.META, b"content", index=1)]):
        files.perform(operation)
    files.close()
    make_unreadable(monkeypatch, list_segments(tmp_path)[0].path, 0)
    assert [record.index for _, record in scan_file(list_segments(tmp_path)[0].path).records] == [1]
