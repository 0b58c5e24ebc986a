"""Time and chance in SQL: both come from the cluster message, so that every executor has the same.

Functions of time are computed by SQLite itself, on a second connection whose clock stands at the message. Its local
time is the machine's, so nobody may ask for it. Chance is a sequence of hashes that begins with the message's hash and
the request's place in the stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import sha256

import apsw

from chaplain.runtime.databases.sqlite.statement_guard import LENGTH_MAX

_CLOCK = "chaplain-clock"
_EPOCH_MS = 210_866_760_000_000
"""1970, in milliseconds of the Julian day."""
_TIMES = ("date", "time", "datetime", "julianday", "unixepoch", "strftime", "timediff")
_NOWS = {"current_date": "date", "current_time": "time", "current_timestamp": "datetime"}
_local = threading.local()


class ZoneAsked(Exception):
    """Somebody wanted local time."""


class _Clock(apsw.VFS):
    """Tells whoever opened through it the time that its thread has set."""

    def __init__(self) -> None:
        super().__init__(_CLOCK, "")

    def xCurrentTimeInt64(self) -> int:  # noqa: N802 SQLite's name
        return _EPOCH_MS + int(getattr(_local, "now_ms", 0))


_clock: list[_Clock] = []
_clock_lock = threading.Lock()


class Surroundings:
    """Time and chance for one connection. Set before each request."""

    def __init__(self, connection: apsw.Connection) -> None:
        with _clock_lock:
            if not _clock:
                _clock.append(_Clock())
        self._clerk = apsw.Connection(":memory:", vfs=_CLOCK)
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
    def drew(self) -> bool:
        """Whether chance was asked for since the request was set."""
        return self._count > 0

    def close(self) -> None:
        self._clerk.close()

    def _register(self, connection: apsw.Connection, name: str, function: Callable[..., object], count: int) -> None:
        connection.create_scalar_function(name, function, count, flags=apsw.SQLITE_INNOCUOUS)

    # Time.

    def _time_function(self, name: str) -> Callable[..., object]:
        def compute(*arguments: object) -> object:
            for argument in arguments[1:]:
                if isinstance(argument, str) and argument.strip().lower().startswith(("localtime", "utc")):
                    raise ZoneAsked("local time differs between machines: use UTC")
            return self._ask(name, arguments)

        return compute

    def _now_function(self, name: str) -> Callable[..., object]:
        return lambda: self._ask(name, ())

    def _ask(self, name: str, arguments: tuple[object, ...]) -> object:
        _local.now_ms = self._now_ns // 1_000_000
        marks = ",".join("?" * len(arguments))
        (row,) = self._clerk.execute(f"select {name}({marks})", arguments)
        return row[0]

    # Chance.

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
