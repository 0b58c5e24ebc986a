"""Performs file operations in order, so that a crash leaves a prefix of them on disk.

One exception makes many writes cheap: writes at positions of existing files are ordered only by the next `sync`.
Operations that change names (a new file, `Replace`, `Rename`, `Remove`) are barriers: everything before them is on disk
when they start, and they are on disk before the next operation starts.

Invariants: no name leads out of the data directory; each file is open at most once; at most `OPEN_FILES_MAX` files are
open.
"""

from __future__ import annotations

import errno
import os
from typing import assert_never

from chaplain.core import Operation, Remove, Rename, Replace, WriteAt
from chaplain.errors import StorageError
from chaplain.runtime.disk.syscalls import DataDirectory

OPEN_FILES_MAX = 64
FULL = (errno.ENOSPC, errno.EDQUOT)
_NEW = ".new"


def check_name(name: str) -> str:
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise StorageError(f"{name!r} is no name of a file in the data directory")
    return name


class NoRoom(Exception):
    """The disk is full. The failed operation can be retried as a whole; the operations before it took effect."""


class DataFiles:
    """The open files below a data directory.

    After an `OSError` or a `StorageError` the content of the disk is unknown. After `NoRoom` it is known, and the
    operation can be retried. Only writes raise `NoRoom`, never syncs: a sync that fails because the disk is full may
    have dropped written pages, like any other failed sync.
    """

    def __init__(self, disk: DataDirectory) -> None:
        self._disk = disk
        self._open: dict[str, int] = {}
        self._unsynced: dict[str, None] = {}

    def perform(self, operation: Operation) -> None:
        match operation:
            case WriteAt():
                self._write_at(operation)
            case Replace():
                self._replace(check_name(operation.file), operation.data)
            case Rename():
                self._rename(check_name(operation.file), check_name(operation.to))
            case Remove():
                self._remove(check_name(operation.file))
            case _:
                assert_never(operation)

    def sync(self) -> None:
        """Sync all files with unsynced writes. When it returns, all performed operations are on disk."""
        for name in list(self._unsynced):
            self._disk.sync(self._open[name])
            del self._unsynced[name]

    def close(self) -> None:
        for name in list(self._open):
            self._forget(name)
        self._disk.release()

    def _write_at(self, operation: WriteAt) -> None:
        name = operation.file
        fd = self._open.pop(name, None)
        if fd is None:
            fd = self._opened(check_name(name))
        self._open[name] = fd  # moved to the end: the dictionary is ordered by last use
        if not operation.lazy:
            self._unsynced[name] = None
        self._write(fd, operation.data, operation.position)

    def _write(self, fd: int, data: bytes, position: int) -> None:
        try:
            self._disk.write(fd, data, position)
        except OSError as error:
            raise (NoRoom(str(error)) if error.errno in FULL else error) from error

    def _open_new(self, name: str, flags: int) -> int:
        try:
            return self._disk.open(name, os.O_WRONLY | os.O_CREAT | flags)
        except OSError as error:
            raise (NoRoom(str(error)) if error.errno in FULL else error) from error

    def _opened(self, name: str) -> int:
        if len(self._open) >= OPEN_FILES_MAX:
            self._close_oldest()
        try:
            return self._disk.open(name, os.O_WRONLY)
        except FileNotFoundError:
            return self._create(name)

    def _create(self, name: str) -> int:
        self.sync()
        self._make_parents(name)
        fd = self._open_new(name, os.O_EXCL)
        self._sync_parent(name)
        return fd

    def _make_parents(self, name: str) -> None:
        parts = name.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            folder = "/".join(parts[:depth])
            try:
                self._disk.make_directory(folder)
            except FileExistsError:
                continue
            self._sync_parent(folder)

    def _sync_parent(self, name: str) -> None:
        self._disk.sync_directory(name.rpartition("/")[0])

    def _close_oldest(self) -> None:
        oldest = next(iter(self._open))
        if oldest in self._unsynced:
            self._disk.sync(self._open[oldest])
        self._forget(oldest)

    def _forget(self, name: str) -> None:
        self._unsynced.pop(name, None)
        fd = self._open.pop(name, None)
        if fd is not None:
            self._disk.close(fd)

    def _replace(self, name: str, data: bytes) -> None:
        self.sync()
        self._forget(name)
        self._make_parents(name)
        fd = self._open_new(name + _NEW, os.O_TRUNC)
        try:
            self._write(fd, data, 0)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        self._disk.rename(name + _NEW, name)
        self._sync_parent(name)

    def _rename(self, name: str, to: str) -> None:
        self.sync()
        self._forget(name)
        self._forget(to)
        self._make_parents(to)
        self._disk.rename(name, to)
        self._sync_parent(to)
        self._sync_parent(name)

    def _remove(self, name: str) -> None:
        self.sync()
        self._forget(name)
        try:
            self._disk.remove(name)
        except OSError as error:
            # After a crash a node repeats the removal, so the file may be gone already.
            if error.errno != errno.ENOENT:
                raise
        self._sync_parent(name)
