"""Ports for every process that runs tests, so that no two of them can be given the same one.

A port that is free now may be another's a moment later: while a node is down for a restart, say. So each process of
tests has a range of its own, locked for as long as it lives, and everything that it starts looks for ports there.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO

from chaplain.runtime.founding import PORTS, PORTS_VARIABLE

SIZE = 200
_held: list[IO[str]] = []

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Sessions of tests last seconds: optimizing what Java runs would cost more than all they do."""


def pytest_configure() -> None:
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JAVA)
    os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", QUICK_JAVA)
    if PORTS_VARIABLE not in os.environ or "PYTEST_XDIST_WORKER" in os.environ:
        os.environ[PORTS_VARIABLE] = _take()


def _take() -> str:
    folder = Path(tempfile.gettempdir()) / "chaplain-test-ports"
    folder.mkdir(exist_ok=True)
    for first in range(PORTS.start, PORTS.stop - SIZE + 1, SIZE):
        lock = (folder / f"range-{first}").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        _held.append(lock)
        return f"{first}-{first + SIZE - 1}"
    raise AssertionError("every range of ports is another's")
