"""Carries out the executor's errands about copies of databases: makes, sends, installs and checks them.

The rows of a copy are checked before it is kept, sent or installed. On request the database itself is checked, too.

Only SQLite databases are copied. For other engines, the node retains the log.
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
from chaplain.runtime.databases.workers import describe_error, opened
from chaplain.runtime.worker_pool import TaskGroup


class CopyTasks:
    """All copy errands run on one thread, because copies are large and not urgent."""

    def __init__(
        self,
        open_engine: Callable[[str], DatabaseEngine],
        folder: Path,
        engines: dict[str, DatabaseEngine],
        locks: dict[str, threading.Lock],
    ) -> None:
        self._open = open_engine
        self._folder = folder
        self._engines = engines
        self._locks = locks
        self._digests: dict[str, tuple[int, int, bytes]] = {}
        """Index, size and digest of each checked copy."""
        self._ending = threading.Event()

    def task_group(self) -> TaskGroup:
        works: dict[type, Callable[[Any], Any]] = {KeepDatabase: self.keep, ReadKept: self.read_kept}
        works |= {TakeCopy: self.take_copy, CheckDatabase: self.check, RemakeDatabase: self.remake}
        return TaskGroup(works, 1, self._ending.set)

    def keep(self, errand: KeepDatabase) -> DatabaseKept:
        engine = self._engines[errand.stream]
        if not isinstance(engine, SqliteDatabase):
            return DatabaseKept(errand.stream, failed="only SQLite databases are kept as copies")
        try:
            new = copies.make_copy(engine.path)
            checked = self._check(new, errand.stream)
            with self._locks[errand.stream]:
                engine.sync_changes()  # the log of row changes must contain at least those of the copy
            self._digests[errand.stream] = (checked.index, new.stat().st_size, copies.digest_of(new))
            copies.put_in_place(new, engine.path)
        except DatabaseDamaged as damage:
            new.unlink()
            return DatabaseKept(errand.stream, damage=str(damage))
        except Exception as error:
            return DatabaseKept(errand.stream, failed=describe_error(error))
        return DatabaseKept(errand.stream, checked.index)

    def read_kept(self, errand: ReadKept) -> KeptRead:
        engine = self._engines.get(errand.stream)
        try:
            assert isinstance(engine, SqliteDatabase)
            kept = copies.beside(engine.path, copies.KEPT)
            if errand.stream not in self._digests:
                index = self._check_kept(kept, errand.stream)
                self._digests[errand.stream] = (index, kept.stat().st_size, copies.digest_of(kept))
            return KeptRead(errand.token, *self._digests[errand.stream], copies.read_piece(kept, errand.position))
        except DatabaseDamaged as damage:
            return KeptRead(errand.token, damage=str(damage))
        except Exception:
            return KeptRead(errand.token)  # the asking executor turns to the next one

    def _check_kept(self, kept: Path, stream: str) -> int:
        """Check a copy that was made before this node started; it may have been damaged since."""
        try:
            return self._check(kept, stream).index
        except DatabaseDamaged:
            copies.set_aside(kept)
            raise

    def take_copy(self, errand: TakeCopy) -> CopyTaken | DatabaseOpened:
        try:
            engine = self._engines[errand.stream]
            assert isinstance(engine, SqliteDatabase)
            copy = copies.write_piece(engine.path, errand.position, errand.data)
            reached = errand.position + len(errand.data)
            if reached < errand.size_bytes:
                return CopyTaken(errand.stream, reached)
            if copies.digest_of(copy) != errand.digest:
                return CopyTaken(errand.stream, 0, failed="the copy does not have the announced digest")
            return self._install(errand.stream, engine, copy)
        except Exception as error:
            return CopyTaken(errand.stream, 0, failed=describe_error(error))

    def _install(self, stream: str, engine: SqliteDatabase, copy: Path) -> DatabaseOpened:
        changes = self._check(copy, stream).changes
        with self._locks[stream]:
            engine.close()
            begin_at(self._folder / CHANGES / quoted(stream), changes)
            copies.replace(copy, engine.path)
            self._engines[stream] = reopened = self._open(stream)
        return opened(stream, reopened)

    def check(self, errand: CheckDatabase) -> DatabaseChecked:
        engine = self._engines.get(errand.stream)
        if not isinstance(engine, SqliteDatabase):
            return DatabaseChecked(errand.stream)
        try:
            self._check(engine.path, errand.stream)
        except DatabaseDamaged as damage:
            return DatabaseChecked(errand.stream, str(damage))
        except Exception:
            return DatabaseChecked(errand.stream)  # `apply` will meet the same error and report it
        return DatabaseChecked(errand.stream)

    def _check(self, file: Path, stream: str) -> Checked:
        return check(file, stream, PAUSE_S, self._ending.is_set)

    def remake(self, errand: RemakeDatabase) -> DatabaseOpened:
        try:
            engine = self._engines[errand.stream]
            assert isinstance(engine, SqliteDatabase)
            with self._locks[errand.stream]:
                engine.close()
                self._digests.pop(errand.stream, None)
                copies.rebuild(self._folder, engine.path, errand.stream)
                self._engines[errand.stream] = reopened = self._open(errand.stream)
        except Exception as error:
            return DatabaseOpened(errand.stream, failed=describe_error(error))
        return opened(errand.stream, reopened)
