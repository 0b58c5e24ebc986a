"""Carries out the executor's errands: one engine per stream, used by worker threads.

An error in an engine stops this executor, not its node. Executors behave alike on every node, so a defect that one
statement triggers would otherwise stop every node, and again after each restart.

The core sends one errand at a time per database for applying, so no two threads apply to the same one. Reads run in
parallel with it; deletion of results takes turns with applying.
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
"""Bound of the cancellation flags; more than queries can be in progress."""


class Databases:
    def __init__(self, kind: str, folder: Path, server: Server | None = None, rows_bytes: int = 0) -> None:
        self._folder = folder
        self._open = partial(open_engine, kind, folder, server=server, rows_bytes=rows_bytes)
        self._engines: dict[str, DatabaseEngine] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._stopped: dict[int, threading.Event] = {}
        """Queries that run or wait to run: set once the query is cancelled."""

    def task_groups(self) -> list[TaskGroup]:
        """The thread pools: a client's long query delays only other queries."""
        works: dict[type, Callable[[Any], Any]] = {OpenDatabase: self.open, Apply: self.apply, TryOut: self.try_out}
        works |= {TakeResults: self.results, ClearResults: self.clear}
        from chaplain.runtime.databases.snapshots import CopyTasks  # noqa: PLC0415  a node loads only what it uses

        copies = CopyTasks(self._open, self._folder, self._engines, self._locks)
        task_groups = [
            TaskGroup(works, THREADS),
            TaskGroup({RunQuery: self.query}, THREADS),
            TaskGroup({StopQuery: self.stop}, 1),
        ]
        return [*task_groups, copies.task_group()]

    def open(self, errand: OpenDatabase) -> DatabaseOpened:
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            engine = self._open(errand.stream)
        except Exception as error:
            return DatabaseOpened(errand.stream, failed=describe_error(error))
        self._locks[errand.stream] = threading.Lock()
        self._engines[errand.stream] = engine
        return opened(errand.stream, engine)

    def apply(self, errand: Apply) -> Applied:
        engine = self._engines[errand.stream]
        steps: list[MessageApplied] = []
        try:
            for work in errand.works:
                with self._locks[errand.stream]:
                    steps.append(engine.apply(work))
        except Exception as error:
            return Applied(errand.stream, tuple(steps), describe_error(error))
        return Applied(errand.stream, tuple(steps))

    def try_out(self, errand: TryOut) -> Tried:
        """Dry-run a request. An error here does not stop the executor: `apply` will meet the same error and
        report it.
        """
        engine = self._engines[errand.stream]
        if not isinstance(engine, Rehearses):
            return Tried(errand.ticket, errand.stream, done=False)
        try:
            with self._locks[errand.stream]:
                error = engine.rehearse(errand.values, errand.timestamp_ns)
        except Exception:
            return Tried(errand.ticket, errand.stream, done=False)
        if error is None:
            return Tried(errand.ticket, errand.stream, done=True)
        return Tried(errand.ticket, errand.stream, True, error.kind, error.message)

    def query(self, errand: RunQuery) -> Looked:
        stopped = self._stopped.setdefault(errand.token, threading.Event())
        try:
            rows = self._engines[errand.stream].query(errand.sql, errand.parameters, stopped.is_set)
        except QueryFailed as error:
            return Looked(errand.token, kind="invalid", reason=str(error))
        except Exception as error:
            return Looked(errand.token, kind="stopped", reason=describe_error(error))
        finally:
            self._stopped.pop(errand.token, None)
        return Looked(errand.token, encode_any(rows))

    def stop(self, errand: StopQuery) -> Cleared:
        """Cancel a query, also one that waits for a thread. If the query has already finished, its flag is dropped
        later.
        """
        self._stopped.setdefault(errand.token, threading.Event()).set()
        while len(self._stopped) > STOPPED_MAX:
            self._stopped.pop(min(self._stopped), None)
        return Cleared(errand.stream)

    def results(self, errand: TakeResults) -> Looked:
        ids = (errand.client_id, errand.first_id, errand.last_id)
        try:
            if errand.read:
                with self._locks[errand.stream]:
                    self._engines[errand.stream].clear(errand.acl, errand.read)
            runs = self._engines[errand.stream].results(errand.acl, *ids)
        except Exception as error:
            return Looked(errand.token, kind="stopped", reason=describe_error(error))
        return Looked(errand.token, encode_runs(runs))

    def clear(self, errand: ClearResults) -> Cleared:
        with suppress(Exception), self._locks[errand.stream]:
            # If it fails, the results stay a while longer; `apply` will meet the same error and report it.
            self._engines[errand.stream].clear(errand.acl, errand.through)
        return Cleared(errand.stream)

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()


def describe_error(error: Exception) -> str:
    """The error message; for a defect of the program, with the file and line."""
    if isinstance(error, EngineFailed):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"a fault of the executor{where}: {type(error).__name__}: {error}"[:500]


def opened(stream: str, engine: DatabaseEngine) -> DatabaseOpened:
    more = {name: getattr(engine, name) for name in ("kept", "damage", "doubtful_rows") if hasattr(engine, name)}
    return DatabaseOpened(stream, engine.index, engine.fingerprint, read=engine.read, **more)
