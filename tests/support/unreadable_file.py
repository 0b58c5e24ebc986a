"""Makes a page of a file unreadable for this process: reads of it end with EIO, as with a bad sector."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

PAGE_BYTES = 4096


def make_unreadable(monkeypatch: pytest.MonkeyPatch, path: Path, offset: int, size_bytes: int = PAGE_BYTES) -> None:
    """As Linux does it, a read that reaches the bad place ends before it, and one that begins there fails."""
    inode, bad = path.stat().st_ino, range(offset, offset + size_bytes)
    pread, preadv = os.pread, os.preadv

    def bound(descriptor: int, size: int, position: int) -> int:
        if os.fstat(descriptor).st_ino != inode or position >= bad.stop or position + size <= bad.start:
            return size
        if position >= bad.start:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bad.start - position

    def bounded_pread(descriptor: int, size: int, position: int) -> bytes:
        return pread(descriptor, bound(descriptor, size, position), position)

    def bounded_preadv(descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        [buffer] = buffers
        return preadv(descriptor, [buffer[: bound(descriptor, len(buffer), position)]], position)

    monkeypatch.setattr(os, "pread", bounded_pread)
    monkeypatch.setattr(os, "preadv", bounded_preadv)
