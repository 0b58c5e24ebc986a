"""The system calls of the storage code, in one class so that tests can make each of them fail."""

from __future__ import annotations

import os


class DataDirectory:
    """The files below one directory. It holds the directory open and resolves all names relative to it (`dir_fd`)."""

    def __init__(self, directory: str) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._root_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._root_fd)

    def write(self, fd: int, data: bytes, position: int) -> None:
        written = os.pwrite(fd, data, position)
        while written < len(data):  # a short write, which is rare
            written += os.pwrite(fd, memoryview(data)[written:], position + written)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def rename(self, name: str, to: str) -> None:
        os.replace(name, to, src_dir_fd=self._root_fd, dst_dir_fd=self._root_fd)

    def remove(self, name: str) -> None:
        os.unlink(name, dir_fd=self._root_fd)

    def make_directory(self, name: str) -> None:
        os.mkdir(name, 0o700, dir_fd=self._root_fd)

    def sync_directory(self, name: str) -> None:
        fd = os.open(name or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root_fd)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def release(self) -> None:
        os.close(self._root_fd)
