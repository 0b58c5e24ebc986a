"""What a name on disk needs: the folder it stands in is synced, before anything after it."""

from __future__ import annotations

import os

import pytest

from chaplain import durable
from chaplain.core import Remove, Rename, Replace, WriteAt
from chaplain.runtime.disk.operations import OPEN_FILES_MAX, DataFiles
from chaplain.runtime.disk.syscalls import DataDirectory


class Names(DataDirectory):
    """A real disk that remembers what happened to names, and which were synced."""

    def __init__(self, directory) -> None:
        super().__init__(str(directory))
        self.calls: list[str] = []
        self._names: dict[int, str] = {}

    def open(self, name, flags):
        fd = super().open(name, flags)
        self._names[fd] = name
        if flags & os.O_CREAT:
            self.calls.append(f"create {name}")
        return fd

    def sync(self, fd):
        self.calls.append(f"sync {self._names[fd]}")
        super().sync(fd)

    def rename(self, name, to):
        self.calls.append(f"rename {name} {to}")
        super().rename(name, to)

    def remove(self, name):
        self.calls.append(f"remove {name}")
        super().remove(name)

    def make_directory(self, name):
        super().make_directory(name)
        self.calls.append(f"make {name}")

    def sync_directory(self, name):
        self.calls.append(f"sync {name or '.'}/")
        super().sync_directory(name)


@pytest.fixture
def disk(tmp_path):
    return Names(tmp_path)


def test_new_file_and_its_folders_are_synced_before_it_is_written(disk):
    files = DataFiles(disk)
    files.perform(WriteAt("a/b/c", 0, b"x"))
    assert disk.calls == ["make a", "sync ./", "make a/b", "sync a/", "create a/b/c", "sync a/b/"]
    files.sync()
    assert disk.calls[-1] == "sync a/b/c"
    files.close()


def test_renamed_file_is_synced_before_and_after(disk):
    files = DataFiles(disk)
    files.perform(WriteAt("a", 0, b"x"))
    disk.calls.clear()
    files.perform(Rename("a", "folder/b"))
    assert disk.calls == ["sync a", "make folder", "sync ./", "rename a folder/b", "sync folder/", "sync ./"]
    disk.calls.clear()
    files.perform(Remove("folder/b"))
    assert disk.calls == ["remove folder/b", "sync folder/"]
    files.close()


def test_replaced_file_is_synced_before_it_gets_its_name(disk):
    files = DataFiles(disk)
    files.perform(Replace("a", b"x"))
    assert disk.calls == ["create a.new", "sync a.new", "rename a.new a", "sync ./"]
    files.close()


def test_file_closed_to_free_a_descriptor_is_synced_first(disk, tmp_path):
    files = DataFiles(disk)
    for number in range(OPEN_FILES_MAX):
        files.perform(WriteAt(f"{number}", 0, b"x"))
    files.sync()
    files.perform(WriteAt("0", 0, b"y"))
    for number in range(1, OPEN_FILES_MAX):
        files.perform(WriteAt(f"{number}", 0, b"y"))
    disk.calls.clear()
    (tmp_path / "more").touch()  # so that opening it makes no name
    files.perform(WriteAt("more", 0, b"x"))
    assert disk.calls == ["sync 0"]
    files.close()


def _synced(monkeypatch, act) -> list[str]:
    """Which paths were synced while it was done."""
    seen: list[str] = []
    fsync = os.fsync
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: (seen.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
        act()
    return seen


def test_small_file_is_synced_with_its_name(tmp_path, monkeypatch):
    file = tmp_path / "a"
    assert _synced(monkeypatch, lambda: durable.write_new(file, "x\n")) == [str(file), str(tmp_path)]
    with pytest.raises(FileExistsError):
        durable.write_new(file, "y\n")
    assert file.read_text() == "x\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert _synced(monkeypatch, lambda: durable.put(file, "y\n")) == [f"{file}.new", str(tmp_path)]
    assert file.read_text() == "y\n"


def test_small_file_that_cannot_be_written_is_not_created(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _fd: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(OSError, match="Input/output"):
        durable.write_new(tmp_path / "a", "x")
    assert list(tmp_path.iterdir()) == []
