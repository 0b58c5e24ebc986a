"""The campaign on named consumers: the scenes of `tests/integration/client`, longer and with more workers."""

from __future__ import annotations

import random
import time
from pathlib import Path

from campaigns.campaign import Campaign, Report
from campaigns.clusters import scene
from chaplain import Client
from tests.integration.client.consumer_scenes import Workers, batter, check_order, wait_until_done, write
from tests.support.process_cluster import running

WORKERS = 8
KEYS = 1000
MESSAGES = 200_000
STATEMENTS = 5_000
SECONDS = 120.0
MODES = ["keyed", "queue", "single", "sql"]


def kills() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        messages = STATEMENTS if piece == "sql" else MESSAGES
        with running(directory / "three", 3) as cluster:
            if piece == "sql":
                _make_table(cluster.directory)
            with Workers(cluster.directory, directory / "notes", piece, piece, WORKERS) as workers:
                began_s = time.monotonic()
                write(cluster.directory, piece, messages // 2, KEYS)
                done = batter(cluster, workers, SECONDS / 2, random.Random(piece))
                write(cluster.directory, piece, messages - messages // 2, KEYS)
                for kind, count in batter(cluster, workers, SECONDS / 2, random.Random(piece + "2")).items():
                    done[kind] = done.get(kind, 0) + count
                wait_until_done(cluster.directory, piece, workers, messages)
                took_s = time.monotonic() - began_s
                notes = workers.notes()
            if piece == "sql":
                counts = _count_rows(cluster.directory, messages)
            else:
                counts = check_order(notes, messages, in_order=piece != "queue")
        return Report({**done, **counts, "missing or out of order": 0}, times_s={f"all, {piece}": [took_s]})

    about = (
        f"{WORKERS} workers, {KEYS:,} keys, {MESSAGES:,} messages, {SECONDS:g} s of SIGKILL and SIGSTOP, in each mode"
    )
    return scene("consumer-kills", about, MODES, play)


def _make_table(directory: Path) -> None:
    with Client.connect(directory, timeout=60) as client:
        client.sql("main").execute("create table done (place integer)")


def _count_rows(directory: Path, messages: int) -> dict[str, int]:
    """Each message has exactly one row."""
    with Client.connect(directory, timeout=60) as client:
        (row,) = client.sql("main").query("select count(*) as found, count(distinct place) as places from done")
    assert (row["found"], row["places"]) == (messages, messages), f"{row} of {messages} messages"
    return {"statements": messages, "executed twice": 0}


ON_CONSUMERS = [kills()]
