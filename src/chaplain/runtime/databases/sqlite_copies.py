"""Copies of SQLite files: made by SQLite's own backup beside the running database, kept, given away and taken in.

    NAME.sqlite.kept   a whole, synced copy of the database at some message; the journal may drop what came before
    NAME.sqlite.copy   another node's copy, on its way here

Decides how files lie and when they are safe. Refuses to know when a copy is wanted.

Invariants: a kept copy is replaced by a whole one or not at all; the database is replaced only by a copy whose digest
holds and that is of the same stream.
"""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path

import apsw

from chaplain import durable
from chaplain.runtime.databases.engine import EngineFailed
from chaplain.runtime.databases.sqlite_guard import OWN

PIECE_BYTES = 512 * 1024
KEPT, COPY, NEW = ".kept", ".copy", ".new"
_BESIDE = ("", "-wal", "-shm")


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def make_copy(path: Path) -> Path:
    """A copy of the database as it is now, not yet in place; whoever writes meanwhile is not held up."""
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


def put_in_place(new: Path, path: Path) -> int:
    """The copy is the kept one from now on; gives its last whole message."""
    index = index_of(new)
    durable.sync(new)
    kept = beside(path, KEPT)
    new.rename(kept)
    durable.sync(kept.parent)
    return index


def index_of(file: Path) -> int:
    """The last message that is wholly in a copy; 0 if there is none."""
    if not file.exists():
        return 0
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        ((index, whole),) = connection.execute(f"select idx, whole from {OWN}state")
    finally:
        connection.close()
    return int(index) if whole else int(index) - 1


def changes_of(file: Path, stream: str) -> int:
    """How many row changes a copy has made. `EngineFailed` if it is none of this stream's database."""
    try:
        connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            ((of_stream, changes),) = connection.execute(f"select stream, changes from {OWN}state")
        finally:
            connection.close()
    except (apsw.Error, ValueError) as error:
        raise EngineFailed(f"the copy is no database: {error}") from error
    if of_stream != stream:
        raise EngineFailed(f"the copy is of stream {of_stream!r}, not of {stream!r}")
    return int(changes)


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
    """Append to the copy that is on its way here; its first piece begins it."""
    copy = beside(path, COPY)
    with copy.open("wb" if not position else "r+b") as opened:
        opened.seek(position)
        opened.write(data)
        opened.truncate()
    return copy


def restore(path: Path) -> bool:
    """Put the kept copy in the database's place; False if there is none."""
    kept = beside(path, KEPT)
    if not kept.exists():
        return False
    copy = beside(path, COPY)
    shutil.copyfile(kept, copy)
    replace(copy, path)
    return True


def replace(copy: Path, path: Path) -> None:
    """A copy takes the place of the database, which is closed."""
    durable.sync(copy)
    for suffix in _BESIDE:
        beside(path, suffix).unlink(missing_ok=True)
    copy.rename(path)
    durable.sync(path.parent)
