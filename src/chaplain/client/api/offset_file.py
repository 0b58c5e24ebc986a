"""A consumer's position in a stream, stored in a file, so that a restarted consumer continues where it committed.

A consumer that commits after its work sees every message at least once. A consumer that stores the offset together with
its results in one transaction of its own needs no cursor and sees every message exactly once.

Invariants: a file belongs to one stream of one cluster; one process holds it at a time; the offset never decreases.
"""

from __future__ import annotations

import json
import os
from io import FileIO
from pathlib import Path

from chaplain import durable
from chaplain.client.types import validation
from chaplain.errors import Closed, ConfigError, Misused


class Cursor:
    """A consumer's stored position. Use it in a `with` statement; `offset` is the next offset to read."""

    def __init__(self, file: str | Path, cluster: str, stream: str) -> None:
        self._file = validation.path(file)
        self._names = {"cluster": cluster, "stream": stream}
        self._pid = os.getpid()
        self.fresh = False
        """True if the file did not exist: nothing was committed yet."""
        self._lock = self._take_lock()
        try:
            self.offset = self._load()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        state = "closed" if self._lock.closed else f"next offset {self.offset}"
        return f"<Cursor {str(self._file)!r} of {self._names['stream']!r}: {state}>"

    def commit(self, offset: int) -> None:
        """Record that everything before `offset` is processed. The offset is on disk when this returns."""
        offset = validation.number("an offset", offset)
        if self._lock.closed or os.getpid() != self._pid:
            raise Closed("this cursor is closed, or was made before a fork: make another")
        if offset < self.offset:
            raise Misused(f"the cursor stands at {self.offset} and does not go back to {offset}")
        durable.put(self._file, json.dumps({**self._names, "offset": offset}), mode=0o666)
        self.offset, self.fresh = offset, False

    def close(self) -> None:
        """Release the file for other processes."""
        if not self._lock.closed and os.getpid() == self._pid:
            import fcntl  # noqa: PLC0415  likewise

            fcntl.flock(self._lock, fcntl.LOCK_UN)  # forked children share the lock and may outlive this process
        self._lock.close()

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_lock(self) -> FileIO:
        """Lock the file. A file object closes itself when a forgotten cursor is garbage-collected."""
        name = self._file.with_name(self._file.name + ".lock")
        try:
            lock = FileIO(os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
        except OSError as error:
            raise ConfigError(f"cursor {self._file}: {error.strerror}; give a path in a folder that exists") from None
        try:
            import fcntl  # noqa: PLC0415  the rest of the client also runs where it does not exist
        except ImportError:
            lock.close()
            raise ConfigError("this system cannot lock files: store the offset yourself, or use consume()") from None
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
            self.fresh = True
            return 0
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{self._file} is no cursor; give another path") from None
        if names != self._names:
            there = f"stream {names['stream']!r} of cluster {names['cluster']!r}"
            raise ConfigError(f"the cursor {self._file} is of {there}; give each stream its own")
        return offset
