"""Clients that compete with conditional writes while nodes are killed, and the check of what they were answered."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import NamedTuple

from chaplain import Client, Conflict, Journal, Unknown
from tests.support.linearizability import Answered, Asked, Operation, StreamState, is_linearizable, step_of_stream
from tests.support.process_cluster import Cluster

ACCOUNTS = tuple(b"account-%d" % number for number in range(5))
BALANCE = 100
TIMEOUT_S = 120.0
REGISTER, BANK = "register", "bank"


class View:
    """What one client knows of a stream: it may be old."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.length = 0
        self.versions: dict[bytes, int] = {}
        self.balances = dict.fromkeys(ACCOUNTS, BALANCE)

    def read_on(self) -> None:
        if not self.length and not self._exists():
            return
        for message in self._journal.read(self.length):
            self.length = message.offset + 1
            if message.key is not None:
                self.versions[message.key] = message.offset
                self.balances[message.key] = int(message.value)

    def _exists(self) -> bool:
        """True from the first message on: a write that asks for an impossible offset shows the length."""
        try:
            self._journal.write(b"", expect_offset=1 << 40)
        except Conflict as conflict:
            return conflict.offset > 0
        raise AssertionError("an impossible condition held")


class Records:
    """The histories of all streams."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.histories: dict[str, list[Operation]] = defaultdict(list)
        self.failures: list[BaseException] = []

    def add(self, stream: str, operation: Operation) -> None:
        with self._lock:
            self.histories[stream].append(operation)


class Competition(NamedTuple):
    """How many operations there are, in streams of how many."""

    operations: int
    per_stream: int
    clients: int

    def stream(self, number: int) -> str:
        kind = BANK if number // self.per_stream % 2 else REGISTER
        return f"{kind}-{number // self.per_stream}"


def compete(cluster: Cluster, competition: Competition, seed: int, *, kill_s: float) -> Records:
    """Run all operations; a random node is killed or stopped about every `kill_s` seconds meanwhile."""
    records, numbers = Records(), count()
    threads = [
        threading.Thread(target=_work, args=(cluster.directory, competition, numbers, records, f"{seed} {number}"))
        for number in range(competition.clients)
    ]
    for thread in threads:
        thread.start()
    rng = random.Random(seed)
    while any(thread.is_alive() for thread in threads):
        _wait(threads, rng.uniform(0.5, 1.5) * kill_s)
        node = rng.choice(list(cluster))
        if rng.random() < 0.5:
            node.kill()
            _wait(threads, rng.uniform(0, 1))
            node.start()
        else:
            node.signal(signal.SIGSTOP)
            _wait(threads, rng.uniform(0, 2))
            node.signal(signal.SIGCONT)
    if records.failures:
        raise records.failures[0]
    return records


def _wait(threads: list[threading.Thread], seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and any(thread.is_alive() for thread in threads):
        time.sleep(0.02)


def _work(directory: Path, competition: Competition, numbers: count[int], records: Records, seed: str) -> None:
    rng, views = random.Random(seed), {}
    try:
        with Client.connect(directory, timeout=TIMEOUT_S) as client:
            while (number := next(numbers)) < competition.operations:
                stream = competition.stream(number)
                if stream not in views:
                    views = {stream: View(client.journal(stream))}
                _operate(client.journal(stream), stream, views[stream], records, rng)
    except BaseException as error:
        records.failures.append(error)


def _operate(journal: Journal, stream: str, view: View, records: Records, rng: random.Random) -> None:
    if stream.startswith(BANK):
        first, second = rng.sample(ACCOUNTS, 2)
        amount = rng.randrange(1, 20)
        new = {first: view.balances[first] - amount, second: view.balances[second] + amount}
        expected = {key: view.versions.get(key, -1) for key in new}
        asked = Asked(tuple(new), None, tuple(expected.items()))
        items = [(b"%d" % balance, key) for key, balance in new.items()]
    else:
        expected = None
        asked = Asked((b"r",), view.length if rng.random() < 0.7 else None)
        items = [(b"%d" % rng.randrange(10**9), b"r")]
    called_ns, answer = time.monotonic_ns(), None
    try:
        receipts = journal.write_many(items, expect_offset=asked.expect_offset, expect_key_versions=expected)
        answer = Answered(True, receipts[0].offset)
    except Conflict as conflict:
        if conflict.kind != "conflict":
            raise
        answer = Answered(False, conflict.offset)
    except Unknown:
        pass
    returned_ns = None if answer is None else time.monotonic_ns()
    records.add(stream, Operation(called_ns, returned_ns, asked, answer))
    if answer is None or not answer.written or rng.random() < 0.5:
        view.read_on()


def check(directory: Path, records: Records) -> dict[str, int]:
    """Every history is linearizable, and no money appeared or vanished."""
    counts: dict[str, int] = defaultdict(int)
    with Client.connect(directory, timeout=TIMEOUT_S) as client:
        for stream, history in sorted(records.histories.items()):
            assert is_linearizable(history, StreamState(), step_of_stream), f"{stream} is not linearizable"
            for one in history:
                kind = "unknown" if one.answer is None else "written" if one.answer.written else "conflicts"
                counts[kind] += 1
            if stream.startswith(BANK):
                _check_money(client.journal(stream))
    return dict(counts)


def _check_money(journal: Journal) -> None:
    balances = dict.fromkeys(ACCOUNTS, BALANCE)
    messages = list(journal.read())
    for debit, credit in zip(messages[::2], messages[1::2], strict=True):
        assert debit.key is not None
        assert credit.key is not None
        moved = balances[debit.key] - int(debit.value)
        assert moved == int(credit.value) - balances[credit.key], f"money was made at {journal.stream}/{debit.offset}"
        balances[debit.key], balances[credit.key] = int(debit.value), int(credit.value)
    assert sum(balances.values()) == BALANCE * len(ACCOUNTS)
