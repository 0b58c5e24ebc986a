"""Does what the executor's core wants done about copies of databases: keeps them, gives them away, takes them in.

No copy is kept, given away or taken in before its rows were read again; so is the database itself, if that is wanted.

Only SQLite's are copied; whatever else executes streams has copies of its own, or none, and then the log stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaplain.executor.events import (
    CheckDatabase,
    CopyTaken,
    DatabaseChecked,
    DatabaseKept,
    DatabaseOpened,
    KeepDatabase,
    KeptRead,
    ReadKept,
    RemakeDatabase,
    TakeCopy,
)
from chaplain.runtime.databases.change_log import CHANGES, begin_at, quoted
from chaplain.runtime.databases.interface import DatabaseDamaged, DatabaseEngine
from chaplain.runtime.databases.sqlite import backup as copies
from chaplain.runtime.databases.sqlite.database import SqliteDatabase
from chaplain.runtime.databases.sqlite.integrity import PAUSE_S, Checked, check
from chaplain.runtime.databases.workers import opened, why
from chaplain.runtime.worker_pool import TaskGroup


class Copies:
    """One thread does all of it: copies are large, and nobody waits for them."""

    def __init__(
        self,
        open_engine: Callable[[str], DatabaseEngine],
        folder: Path,
        engines: dict[str, DatabaseEngine],
        turns: dict[str, threading.Lock],
    ) -> None:
        self._open = open_engine
        self._folder = folder
        self._engines = engines
        self._turns = turns
        self._digests: dict[str, tuple[int, int, bytes]] = {}
        """Index, size and digest of each copy that was checked."""
        self._ending = threading.Event()

    def crew(self) -> TaskGroup:
        works: dict[type, Callable[[Any], Any]] = {KeepDatabase: self.keep, ReadKept: self.read_kept}
        works |= {TakeCopy: self.take_copy, CheckDatabase: self.check, RemakeDatabase: self.remake}
        return TaskGroup(works, 1, self._ending.set)

    def keep(self, wanted: KeepDatabase) -> DatabaseKept:
        engine = self._engines[wanted.stream]
        if not isinstance(engine, SqliteDatabase):
            return DatabaseKept(wanted.stream, failed="only SQLite databases are kept as copies")
        try:
            new = copies.make_copy(engine.path)
            checked = self._check(new, wanted.stream)
            with self._turns[wanted.stream]:
                engine.sync_changes()  # at least those that the copy has made
            self._digests[wanted.stream] = (checked.index, new.stat().st_size, copies.digest_of(new))
            copies.put_in_place(new, engine.path)
        except DatabaseDamaged as damage:
            new.unlink()
            return DatabaseKept(wanted.stream, damage=str(damage))
        except Exception as error:
            return DatabaseKept(wanted.stream, failed=why(error))
        return DatabaseKept(wanted.stream, checked.index)

    def read_kept(self, wanted: ReadKept) -> KeptRead:
        engine = self._engines.get(wanted.stream)
        try:
            assert isinstance(engine, SqliteDatabase)
            kept = copies.beside(engine.path, copies.KEPT)
            if wanted.stream not in self._digests:
                index = self._check_kept(kept, wanted.stream)
                self._digests[wanted.stream] = (index, kept.stat().st_size, copies.digest_of(kept))
            return KeptRead(wanted.token, *self._digests[wanted.stream], copies.read_piece(kept, wanted.position))
        except DatabaseDamaged as damage:
            return KeptRead(wanted.token, damage=str(damage))
        except Exception:
            return KeptRead(wanted.token)  # whoever asked goes on to the next one

    def _check_kept(self, kept: Path, stream: str) -> int:
        """Made before this node started: what has become of it since?"""
        try:
            return self._check(kept, stream).index
        except DatabaseDamaged:
            copies.set_aside(kept)
            raise

    def take_copy(self, wanted: TakeCopy) -> CopyTaken | DatabaseOpened:
        try:
            engine = self._engines[wanted.stream]
            assert isinstance(engine, SqliteDatabase)
            copy = copies.write_piece(engine.path, wanted.position, wanted.data)
            reached = wanted.position + len(wanted.data)
            if reached < wanted.size_bytes:
                return CopyTaken(wanted.stream, reached)
            if copies.digest_of(copy) != wanted.digest:
                return CopyTaken(wanted.stream, 0, failed="the copy is not what it was said to be")
            return self._install(wanted.stream, engine, copy)
        except Exception as error:
            return CopyTaken(wanted.stream, 0, failed=why(error))

    def _install(self, stream: str, engine: SqliteDatabase, copy: Path) -> DatabaseOpened:
        changes = self._check(copy, stream).changes
        with self._turns[stream]:
            engine.close()
            begin_at(self._folder / CHANGES / quoted(stream), changes)
            copies.replace(copy, engine.path)
            self._engines[stream] = reopened = self._open(stream)
        return opened(stream, reopened)

    def check(self, wanted: CheckDatabase) -> DatabaseChecked:
        engine = self._engines.get(wanted.stream)
        if not isinstance(engine, SqliteDatabase):
            return DatabaseChecked(wanted.stream)
        try:
            self._check(engine.path, wanted.stream)
        except DatabaseDamaged as damage:
            return DatabaseChecked(wanted.stream, str(damage))
        except Exception:
            return DatabaseChecked(wanted.stream)  # whoever applies will meet the same trouble, and say so
        return DatabaseChecked(wanted.stream)

    def _check(self, file: Path, stream: str) -> Checked:
        return check(file, stream, PAUSE_S, self._ending.is_set)

    def remake(self, wanted: RemakeDatabase) -> DatabaseOpened:
        try:
            engine = self._engines[wanted.stream]
            assert isinstance(engine, SqliteDatabase)
            with self._turns[wanted.stream]:
                engine.close()
                self._digests.pop(wanted.stream, None)
                copies.make_anew(self._folder, engine.path, wanted.stream)
                self._engines[wanted.stream] = reopened = self._open(wanted.stream)
        except Exception as error:
            return DatabaseOpened(wanted.stream, failed=why(error))
        return opened(wanted.stream, reopened)
