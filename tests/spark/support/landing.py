"""A stream that lands while it is written, its Spark driver and a node killed meanwhile: for a test and a campaign."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from chaplain.client.sync import Client
from chaplain.pipeline.tables import landed_files, landed_offset
from chaplain.pipeline.verification.table_proof import find_table_breaks
from tests.support.process_cluster import MOMENT_S, PROGRAM, Cluster, until

STREAM = "orders"
PATIENCE_S = 400.0
PAUSE_S = 0.1
"""Between writes: a machine that does nothing but write has no time for Spark."""
ROWS_MIN = 50
"""Rows that are written at least, however long that takes."""
LIGHT = """
import sys
from chaplain.pipeline import land
cluster, stream, tables, once = sys.argv[1:]
land(None, cluster=cluster, stream=stream, tables=tables, once=bool(once))
"""


class Load(threading.Thread):
    """Writes one message after the other, and notes when each was acknowledged."""

    stream = STREAM

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self._directory = directory
        self._over = threading.Event()
        self.acked_s: list[float] = []
        """By offset, on the monotonic clock: nobody else writes to the stream."""
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Client.connect(str(self._directory)) as client:
                while not self._over.wait(PAUSE_S):
                    receipt = client.journal(STREAM).write(
                        b"%d" % len(self.acked_s), key=b"%d" % (len(self.acked_s) % 7)
                    )
                    assert receipt.offset == len(self.acked_s)
                    self.acked_s.append(time.monotonic())
        except BaseException as error:
            self.failure = error

    def end(self) -> int:
        self._over.set()
        self.join(PATIENCE_S)
        assert self.failure is None, repr(self.failure)
        return len(self.acked_s)


class Driver:
    """Lands the stream as a process group of its own: `chaplain pipeline land` with Spark, or the same without."""

    def __init__(self, directory: Path, tables: Path, *, spark: bool, once: bool = False) -> None:
        words = [str(directory), STREAM, str(tables), "once" if once else ""]
        command = [sys.executable, "-c", LIGHT, *words]
        if spark:
            command = [*PROGRAM, "pipeline", "land", "--cluster", words[0], "--stream", STREAM, "--tables", words[2]]
            command += ["--master", "local[1]", *(["--once"] if once else [])]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def finish(self) -> None:
        try:
            out, _ = self.process.communicate(timeout=PATIENCE_S)
            assert self.process.returncode == 0, out
        finally:
            if self.process.poll() is None:
                self.kill()


def rows_of(tables: Path) -> list[tuple[int, bytes, bytes]]:
    files = landed_files(tables, STREAM)
    columns = ["offset", "key", "value"]
    table: Any = pa.concat_tables([pq.read_table(file, columns=columns) for file in files])
    return list(zip(*[table.column(name).to_pylist() for name in columns], strict=True))


def check_table(cluster: Path, tables: Path, written: int) -> None:
    """The table is the journal, row for row."""
    with Client.connect(str(cluster)) as client:
        journal = [(m.offset, m.key, m.value) for m in client.journal(STREAM).read()]
    assert len(journal) == written
    assert rows_of(tables) == journal, "the table is not the journal"
    assert find_table_breaks(None, tables, STREAM) == []


def _await_rows(tables: Path, count: int) -> None:
    until(lambda: landed_offset(tables, STREAM) >= count, f"{count} rows have landed", PATIENCE_S)


def land_through_kills(cluster: Cluster, tables: Path, kills: int, seed: int, *, spark: bool) -> dict[str, int]:
    """Kill who lands, again and again, and one node once; then the table must be the journal, row for row."""
    chance = random.Random(seed)
    load = Load(cluster.directory)
    load.start()
    landed = 0
    for number in range(kills):
        driver = Driver(cluster.directory, tables, spark=spark)
        try:
            if chance.random() < 0.8 or not number:  # else it is killed before it has done anything, perhaps
                _await_rows(tables, landed + 1)
            if number == 0:
                victim = cluster.nodes[chance.randint(1, len(cluster.nodes))]
                victim.kill()
                victim.start()
            moment = time.monotonic() + chance.uniform(0, 1.0)
            until(lambda moment=moment: time.monotonic() >= moment, "the moment has come", poll_s=MOMENT_S)
        finally:
            driver.kill()
        landed = landed_offset(tables, STREAM)
    until(lambda: len(load.acked_s) >= ROWS_MIN or load.failure is not None, f"{ROWS_MIN} rows are written", PATIENCE_S)
    written = load.end()
    Driver(cluster.directory, tables, spark=spark, once=True).finish()
    check_table(cluster.directory, tables, written)
    return {"kills of the driver": kills, "kills of a node": 1, "rows": written, "rows before the last kill": landed}


def lags(load: Load, landed: list[tuple[float, int]]) -> list[float]:
    """Seconds from the acknowledgement of each message to the commit that made it visible."""
    found: list[float] = []
    place = 0
    for offset, acked_s in enumerate(load.acked_s):
        while place < len(landed) and landed[place][1] <= offset:
            place += 1
        if place == len(landed):
            break
        found.append(max(0.0, landed[place][0] - acked_s))
    return found


def measure_lag(spark: Any, cluster: Cluster, tables: Path, rows: int) -> list[float]:
    """Land continuously while the nodes take writes, until so many came behind the first batch; how long each row was
    on its way.
    """
    from chaplain.pipeline import land

    load = Load(cluster.directory)
    load.start()
    until(lambda: len(load.acked_s) > 0 or load.failure is not None, "something is written", PATIENCE_S)
    assert load.failure is None, repr(load.failure)
    landed: list[tuple[float, int]] = []

    def tell(count: int) -> None:
        landed.append((time.monotonic(), count))

    def over() -> bool:
        enough = bool(landed) and landed[-1][1] - landed[0][1] >= rows
        return (enough or load.failure is not None) and load.end() <= landed[-1][1]

    land(spark, stream=STREAM, tables=tables, cluster=str(cluster.directory), tell=tell, until=over)
    # What had been written before the first batch was planned waited for Spark to start, not for `land`.
    return lags(load, landed)[landed[0][1] :]
