"""Copies of SQLite files: made online with SQLite's backup API, kept, sent and installed.

    NAME.sqlite.kept   a complete, synced copy of the database at some message; the journal may drop earlier messages
    NAME.sqlite.copy   another node's copy while it is being received
    NAME.sqlite.damaged, NAME.sqlite.kept.damaged   a damaged file that was replaced

Decides the file layout and when files are durable. Does not know when a copy is needed.

Invariants: a kept copy is replaced atomically by a complete one; the database is replaced only by a copy of the same
stream with the right digest and right tallies.
"""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path

import apsw

from chaplain import durable
from chaplain.runtime.databases.change_log import CHANGES, begin_at, quoted
from chaplain.runtime.databases.interface import DatabaseDamaged, EngineFailed
from chaplain.runtime.databases.sqlite.integrity import check
from chaplain.runtime.databases.sqlite.metadata import state_of

PIECE_BYTES = 512 * 1024
KEPT, COPY, NEW, ASIDE = ".kept", ".copy", ".new", ".damaged"
_BESIDE = ("", "-wal", "-shm")


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def make_copy(path: Path) -> Path:
    """Copy the database as it is now to a temporary file; the writer is not blocked."""
    new = beside(path, KEPT + NEW)
    new.unlink(missing_ok=True)
    source, target = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY), apsw.Connection(str(new))
    try:
        with target.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(-1)
        target.pragma("journal_mode", "delete")
    finally:
        target.close()
        source.close()
    return new


def put_in_place(new: Path, path: Path) -> None:
    """Make a checked copy the kept one."""
    durable.sync(new)
    kept = beside(path, KEPT)
    new.rename(kept)
    durable.sync(kept.parent)


def index_of(file: Path, stream: str) -> int:
    """The last complete message in a copy; 0 if there is no copy, or its position cannot be read."""
    if not file.exists():
        return 0
    try:
        connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            state = state_of(connection, stream)
        finally:
            connection.close()
    except (apsw.Error, EngineFailed):
        return 0
    return 0 if state is None else state.applied


def digest_of(file: Path) -> bytes:
    with file.open("rb") as opened:
        digest = sha256()
        while piece := opened.read(1 << 20):
            digest.update(piece)
    return digest.digest()


def read_piece(file: Path, position: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(position)
        return opened.read(PIECE_BYTES)


def write_piece(path: Path, position: int, data: bytes) -> Path:
    """Write a piece of the copy that is being received; position 0 starts a new one."""
    copy = beside(path, COPY)
    with copy.open("wb" if not position else "r+b") as opened:
        opened.seek(position)
        opened.write(data)
        opened.truncate()
    return copy


def restore(path: Path, stream: str) -> int:
    """Replace the database with the kept copy, if there is an intact one. Return its number of row changes, else 0."""
    kept, copy = beside(path, KEPT), beside(path, COPY)
    changes = 0
    if kept.exists():
        shutil.copyfile(kept, copy)
        try:
            changes = check(copy, stream).changes
            replace(copy, path)
        except DatabaseDamaged:
            copy.unlink()
            set_aside(kept)
    return changes


def set_aside(file: Path) -> None:
    """Rename a damaged file for later inspection; only the latest one is kept."""
    for suffix in _BESIDE:
        if beside(file, suffix).exists():
            beside(file, suffix).rename(beside(file, ASIDE + suffix))
        else:
            beside(file, ASIDE + suffix).unlink(missing_ok=True)
    durable.sync(file.parent)


def rebuild(folder: Path, path: Path, stream: str) -> None:
    """Set the damaged database aside and restore the kept copy, if it is intact.

    The row changes that the damaged database reported are invalid, too: the log of row changes starts again.
    """
    set_aside(path)
    begin_at(folder / CHANGES / quoted(stream), restore(path, stream))


def replace(copy: Path, path: Path) -> None:
    """Replace the database, which is closed, with a copy."""
    durable.sync(copy)
    remove(path)
    copy.rename(path)
    durable.sync(path.parent)


def remove(path: Path) -> None:
    """Delete the database, which is closed, with SQLite's files beside it."""
    for suffix in _BESIDE:
        beside(path, suffix).unlink(missing_ok=True)
