"""Deterministic time and random functions for SQL: both derive from the cluster message, so all executors agree.

SQLite itself computes functions of time, on a second connection whose clock shows the time of the message. Local time
is refused, because it depends on the machine. Random values are a sequence of hashes, seeded with the message's hash
and the request's offset in the stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import sha256

import apsw

from chaplain.runtime.databases.sqlite.statement_guard import LENGTH_MAX

_CLOCK = "chaplain-clock"
_EPOCH_MS = 210_866_760_000_000
"""1970-01-01 in milliseconds of the Julian day."""
_TIMES = ("date", "time", "datetime", "julianday", "unixepoch", "strftime", "timediff")
_NOWS = {"current_date": "date", "current_time": "time", "current_timestamp": "datetime"}
_local = threading.local()


class LocalTimeUsed(Exception):
    """A statement asked for local time."""


class _Clock(apsw.VFS):
    """A VFS whose clock shows the time that the calling thread has set."""

    def __init__(self) -> None:
        super().__init__(_CLOCK, "")

    def xCurrentTimeInt64(self) -> int:  # noqa: N802 SQLite's name
        return _EPOCH_MS + int(getattr(_local, "now_ms", 0))


_clock: list[_Clock] = []
_clock_lock = threading.Lock()


class DeterministicFunctions:
    """Time and random functions of one connection. Call `set` before each request."""

    def __init__(self, connection: apsw.Connection) -> None:
        with _clock_lock:
            if not _clock:
                _clock.append(_Clock())
        self._clock_connection = apsw.Connection(":memory:", vfs=_CLOCK)
        self._now_ns = 0
        self._seed = (b"", 0)
        self._count = 0
        for name in _TIMES:
            self._register(connection, name, self._time_function(name), -1)
        for name, function in _NOWS.items():
            self._register(connection, name, self._now_function(function), 0)
        self._register(connection, "random", self._random, 0)
        self._register(connection, "randomblob", self._randomblob, 1)

    def set(self, timestamp_ns: int, message_hash: bytes, offset: int) -> None:
        self._now_ns = timestamp_ns
        self._seed = (message_hash, offset)
        self._count = 0

    @property
    def used_random(self) -> bool:
        """True if the request has used a random function since `set`."""
        return self._count > 0

    def close(self) -> None:
        self._clock_connection.close()

    def _register(self, connection: apsw.Connection, name: str, function: Callable[..., object], count: int) -> None:
        connection.create_scalar_function(name, function, count, flags=apsw.SQLITE_INNOCUOUS)

    # Time.

    def _time_function(self, name: str) -> Callable[..., object]:
        def compute(*arguments: object) -> object:
            for argument in arguments[1:]:
                if isinstance(argument, str) and argument.strip().lower().startswith(("localtime", "utc")):
                    raise LocalTimeUsed("local time differs between machines: use UTC")
            return self._ask(name, arguments)

        return compute

    def _now_function(self, name: str) -> Callable[..., object]:
        return lambda: self._ask(name, ())

    def _ask(self, name: str, arguments: tuple[object, ...]) -> object:
        _local.now_ms = self._now_ns // 1_000_000
        marks = ",".join("?" * len(arguments))
        (row,) = self._clock_connection.execute(f"select {name}({marks})", arguments)
        return row[0]

    # Random values.

    def _next(self) -> bytes:
        self._count += 1
        message_hash, offset = self._seed
        return sha256(message_hash + offset.to_bytes(8, "big") + self._count.to_bytes(8, "big")).digest()

    def _random(self) -> int:
        return int.from_bytes(self._next()[:8], "big", signed=True)

    def _randomblob(self, size: object) -> bytes:
        wanted = max(1, int(size)) if isinstance(size, int | float) else 1
        if wanted > LENGTH_MAX:
            raise apsw.TooBigError("string or blob too big")
        return b"".join(self._next() for _ in range(-(-wanted // 32)))[:wanted]
