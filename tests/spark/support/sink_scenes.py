"""Drivers that are killed in the middle of a batch, for a short test and a long campaign alike."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from chaplain import Client
from chaplain.pipeline.tables import landed_offset
from tests.spark.support.landing import Load, check_table
from tests.spark.support.sink_writer import rows_of
from tests.support.process_cluster import MOMENT_S, until

DRIVER = Path(__file__).parent / "sink_driver.py"
WRITER = Path(__file__).parent / "sink_writer.py"
ROWS = 3000
STARTS = 5
"""How often a driver is begun that ends by itself."""
LOOK_S = 0.5
"""Looking costs processor time, of which Spark needs all there is."""
GOALS = (0, 1, 150, 300)
"""How many rows a driver has written, at least, when it is killed."""


def fill(cluster: Path, rows: int = ROWS) -> None:
    with Client.connect(cluster) as client, client.journal("input").writer() as writer:
        for number in range(rows):
            writer.write(b"row %d" % number, key=b"k%d" % (number % 7))


def kill_drivers(
    cluster: Path,
    checkpoint: Path,
    kills: int,
    seed: int,
    *,
    goals: Sequence[int] = GOALS,
    tables: Path | None = None,
    finish: Callable[[Sequence[object]], None] | None = None,
) -> dict[str, int]:
    """Kill drivers, Java and all, once they have begun to write; the last one may finish. Rows must be there once.

    With `tables` the same drivers land a stream that is written meanwhile, and its table must be the journal: Java
    takes so long to start that a short test kills both with one blow. `finish` is the last driver, if it need not be
    a process of its own.
    """
    rng = random.Random(seed)
    load = Load(cluster) if tables else None
    words = [load.stream, tables] if load else []
    with Client.connect(cluster, timeout=60) as client:
        assert not _written(client)
        if load:
            load.start()
        for _ in range(kills):
            _begin_and_kill(client, [cluster, checkpoint, *words], rng, goals)
        rows = load.end() if load else 0
        (finish or _finish)([cluster, checkpoint, *words, *(["once"] if load else [])])
        if tables:
            check_table(cluster, tables, rows)
        expected = Counter((one.key, one.value) for one in client.journal("input").read())
        found = Counter((one.key, one.value) for one in client.journal("output").read())
        assert found == expected, f"missing {expected - found}, too many {found - expected}"
        assert {one.status for one in client.clients()} == {"active"}, "somebody was taken for compromised"
    return {"kills of the driver": kills, "rows": sum(found.values()), "lost or doubled": 0}


def kill_writers(cluster: Path, progress: Path, kills: int, seed: int, node: Callable[[], None]) -> dict[str, int]:
    """The same without Spark, and quicker: a writer of batches is killed while it stages, commits, or notes it."""
    rng = random.Random(seed)
    batches = 1000
    with Client.connect(cluster, timeout=60) as client:
        for number in range(kills):
            before = _written(client, "batches")
            writer = _run(progress, WRITER, cluster, progress, batches)
            try:
                until(lambda goal=before: _written(client, "batches") > goal, "batches are written", limit_s=300)
                end_s = time.monotonic() + rng.random() * 0.3
                until(lambda end_s=end_s: time.monotonic() >= end_s, "a random moment", poll_s=MOMENT_S)
            finally:
                _kill(writer)
            if number == kills // 2:
                node()
        done = int(progress.read_text()) + 1
        last = _run(progress, WRITER, cluster, progress, done)
        try:
            assert last.wait(300) == 0, f"the last writer failed: {_log(progress).read_text()[-3000:]}"
        finally:
            _kill(last)
        found = Counter(one.value for one in client.journal("batches").read())
        expected = Counter(row for version in range(done) for row in rows_of(version))
        assert found == expected, f"missing {expected - found}, too many {found - expected}"
        assert {one.status for one in client.clients()} == {"active"}, "somebody was taken for compromised"
    return {"kills of a writer": kills, "batches": done, "lost or doubled": 0}


def _begin_and_kill(client: Client, words: Sequence[object], rng: random.Random, goals: Sequence[int]) -> None:
    goal = _written(client) + rng.choice(goals)
    _, checkpoint, *landing = words
    landed = landed_offset(landing[1], landing[0]) if landing else 0

    def begun() -> bool:
        return _written(client) > goal and (not landing or landed_offset(landing[1], landing[0]) > landed)

    for _ in range(STARTS):
        driver = _run(checkpoint, DRIVER, *words)
        try:
            until(lambda: begun() or driver.poll() is not None, "the driver writes", 300, LOOK_S)  # noqa: B023
            end_s = time.monotonic() + rng.random() * 0.5
            until(lambda: time.monotonic() >= end_s, "a random moment", poll_s=MOMENT_S)  # noqa: B023
            if driver.poll() is None:
                return
            assert driver.returncode, "the driver was done before it could be killed: give it more rows"
        finally:
            _kill(driver)
    raise AssertionError(f"drivers end by themselves: {_log(checkpoint).read_text()[-3000:]}")


def _finish(words: Sequence[object]) -> None:
    """Let a driver come to its end; on a machine that is too busy, Spark gives up by itself, and is begun again."""
    for _ in range(STARTS):
        driver = _run(words[1], DRIVER, *words)
        try:
            if driver.wait(300) == 0:
                return
        finally:
            _kill(driver)
    raise AssertionError(f"no driver comes to its end: {_log(words[1]).read_text()[-3000:]}")


def _written(client: Client, stream: str = "output") -> int:
    return next((one.next_offset for one in client.streams() if one.stream == stream), 0)


def _run(beside: Path, *command: object) -> subprocess.Popen[bytes]:
    with _log(beside).open("ab") as log:
        words = [sys.executable, *map(str, command)]
        return subprocess.Popen(words, start_new_session=True, stdout=log, stderr=log)


def _log(checkpoint: Path) -> Path:
    return checkpoint.with_name("driver.log")


def _kill(driver: subprocess.Popen[bytes]) -> None:
    """The whole of it: a driver, its Java, its workers."""
    try:
        os.killpg(driver.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        driver.wait()
