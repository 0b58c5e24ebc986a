"""What clients saw of a journal, and what must follow from it alone, whatever the nodes think of themselves.

Every writer writes numbered values of its own. An acknowledged one must be in every node's final reading exactly once,
at the offset of its receipt; one whose fate is unknown at most once; one that was refused not at all.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.harness import PATIENCE_S

from chaplain import Client, Message
from chaplain.config import load_cluster
from chaplain.errors import ChaplainError, Unknown
from chaplain.segment.files import read_log
from chaplain.segment.layout import NO_HASH

STREAM = "load"
BATCH = 20


@dataclass
class Attempt:
    value: bytes
    invoked_s: float
    acked_s: float = 0.0
    offset: int | None = None
    index: int = 0
    hash: bytes = b""
    refused: str = ""
    """Why it is surely not written."""


class Writer(threading.Thread):
    """Writes until told to stop; even ones message by message, odd ones through `writer()`."""

    def __init__(self, directory: Path, number: int, timeout_s: float = 10.0) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.attempts: list[Attempt] = []
        self.failure: BaseException | None = None
        self._directory = directory
        self._timeout_s = timeout_s
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            endpoints = [node.endpoint for node in load_cluster(self._directory).nodes]
            turn = self.number % len(endpoints)
            rotated = endpoints[turn:] + endpoints[:turn]
            with Client.connect(self._directory, endpoints=rotated, timeout=self._timeout_s) as client:
                while not self._stopped.is_set():
                    self._many(client) if self.number % 2 else self._one(client)
        except BaseException as error:
            self.failure = error

    def end(self) -> list[Attempt]:
        self._stopped.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), f"writer {self.number} does not end"
        assert self.failure is None, f"writer {self.number}: {self.failure!r}"
        return self.attempts

    def _attempt(self) -> Attempt:
        made = Attempt(b"%d:%d" % (self.number, len(self.attempts)), time.monotonic())
        self.attempts.append(made)
        return made

    def _one(self, client: Client) -> None:
        made = self._attempt()
        try:
            receipt = client.journal(STREAM).write(made.value)
        except Unknown:
            return
        except ChaplainError as error:
            made.refused = repr(error)
            return
        made.offset, made.index, made.hash = receipt.offset, receipt.index, receipt.hash
        made.acked_s = time.monotonic()

    def _many(self, client: Client) -> None:
        writer = client.journal(STREAM).writer(receipts=True)
        batch = []
        try:
            with writer:
                for _ in range(BATCH):
                    batch.append(self._attempt())
                    writer.write(batch[-1].value)
        except ChaplainError:
            pass  # those without a receipt are unknown
        now_s = time.monotonic()
        for made, receipt in zip(batch, writer.take_receipts(), strict=False):
            made.offset, made.index, made.hash, made.acked_s = receipt.offset, receipt.index, receipt.hash, now_s


def read_all(directory: Path, node: int, stream: str = STREAM) -> list[Message]:
    with Client.connect(directory, node=node, timeout=PATIENCE_S) as client:
        return list(client.journal(stream).read())


def read_chain(segments: Path) -> dict[int, bytes]:
    """The cluster chain as a node's files show it to anybody: the hash of each message that is agreed."""
    return {record.index: record.chain_hash for record in read_log(segments, "journal") if record.chain_hash != NO_HASH}


def judge_chain(histories: Sequence[Sequence[Attempt]], chains: dict[int, dict[int, bytes]]) -> int:
    """Every receipt names the hash that its cluster message has in every node's files; how many did."""
    receipts = {(one.index, one.hash) for history in histories for one in history if one.index}
    for node, chain in chains.items():
        for index, digest in sorted(receipts):
            assert chain.get(index) == digest, f"node {node}: message {index} has another hash than its receipt"
    return len(receipts)


def judge(histories: Sequence[Sequence[Attempt]], readings: dict[int, list[Message]]) -> dict[str, int]:
    """Raises an AssertionError that says what is broken; what was counted, if nothing is."""
    first = next(iter(readings.values()))
    for node, reading in readings.items():
        assert [m.offset for m in reading] == list(range(len(reading))), f"node {node}: offsets are not dense"
        assert reading == first, f"node {node} reads other messages than the first"
    at = {message.value: message for message in first}
    doubled = [value for value, count in Counter(message.value for message in first).items() if count > 1]
    assert not doubled, f"doubled: {doubled[:5]}"
    attempts = [attempt for history in histories for attempt in history]
    assert set(at) <= {attempt.value for attempt in attempts}, "somebody else's values"
    for attempt in attempts:
        _judge_one(attempt, at.get(attempt.value))
    for history in histories:
        offsets = [at[attempt.value].offset for attempt in history if attempt.value in at]
        assert offsets == sorted(offsets), f"a writer's order is broken: {history[0].value!r} …"
    _judge_time(attempts)
    acked = sum(attempt.offset is not None for attempt in attempts)
    refused = sum(bool(attempt.refused) for attempt in attempts)
    unknown = len(attempts) - acked - refused
    return {"acknowledged": acked, "unknown": unknown, "unknown and written": len(first) - acked, "refused": refused}


def _judge_one(attempt: Attempt, found: Message | None) -> None:
    if attempt.refused:
        assert found is None, f"{attempt} was refused, and is written"
    elif attempt.offset is not None:
        assert found is not None, f"{attempt} was acknowledged, and is lost"
        assert (found.offset, found.index) == (attempt.offset, attempt.index), f"{attempt} is elsewhere: {found}"


def _judge_time(attempts: Sequence[Attempt]) -> None:
    """What was acknowledged before another was invoked has the lower offset."""
    done = sorted((attempt for attempt in attempts if attempt.offset is not None), key=lambda one: one.acked_s)
    highest, place = -1, 0
    for later in sorted(done, key=lambda one: one.invoked_s):
        while place < len(done) and done[place].acked_s < later.invoked_s:
            highest = max(highest, done[place].offset or 0)
            place += 1
        assert later.offset is not None
        assert later.offset > highest, f"{later} was invoked after offset {highest} was acknowledged"


def gaps(histories: Sequence[Sequence[Attempt]], kills_s: Sequence[float]) -> list[float]:
    """From each blow to the next acknowledgement of something that was invoked after it."""
    done = sorted((one.acked_s, one.invoked_s) for history in histories for one in history if one.offset is not None)
    found = [next((acked - kill for acked, invoked in done if invoked >= kill), None) for kill in kills_s]
    return [gap for gap in found if gap is not None]
