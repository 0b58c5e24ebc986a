"""Copies of SQLite files: made by SQLite's own backup beside the running database, kept, given away and taken in.

    NAME.sqlite.kept   a whole, synced copy of the database at some message; the journal may drop what came before
    NAME.sqlite.copy   another node's copy, on its way here
    NAME.sqlite.damaged, NAME.sqlite.kept.damaged   what was found to be damaged, and made anew

Decides how files lie and when they are safe. Refuses to know when a copy is wanted.

Invariants: a kept copy is replaced by a whole one or not at all; the database is replaced only by a copy whose digest
holds, that is of the same stream and whose rows add up.
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


def put_in_place(new: Path, path: Path) -> None:
    """The copy, which was checked, is the kept one from now on."""
    durable.sync(new)
    kept = beside(path, KEPT)
    new.rename(kept)
    durable.sync(kept.parent)


def index_of(file: Path, stream: str) -> int:
    """The last message that is wholly in a copy; 0 if there is none, or it does not say."""
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
    """Append to the copy that is on its way here; its first piece begins it."""
    copy = beside(path, COPY)
    with copy.open("wb" if not position else "r+b") as opened:
        opened.seek(position)
        opened.write(data)
        opened.truncate()
    return copy


def restore(path: Path, stream: str) -> int:
    """Put the kept copy in the database's place, if there is one and it is whole; gives the row changes it has made."""
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
    """Out of the way, for whoever wants to know what became of it; only the latest is left."""
    for suffix in _BESIDE:
        if beside(file, suffix).exists():
            beside(file, suffix).rename(beside(file, ASIDE + suffix))
        else:
            beside(file, ASIDE + suffix).unlink(missing_ok=True)
    durable.sync(file.parent)


def make_anew(folder: Path, path: Path, stream: str) -> None:
    """What is there is set aside, and the kept copy put in its place, if that is whole.

    What the damaged one told of its rows counts for nothing, either: the log of row changes begins again.
    """
    set_aside(path)
    begin_at(folder / CHANGES / quoted(stream), restore(path, stream))


def replace(copy: Path, path: Path) -> None:
    """A copy takes the place of the database, which is closed."""
    durable.sync(copy)
    remove(path)
    copy.rename(path)
    durable.sync(path.parent)


def remove(path: Path) -> None:
    """The database, which is closed, with what SQLite keeps beside it."""
    for suffix in _BESIDE:
        beside(path, suffix).unlink(missing_ok=True)
