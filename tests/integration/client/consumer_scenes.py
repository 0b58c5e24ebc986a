"""Workers of a named consumer and nodes that are killed and stopped, and what must hold afterwards."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from chaplain import Client
from tests.support.process_cluster import Cluster, until

LEASE_S = 2.0
PATIENCE_S = 240.0


class Note(NamedTuple):
    """A message that a worker has processed."""

    time_ns: int
    offset: int
    key: bytes
    token: int


class Workers:
    """Worker processes, each with a file of notes."""

    def __init__(self, cluster: Path, folder: Path, stream: str, mode: str, count: int) -> None:
        self._command = [sys.executable, "-m", "tests.integration.client.consumer_worker", str(cluster), stream]
        self._command += ["workers", mode, str(LEASE_S)]
        self._folder = folder
        self._count = count
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self._started = 0

    def __enter__(self) -> Workers:
        self._folder.mkdir(parents=True, exist_ok=True)
        for _ in range(self._count):
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self.running):
            self.kill(number)

    def start(self) -> None:
        self._started += 1
        file = self._folder / f"notes-{self._started}"
        with (self._folder / f"log-{self._started}").open("wb") as log:
            process = subprocess.Popen([*self._command, str(file)], stdout=log, stderr=log)
        self.running[self._started] = process

    def kill(self, number: int) -> None:
        process = self.running.pop(number)
        process.kill()
        process.wait()

    def check(self) -> None:
        """Workers end only when they are killed."""
        for number, process in self.running.items():
            code = process.poll()
            assert code is None, f"worker {number} ended with {code}: {(self._folder / f'log-{number}').read_text()}"

    def notes(self) -> list[Note]:
        """What all workers noted, in the order of time. A line that a kill cut off does not count."""
        found = []
        for file in sorted(self._folder.glob("notes-*")):
            for line in file.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    time_ns, offset, key, token = line.split()
                    found.append(Note(int(time_ns), int(offset), key, int(token)))
        return sorted(found)


def write(directory: Path, stream: str, messages: int, keys: int) -> None:
    with Client.connect(directory, timeout=60) as client, client.journal(stream).writer() as writer:
        for number in range(messages):
            writer.write(b"message %d" % number, key=b"key-%d" % (number * 7919 % keys))


KINDS = ("worker killed", "worker stopped", "node killed", "node stopped")


def strike(cluster: Cluster, workers: Workers, kind: str, rng: random.Random, pause_s: float) -> None:
    """Kill or stop one worker or node. It is back when this returns."""
    number, node = rng.choice(list(workers.running)), rng.choice(list(cluster))
    match kind:
        case "worker killed":
            workers.kill(number)
            workers.start()
        case "worker stopped":
            workers.running[number].send_signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0, 2 * pause_s))
            workers.running[number].send_signal(signal.SIGCONT)
        case "node killed":
            node.kill()
            time.sleep(rng.uniform(0, 1))
            node.start()
        case _:
            node.signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0, pause_s))
            node.signal(signal.SIGCONT)
    time.sleep(rng.uniform(0, 1))


def batter(cluster: Cluster, workers: Workers, seconds: float, rng: random.Random) -> dict[str, int]:
    """Kill and stop workers and nodes, one at a time, for this long."""
    done: dict[str, int] = defaultdict(int)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        kind = rng.choice(("worker killed", *KINDS))
        done[kind] += 1
        strike(cluster, workers, kind, rng, 2 * LEASE_S)
    return dict(done)


def wait_until_done(directory: Path, stream: str, workers: Workers, messages: int) -> None:
    """Wait until all messages are acknowledged, as a node sees it that has executed all of them: one that has just
    returned may report no lag of an earlier head.
    """

    def done() -> bool:
        workers.check()
        with Client.connect(directory, timeout=60) as client:
            found = client.consumers(stream)  # nothing until the first worker has joined
            return bool(found) and found[0].head == messages and found[0].lag == 0

    until(done, "every message is acknowledged", PATIENCE_S, 0.2)


def check_order(notes: list[Note], messages: int, *, in_order: bool) -> dict[str, int]:
    """Every message was processed; and, with keys, each for the first time after all before it with its key."""
    assert {note.offset for note in notes} == set(range(messages)), "a message was not processed"
    last: dict[bytes, int] = defaultdict(lambda: -1)
    seen: set[int] = set()
    for note in notes:
        if note.offset in seen:
            continue
        seen.add(note.offset)
        if in_order:
            assert note.offset > last[note.key], f"{note} was processed for the first time after {last[note.key]}"
            last[note.key] = note.offset
    return {"messages": messages, "processed": len(notes), "processed again": len(notes) - messages}
