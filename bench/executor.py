"""Measures one-statement transactions a second: bare SQLite, the engine alone, and through the journal.

The journal has one node, then three. All variants insert the same rows with the same statement. *Through the journal*
means that each transaction is signed, ordered, on disk at a quorum and executed exactly once on every node, and that
its result and fingerprint are stored; a round ends when the last transaction is executed. Prints a table and one line
of JSON. The variants alternate, and the best of several rounds counts, because other processes may use the machine. CPU
seconds are those of the nodes' processes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import apsw

from chaplain import Client
from chaplain.executor.events import Work
from chaplain.executor.statement import SQL_TYPE, Statement, encode_statement
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.cluster.local import bring_down, bring_up, pid_of
from chaplain.runtime.databases.sqlite.database import SqliteDatabase
from chaplain.segment.pack import Pack, encode_pack

CREATE = "create table t(a integer primary key, b, c)"
INSERT = "insert into t(b, c) values (?, ?)"
WANTED = 50_000
"""Goal: transactions a second through the journal with one executor."""


def bare(folder: Path, count: int, group: int) -> tuple[float, float]:
    connection = apsw.Connection(str(folder / f"bare-{group}.sqlite"))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.execute(CREATE)
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    for start in range(0, count, group):
        connection.execute("begin immediate")
        for number in range(start, min(start + group, count)):
            connection.execute(INSERT, (number, "hello"))
        connection.execute("commit")
    spent = time.perf_counter() - begun_s, time.process_time() - cpu_s
    connection.close()
    return spent


def engine(folder: Path, count: int, group: int) -> tuple[float, float]:
    database = SqliteDatabase(folder, "main")
    database.apply(_work(1, 0, [CREATE]))
    works = []
    for index, start in enumerate(range(0, count, group), 2):
        works.append(_work(index, start + 1, [(INSERT, (n, "hello")) for n in range(start, min(start + group, count))]))
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    for work in works:
        database.apply(work)
    spent = time.perf_counter() - begun_s, time.process_time() - cpu_s
    database.close()
    return spent


def _work(index: int, offset: int, statements: list) -> Work:
    values = tuple(encode_statement(Statement(one) if isinstance(one, str) else Statement(*one)) for one in statements)
    body = encode_pack(Pack(1, offset + 1, values, message_type=SQL_TYPE))
    digest = sha256(index.to_bytes(8, "big")).digest()
    return Work(index, index, digest, ((offset, body),), ((1, b"A" * 15),))


def journal(folder: Path, count: int, nodes: int) -> tuple[float, float]:
    directory = folder / f"cluster-{nodes}"
    make_cluster(directory, nodes, "sqlite", None)
    bring_up(directory, lambda _: None)
    try:
        with Client.connect(directory, timeout=120) as client:
            sql = client.sql("main")
            sql.execute(CREATE)
            begun_s, cpu_s = time.perf_counter(), _cpu_s(directory, nodes)
            with sql.writer() as writer:
                for number in range(count):
                    writer.execute(INSERT, (number, "hello"))
            (row,) = sql.query("select count(*) c from t")
            spent = time.perf_counter() - begun_s, _cpu_s(directory, nodes) - cpu_s
            assert row["c"] == count, f"{row['c']} rows of {count}"
            return spent
    finally:
        bring_down(directory)


def _cpu_s(directory: Path, nodes: int) -> float:
    """Return the CPU seconds that the nodes' processes have used."""
    ticks = 0
    for number in range(1, nodes + 1):
        fields = Path(f"/proc/{pid_of(directory / f'node-{number}')}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(play: Callable[[Path], tuple[float, float]], count: int, rounds: int) -> tuple[int, int]:
    """Return transactions a second and a CPU second, of the best round."""
    best = (0, 0)
    for _ in range(rounds):
        folder = Path(tempfile.mkdtemp(prefix="chaplain-bench-executor-"))
        try:
            wall_s, cpu_s = play(folder)
        finally:
            shutil.rmtree(folder)
        best = max(best[0], round(count / wall_s)), max(best[1], round(count / max(cpu_s, 0.01)))
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    count, rounds = options.count, options.rounds
    plays: dict[str, tuple[Callable[[Path], tuple[float, float]], int]] = {
        "bare SQLite, a commit each": (lambda folder: bare(folder, count // 20, 1), count // 20),
        "bare SQLite, 1,000 a commit": (lambda folder: bare(folder, count, 1000), count),
        "engine alone, 1,000 a message": (lambda folder: engine(folder, count, 1000), count),
        "journal, one executor": (lambda folder: journal(folder, count, 1), count),
        "journal, three executors": (lambda folder: journal(folder, count, 3), count),
    }
    found = {name: measure(play, done, rounds) for name, (play, done) in plays.items()}
    print(f"{'one-statement transactions':34} {'a second':>12} {'a CPU second':>14}")
    for name, (rate, per_cpu) in found.items():
        print(f"{name:34} {rate:12,} {per_cpu:14,}")
    print(json.dumps({"bench": "executor", "count": count, "found": found}))
    reached = found["journal, one executor"][0]
    print(f"one executor through the journal: {reached:,} a second, {WANTED:,} wanted, load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
