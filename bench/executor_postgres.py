"""Measures one-statement transactions a second on PostgreSQL: bare psycopg, and the engine with all its bookkeeping.

All variants insert the same rows into the same kind of table, on a PostgreSQL server that the benchmark starts, over
its Unix socket. Commits are not synced, as in the engine. *A commit each* is one round trip to the server. *With
position and result* is the least that an engine must do, written by hand: begin, insert, one row of state, one row of
results, commit. The engine additionally checks the statement, assumes the client's role, receives the changed row,
updates the fingerprint, and writes the row to the change log. The variants alternate, and the best of several rounds
counts. CPU seconds are those of this process and of the server.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from executor import _work

sys.path.append(str(Path(__file__).resolve().parents[1]))

from chaplain.runtime.databases.postgres.database import PostgresDatabase
from tests.support.postgres_server import PASSWORD, TestServer, a_server, missing

CREATE = "create table t(a integer primary key, b integer, c text)"
INSERT = "insert into t values (?, ?, ?)"
_numbers = itertools.count()


def bare(server: TestServer, count: int, *, whole: bool) -> tuple[float, float]:
    place = server.make(f"bare_{next(_numbers)}")
    words = {"host": place.host, "dbname": place.database, "user": place.user, "password": PASSWORD}
    with psycopg.connect(**words, autocommit=True, prepare_threshold=None) as connection:
        connection.execute(b"set synchronous_commit = off")
        connection.execute(b"create schema s")
        connection.execute(b"set search_path = s")
        connection.execute(CREATE.encode())
        connection.execute(b"create table state(one integer primary key, n integer)")
        connection.execute(b"create table results(n integer primary key, body bytea)")
        connection.execute(b"insert into state values (1, 0)")
        begun_s, cpu_s = time.perf_counter(), server.cpu_s() + time.process_time()
        for number in range(count):
            if whole:
                connection.execute(b"begin")
            connection.execute(b"insert into t values (%s, %s, %s)", (number, number, "hello"))
            if whole:
                last = f"update state set n = {number}; insert into results values ({number}, '\\x00'); commit"
                connection.execute(last.encode())
        return time.perf_counter() - begun_s, server.cpu_s() + time.process_time() - cpu_s


def engine(server: TestServer, count: int) -> tuple[float, float]:
    folder = Path(tempfile.mkdtemp(prefix="chaplain-bench-postgres-"))
    database = PostgresDatabase(folder, "main", server.make(f"engine_{next(_numbers)}"))
    try:
        database.apply(_work(1, 0, [CREATE]))
        statements = [(INSERT, (n, n, "hello")) for n in range(count)]
        works = [_work(2 + at // 1000, at + 1, statements[at : at + 1000]) for at in range(0, count, 1000)]
        begun_s, cpu_s = time.perf_counter(), server.cpu_s() + time.process_time()
        for work in works:
            assert database.apply(work).failures == 0
        return time.perf_counter() - begun_s, server.cpu_s() + time.process_time() - cpu_s
    finally:
        database.close()
        shutil.rmtree(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if missing():
        print(missing())
        return 0
    count = options.count
    plays: dict[str, Callable[[TestServer], tuple[float, float]]] = {
        "bare psycopg, a commit each": lambda server: bare(server, count, whole=False),
        "bare, with position and result": lambda server: bare(server, count, whole=True),
        "engine": lambda server: engine(server, count),
    }
    found = dict.fromkeys(plays, (0, 0))
    with a_server() as server:
        for _ in range(options.rounds):
            for name, play in plays.items():
                wall_s, cpu_s = play(server)
                best = found[name]
                found[name] = max(best[0], round(count / wall_s)), max(best[1], round(count / cpu_s))
    print(f"{'one-statement transactions':34} {'a second':>12} {'a CPU second':>14}")
    for name, (rate, per_cpu) in found.items():
        print(f"{name:34} {rate:12,} {per_cpu:14,}")
    print(json.dumps({"bench": "executor_postgres", "count": count, "found": found, "load": os.getloadavg()[0]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
