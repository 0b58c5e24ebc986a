"""Writes small files that survive a power loss: file and directory entry are on disk when these functions return."""

from __future__ import annotations

import os
from pathlib import Path


def write_new(file: Path, text: str) -> None:
    """Create the file, readable by its owner only. Raises FileExistsError if it exists; deletes it if a write fails."""
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _fill(fd, text)
    except OSError:
        file.unlink(missing_ok=True)
        raise
    sync(file.parent)


def put(file: Path, text: str, mode: int = 0o600) -> None:
    """Replace the file's content atomically: after a crash it has the new content or the previous one."""
    fresh = file.with_name(file.name + ".new")
    _fill(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), text)
    fresh.replace(file)
    sync(file.parent)


def sync(path: Path) -> None:
    """Sync a file, or a directory and the names in it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _fill(fd: int, text: str) -> None:
    with os.fdopen(fd, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(fd)
