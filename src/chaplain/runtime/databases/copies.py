"""Does what the executor's core wants done about copies of databases: keeps them, gives them away, takes them in.

Only SQLite's are copied; whatever else executes streams has copies of its own, or none, and then the log stays.
"""

from __future__ import annotations

import threading
from pathlib import Path

from chaplain.executor.events import (
    CopyTaken,
    DatabaseKept,
    DatabaseOpened,
    KeepDatabase,
    KeptRead,
    ReadKept,
    TakeCopy,
)
from chaplain.runtime.databases import sqlite_copies as copies
from chaplain.runtime.databases.changes import CHANGES, begin_at, quoted
from chaplain.runtime.databases.engine import Engine, open_engine
from chaplain.runtime.databases.errands import opened, why
from chaplain.runtime.databases.sqlite import SqliteDatabase
from chaplain.runtime.labour import Crew


class Copies:
    """One thread does all of it: copies are large, and nobody waits for them."""

    def __init__(self, kind: str, folder: Path, engines: dict[str, Engine], turns: dict[str, threading.Lock]) -> None:
        self._kind = kind
        self._folder = folder
        self._engines = engines
        self._turns = turns
        self._digests: dict[str, tuple[int, int, bytes]] = {}
        """Index, size and digest of each copy that was asked for."""

    def crew(self) -> Crew:
        return Crew({KeepDatabase: self.keep, ReadKept: self.read_kept, TakeCopy: self.take_copy}, 1)

    def keep(self, wanted: KeepDatabase) -> DatabaseKept:
        engine = self._engines[wanted.stream]
        if not isinstance(engine, SqliteDatabase):
            return DatabaseKept(wanted.stream, failed="only SQLite databases are kept as copies")
        try:
            new = copies.make_copy(engine.path)
            with self._turns[wanted.stream]:
                engine.sync_changes()  # at least those that the copy has made
            index = copies.put_in_place(new, engine.path)
            self._digests.pop(wanted.stream, None)
        except Exception as error:
            return DatabaseKept(wanted.stream, failed=why(error))
        return DatabaseKept(wanted.stream, index)

    def read_kept(self, wanted: ReadKept) -> KeptRead:
        engine = self._engines.get(wanted.stream)
        try:
            assert isinstance(engine, SqliteDatabase)
            kept = copies.beside(engine.path, copies.KEPT)
            if wanted.stream not in self._digests:
                self._digests[wanted.stream] = (copies.index_of(kept), kept.stat().st_size, copies.digest_of(kept))
            return KeptRead(wanted.token, *self._digests[wanted.stream], copies.read_piece(kept, wanted.position))
        except Exception:
            return KeptRead(wanted.token)  # whoever asked goes on to the next one

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
        changes = copies.changes_of(copy, stream)
        with self._turns[stream]:
            engine.close()
            begin_at(self._folder / CHANGES / quoted(stream), changes)
            copies.replace(copy, engine.path)
            self._engines[stream] = reopened = open_engine(self._kind, self._folder, stream)
        return opened(stream, reopened)
