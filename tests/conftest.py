"""Set-up for all tests: a range of ports for each test process, and the order in which tests run.

A port that is free now may be taken a moment later, for example while a node restarts. So each test process locks a
range of ports for its lifetime, and everything that it starts looks for ports in that range.
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

LANES = (
    ("tests/spark/test_sink.py", "tests/spark/"),
    ("tests/integration/product/",),
    ("tests/integration/journal/", "tests/integration/sequence/", "tests/integration/drill/"),
    ("tests/integration/cluster/", "tests/integration/executor/", "tests/integration/client/"),
    ("tests/simulation/test_requests_workload.py", "tests/simulation/test_command.py"),
)
"""The tests that take long, by the worker that begins with them. Those of the first lane share a Spark session."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = _arranged(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _arranged(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """The tests in an order in which every worker begins with a lane of its own and ends with short tests.

    `--dist worksteal` gives each worker an equal, contiguous part of the tests. A worker that is done takes tests from
    the end of another's part. Long tests mostly wait: they run beside each other from the beginning, and none is left
    over for the end.
    """
    places = [(lane % workers, place) for lane, members in enumerate(LANES) for place in members]
    by_place: dict[str, list[pytest.Item]] = {place: [] for _, place in places}
    short: list[pytest.Item] = []
    for item in items:
        found = next((place for _, place in places if item.nodeid.startswith(place)), None)
        (short if found is None else by_place[found]).append(item)
    lanes: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for lane, place in places:
        lanes[lane] += by_place[place]
    arranged: list[pytest.Item] = []
    for number, long in enumerate(lanes):
        part = (len(items) - len(arranged)) // (workers - number)
        fill = max(0, part - len(long))
        arranged += long + short[:fill]
        del short[:fill]
    return arranged + short


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
