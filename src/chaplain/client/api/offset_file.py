"""Where a consumer has got to, kept in a file: what was committed is not read again after a crash.

A consumer that commits after it has done its work sees every message at least once; one that stores the offset together
with its results, in one transaction of its own, needs no cursor and sees each exactly once.

Invariants: a file belongs to one stream of one cluster; one process holds it at a time; it never goes back.
"""

from __future__ import annotations

import fcntl
import json
import os
from io import FileIO
from pathlib import Path

from chaplain import durable
from chaplain.client.types import validation
from chaplain.errors import Closed, ConfigError, Misused


class Cursor:
    """Use it in a `with` statement. `offset` is the next one to read."""

    def __init__(self, file: str | Path, cluster: str, stream: str) -> None:
        self._file = validation.path(file)
        self._names = {"cluster": cluster, "stream": stream}
        self._pid = os.getpid()
        self._lock = self._take_lock()
        try:
            self.offset = self._load()
        except BaseException:
            self.close()
            raise

    def commit(self, offset: int) -> None:
        """Everything before `offset` is done. On disk when this returns."""
        offset = validation.number("an offset", offset)
        if self._lock.closed or os.getpid() != self._pid:
            raise Closed("this cursor is closed, or was made before a fork: make another")
        if offset < self.offset:
            raise Misused(f"the cursor stands at {self.offset} and does not go back to {offset}")
        durable.put(self._file, json.dumps({**self._names, "offset": offset}), mode=0o666)
        self.offset = offset

    def close(self) -> None:
        if not self._lock.closed and os.getpid() == self._pid:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # children of a fork have it, too, and may live on
        self._lock.close()

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_lock(self) -> FileIO:
        """A file object, so that a cursor that is forgotten lets go of it."""
        name = self._file.with_name(self._file.name + ".lock")
        try:
            lock = FileIO(os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
        except OSError as error:
            raise ConfigError(f"cursor {self._file}: {error.strerror}; give a path in a folder that exists") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise ConfigError(f"another consumer uses the cursor {self._file}; give each its own") from None
        return lock

    def _load(self) -> int:
        try:
            held = json.loads(self._file.read_text())
            offset, names = int(held["offset"]), {name: held[name] for name in self._names}
        except FileNotFoundError:
            return 0
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{self._file} is no cursor; give another path") from None
        if names != self._names:
            there = f"stream {names['stream']!r} of cluster {names['cluster']!r}"
            raise ConfigError(f"the cursor {self._file} is of {there}; give each stream its own")
        return offset
