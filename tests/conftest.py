"""What holds for all tests: ports for every process that runs them, and the order in which they run.

A port that is free now may be another's a moment later: while a node is down for a restart, say. So each process of
tests has a range of its own, locked for as long as it lives, and everything that it starts looks for ports there.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from typing import IO

import hypothesis
import pytest

from chaplain.runtime.cluster.create import PORTS, PORTS_VARIABLE

SIZE = 200
_held: list[IO[str]] = []

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Sessions of tests last seconds: optimizing what Java runs would cost more than all they do. Nor need every session
look again whether what Spark was compiled to is sound.
"""

FIRST = (
    "tests/pipeline/test_pipeline_sink.py",
    "tests/pipeline/",
    "tests/product/",
    "tests/cluster/test_partition.py",
    "tests/journal/test_requests_sim.py",
    "tests/journal_real/",
    "tests/executor/test_executor_end_to_end.py",
    "tests/sequence_real/",
    "tests/cluster/",
)
"""What takes long begins first, so that nobody is left alone with it at the end. One process is given the beginning,
and the others take over from the other end: so most of what needs Spark finds one session that runs.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, place in enumerate(FIRST) if item.nodeid.startswith(place)), len(FIRST))


def pytest_configure() -> None:
    hypothesis.settings.register_profile("suite", deadline=None)  # a busy machine is no fault; `timeout` bounds tests
    hypothesis.settings.load_profile("suite")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads in each of hundreds of processes
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
