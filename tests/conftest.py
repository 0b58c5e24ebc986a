"""Ports for every process that runs tests, so that no two of them can be given the same one; and who runs what, when.

A port that is free now may be another's a moment later: while a node is down for a restart, say. So each process of
tests has a range of its own, locked for as long as it lives, and everything that it starts looks for ports there.

Tests that share a cluster, a server or a Spark session run in one process, so that it is started once. What takes long
begins early, so that no core is idle in the end.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO

import pytest

from chaplain.runtime.founding import PORTS, PORTS_VARIABLE

SIZE = 200
_held: list[IO[str]] = []

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Sessions of tests last seconds: optimizing what Java runs would cost more than all they do."""

LONG = ("pipeline", "product", "journal_real", "cluster", "executor", "drill", "sequence_real", "fuzz", "console")
"""Folders whose tests take long, the longest first."""


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    groups: dict[Path, str] = {}
    for item in items:
        for scope, name in _shared(item):
            groups[item.path] = name if scope == "session" else groups.get(item.path, item.path.stem)
    for item in items:
        if _shared(item):
            item.add_marker(pytest.mark.xdist_group(groups[item.path]))
    items.sort(key=_turn)


def _shared(item: pytest.Item) -> list[tuple[str, str]]:
    """The scope and the name of every fixture of ours that other tests use as well."""
    known = item._fixtureinfo.name2fixturedefs  # pytest has no other way to ask for scopes
    last = [(made[-1].scope, name) for name, made in known.items() if made[-1].baseid.startswith("tests")]
    return [(scope, name) for scope, name in last if scope in ("session", "module")]


def _turn(item: pytest.Item) -> tuple[int, bool]:
    folder = item.path.parent.name
    alone = item.get_closest_marker("xdist_group") is None
    return (LONG.index(folder) if folder in LONG else len(LONG), alone)
