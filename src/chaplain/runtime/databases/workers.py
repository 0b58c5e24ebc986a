"""Does what the executor's core wants done: one engine for each stream, used by threads of their own.

Whatever goes wrong in an engine stops this executor and not its node: executors do alike everywhere, so a fault of ours
that one statement meets would otherwise end every node, and again after each start.

The core hands over one piece of work at a time for each database, so no two threads apply to the same one; reading and
clearing go beside it, clearing in turn with applying.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from chaplain.executor.events import (
    Applied,
    Apply,
    Cleared,
    ClearResults,
    DatabaseOpened,
    Looked,
    MessageApplied,
    OpenDatabase,
    RunQuery,
    StopQuery,
    TakeResults,
    Tried,
    TryOut,
)
from chaplain.executor.messages import encode_runs
from chaplain.executor.statement import encode_any
from chaplain.runtime.databases.interface import (
    DatabaseEngine,
    EngineFailed,
    QueryFailed,
    Rehearses,
    Server,
    open_engine,
)
from chaplain.runtime.worker_pool import TaskGroup

THREADS = 4
STOPPED_MAX = 1024
"""More than queries can wait at a time."""


class Databases:
    def __init__(self, kind: str, folder: Path, server: Server | None = None, rows_bytes: int = 0) -> None:
        self._folder = folder
        self._open = partial(open_engine, kind, folder, server=server, rows_bytes=rows_bytes)
        self._engines: dict[str, DatabaseEngine] = {}
        self._turns: dict[str, threading.Lock] = {}
        self._stopped: dict[int, threading.Event] = {}
        """Queries that run, or wait to: whether they were given up."""

    def crews(self) -> list[TaskGroup]:
        """Who does what: a client's long query holds up nothing but other queries."""
        works: dict[type, Callable[[Any], Any]] = {OpenDatabase: self.open, Apply: self.apply, TryOut: self.try_out}
        works |= {TakeResults: self.results, ClearResults: self.clear}
        from chaplain.runtime.databases.snapshots import Copies  # noqa: PLC0415  a node loads only what it uses

        copies = Copies(self._open, self._folder, self._engines, self._turns)
        crews = [
            TaskGroup(works, THREADS),
            TaskGroup({RunQuery: self.query}, THREADS),
            TaskGroup({StopQuery: self.stop}, 1),
        ]
        return [*crews, copies.crew()]

    def open(self, wanted: OpenDatabase) -> DatabaseOpened:
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            engine = self._open(wanted.stream)
        except Exception as error:
            return DatabaseOpened(wanted.stream, failed=why(error))
        self._turns[wanted.stream] = threading.Lock()
        self._engines[wanted.stream] = engine
        return opened(wanted.stream, engine)

    def apply(self, wanted: Apply) -> Applied:
        engine = self._engines[wanted.stream]
        steps: list[MessageApplied] = []
        try:
            for work in wanted.works:
                with self._turns[wanted.stream]:
                    steps.append(engine.apply(work))
        except Exception as error:
            return Applied(wanted.stream, tuple(steps), why(error))
        return Applied(wanted.stream, tuple(steps))

    def try_out(self, wanted: TryOut) -> Tried:
        """Whatever goes wrong in it is no reason to stop: who applies will meet the same trouble, and say so."""
        engine = self._engines[wanted.stream]
        if not isinstance(engine, Rehearses):
            return Tried(wanted.ticket, wanted.stream, done=False)
        try:
            with self._turns[wanted.stream]:
                error = engine.rehearse(wanted.values, wanted.timestamp_ns)
        except Exception:
            return Tried(wanted.ticket, wanted.stream, done=False)
        if error is None:
            return Tried(wanted.ticket, wanted.stream, done=True)
        return Tried(wanted.ticket, wanted.stream, True, error.kind, error.message)

    def query(self, wanted: RunQuery) -> Looked:
        stopped = self._stopped.setdefault(wanted.token, threading.Event())
        try:
            rows = self._engines[wanted.stream].query(wanted.sql, wanted.parameters, stopped.is_set)
        except QueryFailed as error:
            return Looked(wanted.token, kind="invalid", reason=str(error))
        except Exception as error:
            return Looked(wanted.token, kind="stopped", reason=why(error))
        finally:
            self._stopped.pop(wanted.token, None)
        return Looked(wanted.token, encode_any(rows))

    def stop(self, wanted: StopQuery) -> Cleared:
        """Also of one that waits for its turn. For one that is over it is too late, and forgotten by and by."""
        self._stopped.setdefault(wanted.token, threading.Event()).set()
        while len(self._stopped) > STOPPED_MAX:
            self._stopped.pop(min(self._stopped), None)
        return Cleared(wanted.stream)

    def results(self, wanted: TakeResults) -> Looked:
        ids = (wanted.client_id, wanted.first_id, wanted.last_id)
        try:
            if wanted.read:
                with self._turns[wanted.stream]:
                    self._engines[wanted.stream].clear(wanted.acl, wanted.read)
            runs = self._engines[wanted.stream].results(wanted.acl, *ids)
        except Exception as error:
            return Looked(wanted.token, kind="stopped", reason=why(error))
        return Looked(wanted.token, encode_runs(runs))

    def clear(self, wanted: ClearResults) -> Cleared:
        with suppress(Exception), self._turns[wanted.stream]:
            # If it fails, what was read stays a while longer; applying will meet the same trouble, and say so.
            self._engines[wanted.stream].clear(wanted.acl, wanted.through)
        return Cleared(wanted.stream)

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()


def why(error: Exception) -> str:
    """A fault of ours is told with its place."""
    if isinstance(error, EngineFailed):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"a fault of the executor{where}: {type(error).__name__}: {error}"[:500]


def opened(stream: str, engine: DatabaseEngine) -> DatabaseOpened:
    more = {name: getattr(engine, name) for name in ("kept", "damage", "doubtful_rows") if hasattr(engine, name)}
    return DatabaseOpened(stream, engine.index, engine.fingerprint, read=engine.read, **more)
