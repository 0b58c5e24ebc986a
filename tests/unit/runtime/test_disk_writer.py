from __future__ import annotations

import errno
import os
import select
import stat
import threading
import time

import pytest

from chaplain.core import Persist, Persisted, PersistFailed, Remove, Rename, Replace, WriteAt
from chaplain.errors import StorageError
from chaplain.runtime.disk.operations import DataFiles, check_name
from chaplain.runtime.disk.syscalls import DataDirectory
from chaplain.runtime.disk.writer import SMALL_BYTES, DiskWriter


class Recorder(DataDirectory):
    """A real disk that remembers the order of calls and fails the one it is told to."""

    def __init__(self, directory, fail: str = "", at: int = 1) -> None:
        super().__init__(str(directory))
        self.calls: list[str] = []
        self.fail, self.at = fail, at

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call.split(maxsplit=1)[0] == self.fail and sum(c.split()[0] == self.fail for c in self.calls) == self.at:
            raise OSError(errno.EIO, "Input/output error")

    def write(self, fd, data, position):
        self._note("write")
        super().write(fd, data, position)

    def sync(self, fd):
        self._note("sync")
        super().sync(fd)

    def rename(self, name, to):
        self._note(f"rename {to}")
        super().rename(name, to)

    def sync_directory(self, name):
        self._note(f"sync_directory {name or '.'}")
        super().sync_directory(name)


class FullDisk(DataDirectory):
    """A real disk without room until it is told that there is some."""

    def __init__(self, directory) -> None:
        super().__init__(str(directory))
        self.room = False
        self.syncs_full = False

    def write(self, fd, data, position):
        if not self.room:
            super().write(fd, data[:1], position)  # a part of it may fit
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, data, position)

    def sync(self, fd):
        if self.syncs_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().sync(fd)


def finish(storage: DiskWriter, count: int) -> list[Persisted | PersistFailed]:
    done: list[Persisted | PersistFailed] = []
    end = time.monotonic() + 20
    while len(done) < count:
        assert time.monotonic() < end
        select.select([storage.fd], [], [], 1)
        done += storage.completed()
    return done


def write(ticket: int, file: str = "a", position: int = 0, data: bytes = b"x") -> Persist:
    return Persist(ticket, (WriteAt(file, position, data),))


def test_write_on_a_full_disk_waits_for_space(tmp_path):
    disk = FullDisk(tmp_path)
    storage = DiskWriter(disk)
    storage.submit([write(1, "a", 0, b"hello"), Persist(2, (Replace("state", b"new"),))])
    end = time.monotonic() + 20
    while storage.counts["storage_waits_for_room"] < 2:
        assert time.monotonic() < end
    assert storage.completed() == []
    disk.room = True
    assert finish(storage, 2) == [Persisted(1), Persisted(2)]
    storage.close()
    assert (tmp_path / "a").read_bytes() == b"hello"
    assert (tmp_path / "state").read_bytes() == b"new"


def test_sync_that_finds_no_space_is_not_repeated(tmp_path):
    disk = FullDisk(tmp_path)
    disk.room = disk.syncs_full = True
    storage = DiskWriter(disk)
    storage.submit([write(1)])
    assert isinstance(finish(storage, 1)[0], PersistFailed)
    disk.syncs_full = False
    storage.submit([write(2)])
    assert isinstance(finish(storage, 1)[0], PersistFailed)
    storage.close()


def test_full_disk_does_not_prevent_a_node_from_stopping(tmp_path):
    storage = DiskWriter(FullDisk(tmp_path))
    storage.submit([write(1)])
    storage.close()


def test_all_operations_are_on_disk_in_order(tmp_path):
    storage = DiskWriter(DataDirectory(str(tmp_path)))
    storage.submit(
        [
            write(1, "segments/one", 0, b"hello"),
            write(2, "segments/one", 5, b" world"),
            Persist(3, (Replace("state", b"old"), Replace("state", b"new"))),
            Persist(4, (WriteAt("spare", 0, b"s"), Rename("spare", "segments/two"))),
            Persist(5, (WriteAt("gone", 0, b"g"), Remove("gone"), Remove("gone"))),
            Persist(6, ()),
        ]
    )
    assert finish(storage, 6) == [Persisted(ticket) for ticket in range(1, 7)]
    storage.close()
    assert (tmp_path / "segments/one").read_bytes() == b"hello world"
    assert (tmp_path / "state").read_bytes() == b"new"
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["one", "segments", "state", "two"]


def test_write_after_a_rename_goes_to_the_new_file(tmp_path):
    storage = DiskWriter(DataDirectory(str(tmp_path)))
    operations = (WriteAt("a", 0, b"first"), Rename("a", "b"), WriteAt("a", 0, b"second"), WriteAt("b", 0, b"F"))
    storage.submit([Persist(1, operations)])
    finish(storage, 1)
    storage.close()
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"second", b"First")


def test_files_and_folders_are_accessible_only_to_their_owner(tmp_path):
    storage = DiskWriter(DataDirectory(str(tmp_path / "data")))
    storage.submit([write(1, "segments/one"), Persist(2, (Replace("state", b"s"),))])
    finish(storage, 2)
    storage.close()
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in [tmp_path / "data", *(tmp_path / "data").rglob("*")]}
    assert modes == {"data": 0o700, "segments": 0o700, "one": 0o600, "state": 0o600}


def test_group_of_writes_syncs_each_file_once(tmp_path):
    disk = Recorder(tmp_path)
    files = DataFiles(disk)
    for name in ("a", "b"):
        files.perform(WriteAt(name, 0, b"x"))
    files.sync()
    disk.calls.clear()
    for position in range(50):
        files.perform(WriteAt("ab"[position % 2], position, b"x"))
    files.sync()
    files.sync()
    files.close()
    assert disk.calls == ["write"] * 50 + ["sync"] * 2


def test_renames_happen_only_between_syncs(tmp_path):
    disk = Recorder(tmp_path)
    files = DataFiles(disk)
    files.perform(WriteAt("log", 0, b"x"))
    disk.calls.clear()
    files.perform(Replace("state", b"points into log"))
    files.close()
    assert disk.calls == ["sync", "write", "sync", "rename state", "sync_directory ."]


@pytest.mark.parametrize("fail", ["write", "sync"])
def test_all_operations_after_an_error_fail_without_a_retry(tmp_path, fail):
    disk = Recorder(tmp_path, fail, at=2)
    storage = DiskWriter(disk)
    storage.submit([write(1)])
    assert finish(storage, 1) == [Persisted(1)]
    storage.submit([write(2), write(3)])
    done = finish(storage, 2)
    calls = list(disk.calls)
    storage.submit([write(4)])
    done += finish(storage, 1)
    storage.close()
    assert [(type(d), d.ticket) for d in done] == [(PersistFailed, 2), (PersistFailed, 3), (PersistFailed, 4)]
    assert all("Input/output error" in d.reason for d in done)
    assert disk.calls == calls


@pytest.mark.parametrize("name", ["/etc/passwd", "../out", "a/../../b", "", "a//b", "./a", "a\0b", "a/.."])
def test_names_outside_the_directory_are_refused(tmp_path, name):
    with pytest.raises(StorageError):
        check_name(name)
    storage = DiskWriter(DataDirectory(str(tmp_path / "data")))
    storage.submit([write(1, name)])
    assert isinstance(finish(storage, 1)[0], PersistFailed)
    storage.close()


def test_symbolic_link_is_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"keep")
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").symlink_to(outside)
    storage = DiskWriter(DataDirectory(str(data)))
    storage.submit([write(1)])
    assert isinstance(finish(storage, 1)[0], PersistFailed)
    storage.close()
    assert outside.read_bytes() == b"keep"


def test_open_files_are_bounded(tmp_path):
    storage = DiskWriter(DataDirectory(str(tmp_path)))
    before = len(os.listdir("/proc/self/fd"))
    storage.submit([write(number, f"f{number}", 0, b"%d" % number) for number in range(200)])
    finish(storage, 200)
    assert len(os.listdir("/proc/self/fd")) <= before + 64
    storage.close()
    assert all((tmp_path / f"f{number}").read_bytes() == b"%d" % number for number in range(200))


def test_full_queue_blocks_the_node_and_never_overflows(tmp_path):
    storage = DiskWriter(DataDirectory(str(tmp_path)), queue_bytes_max=10_000)
    for ticket in range(100):
        storage.submit([write(ticket, data=bytes(4000))])
        assert storage.queued_bytes <= 14_000
    assert [d.ticket for d in finish(storage, 100)] == list(range(100))
    storage.close()


def test_close_finishes_queued_operations(tmp_path):
    storage = DiskWriter(DataDirectory(str(tmp_path)))
    storage.submit([write(ticket, position=ticket, data=b"%d" % (ticket % 10)) for ticket in range(10)])
    storage.close()
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_small_writes_are_on_disk_when_submit_returns(tmp_path, monkeypatch):
    monkeypatch.setattr("chaplain.runtime.disk.writer.SLOW_NS", 10**12)  # however busy the machine is
    disk = Recorder(tmp_path)
    storage = DiskWriter(disk)
    storage.submit([write(1)])
    finish(storage, 1)
    del disk.calls[:]
    storage.submit([write(2, position=1), write(3, position=2)])
    assert disk.calls == ["write", "write", "sync"], "the thread was asked, or each ticket had a sync of its own"
    assert storage.completed() == [Persisted(2), Persisted(3)]
    storage.close()


def test_immediate_completions_are_reported_at_once_and_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr("chaplain.runtime.disk.writer.SLOW_NS", 10**12)
    storage = DiskWriter(DataDirectory(str(tmp_path)))
    assert storage.write_now([write(1), write(2)]) == [Persisted(1), Persisted(2)]
    assert storage.completed() == []
    assert storage.write_now([Persist(3, (Replace("b", b"x"),))]) == []
    storage.submit([Persist(3, (Replace("b", b"x"),))])
    assert select.select([storage.fd], [], [], 20)[0]
    assert storage.write_now([write(4)]) == [], "what the thread finished was not told yet"
    assert finish(storage, 1) == [Persisted(3)]
    storage.close()


def test_slow_disk_moves_writes_to_the_thread(tmp_path, monkeypatch):
    monkeypatch.setattr("chaplain.runtime.disk.writer.SLOW_NS", -1)  # whatever it takes is slow
    submitters: list[int] = []

    class Watched(DataDirectory):
        def sync(self, fd):
            submitters.append(threading.get_ident())
            super().sync(fd)

    storage = DiskWriter(Watched(str(tmp_path)))
    for ticket in (1, 2):
        storage.submit([write(ticket)])
        finish(storage, 1)
    storage.close()
    assert (submitters[-2] == threading.get_ident(), submitters[-1] == threading.get_ident()) == (True, False)


def test_large_writes_and_renames_go_to_the_thread(tmp_path):
    disk = Recorder(tmp_path)
    storage = DiskWriter(disk)
    held = threading.Event()
    entered = threading.Event()

    def hold(call):
        entered.set()
        assert held.wait(20)

    disk._note = hold
    storage.submit([write(1, data=bytes(SMALL_BYTES + 1)), Persist(2, (Replace("b", b"x"),))])
    assert entered.wait(20)
    assert storage.completed() == [], "the submitter was held up"
    held.set()
    assert finish(storage, 2) == [Persisted(1), Persisted(2)]
    storage.close()


def test_failed_small_write_fails_all_later_operations(tmp_path):
    disk = Recorder(tmp_path, "sync", at=2)
    storage = DiskWriter(disk)
    storage.submit([write(1)])
    storage.submit([write(2)])
    storage.submit([write(3)])
    done = finish(storage, 3)
    assert [type(each) for each in done] == [Persisted, PersistFailed, PersistFailed]
    storage.close()


def test_lazy_writes_are_written_and_not_synced(tmp_path):
    disk = Recorder(tmp_path)
    storage = DiskWriter(disk)
    storage.submit([write(1, "log"), write(2, "jot")])
    finish(storage, 2)
    del disk.calls[:]
    storage.submit([Persist(3, (WriteAt("log", 1, b"y"), WriteAt("jot", 0, b"z", lazy=True)))])
    finish(storage, 1)
    assert disk.calls == ["write", "write", "sync"]
    assert (tmp_path / "jot").read_bytes() == b"z"
    storage.close()
