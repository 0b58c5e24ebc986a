"""The load on a journal: writers that use both ways to write, and a reading of every node at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaplain.client.connect.options import Secret
from chaplain.client.sync import Client
from chaplain.client.types.journal import Message
from chaplain.config import endpoints_of, load_cluster
from chaplain.drill.cluster import TIMEOUT_S, DrillCluster
from chaplain.drill.faults import Fault
from chaplain.drill.journal_history import Attempt, judge
from chaplain.drill.violations import JOURNAL, KindVerdict
from chaplain.errors import ChaplainError, Unknown
from chaplain.runtime.cluster.probe import get_status

WRITERS = 4
BATCH = 20
PACE_S = 0.01
POLL_S = 0.05


class DrillWriter(threading.Thread):
    """Writes numbered values until it is stopped, and records the outcome of each.

    Writers with an even number write single messages; those with an odd number use `writer()`.
    """

    def __init__(
        self,
        directory: Path,
        stream: str,
        number: int,
        timeout_s: float = 10.0,
        *,
        identity: Secret | None = None,
        pace_s: float = 0.0,
    ) -> None:
        super().__init__(daemon=True, name=f"drill writer {number}")
        self.number = number
        self.attempts: list[Attempt] = []
        self.failure: BaseException | None = None
        self._directory = directory
        self._stream = stream
        self._timeout_s = timeout_s
        self._identity = identity
        self._pace_s = pace_s
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            # Each writer prefers another node, so that all nodes take writes.
            endpoints = [*endpoints_of(load_cluster(self._directory).nodes)]
            first = self.number % len(endpoints)
            rotated = endpoints[first:] + endpoints[:first]
            connection = Client.connect(
                self._directory, endpoints=rotated, identity=self._identity, timeout=self._timeout_s
            )
            with connection as client:
                while not self._stopped.is_set():
                    self._write_batch(client) if self.number % 2 else self._write_one(client)
                    self._stopped.wait(self._pace_s)
        except BaseException as error:  # `end` raises it in the main thread
            self.failure = error

    def stop(self) -> None:
        self._stopped.set()

    def end(self) -> list[Attempt]:
        """Stop, wait for the thread, and return all attempts."""
        self.stop()
        self.join(TIMEOUT_S)
        if self.is_alive() or self.failure is not None:
            raise ChaplainError(f"a writer of the drill did not end well: {self.failure or 'it hangs'}")
        return self.attempts

    def acked_since(self, since_s: float) -> int:
        """Return how many writes that began after this time are acknowledged."""
        count = 0
        for attempt in reversed(self.attempts.copy()):
            if attempt.invoked_s < since_s:
                break
            count += attempt.offset is not None
        return count

    def _begin_attempt(self) -> Attempt:
        attempt = Attempt(b"%d:%d" % (self.number, len(self.attempts)), time.monotonic())
        self.attempts.append(attempt)
        return attempt

    def _write_one(self, client: Client) -> None:
        attempt = self._begin_attempt()
        try:
            receipt = client.journal(self._stream).write(attempt.value)
        except Unknown:
            return
        except ChaplainError as error:
            attempt.refused = str(error)
            return
        attempt.offset, attempt.index, attempt.hash = receipt.offset, receipt.index, receipt.hash
        attempt.acked_s = time.monotonic()

    def _write_batch(self, client: Client) -> None:
        writer = client.journal(self._stream).writer(receipts=True)
        batch = []
        try:
            with writer:
                for _ in range(BATCH):
                    batch.append(self._begin_attempt())
                    writer.write(batch[-1].value)
        except ChaplainError:
            pass  # the outcome of writes without a receipt is unknown
        now_s = time.monotonic()
        for attempt, receipt in zip(batch, writer.take_receipts(), strict=False):
            attempt.offset, attempt.index, attempt.hash = receipt.offset, receipt.index, receipt.hash
            attempt.acked_s = now_s


def read_all(directory: Path, node: int, stream: str) -> list[Message]:
    """Return all messages of the stream that one node has."""
    with Client.connect(directory, node=node, timeout=TIMEOUT_S) as client:
        return list(client.journal(stream).read())


class JournalLoad:
    """Writers of one journal stream."""

    stream_kind = JOURNAL

    def __init__(self, cluster: DrillCluster) -> None:
        self._cluster = cluster
        self.writers = [
            DrillWriter(cluster.directory, cluster.stream, number, identity=cluster.identity, pace_s=PACE_S)
            for number in range(WRITERS)
        ]

    def start(self) -> None:
        for writer in self.writers:
            writer.start()

    def acked_since(self, since_s: float) -> int:
        return sum(writer.acked_since(since_s) for writer in self.writers)

    def first_acked(self, since_s: float) -> float | None:
        attempts = [one for writer in self.writers for one in writer.attempts.copy()]
        return min((one.acked_s for one in attempts if one.acked_s and one.invoked_s >= since_s), default=None)

    def missing(self, since_s: float, statuses: Sequence[Mapping[str, object]]) -> str:
        return ""

    def end(self) -> None:
        for writer in self.writers:
            writer.stop()
        for writer in self.writers:
            writer.end()

    def judge(self, faults: Sequence[Fault]) -> KindVerdict:
        self._wait_until_caught_up()
        stream = self._cluster.stream
        readings, unread = self._cluster.read(self.stream_kind, lambda client: list(client.journal(stream).read()))
        histories = [writer.attempts for writer in self.writers]
        attempts = [attempt for history in histories for attempt in history]
        acknowledged = sum(attempt.offset is not None for attempt in attempts)
        refused = sum(bool(attempt.refused) for attempt in attempts)
        counts = (acknowledged, len(attempts) - acknowledged - refused, refused)
        return KindVerdict(self.stream_kind, *counts, (*unread, *judge(histories, readings)))

    def _wait_until_caught_up(self) -> None:
        """Wait until all nodes have the same log. If they never do, their readings differ, which is a break."""
        end_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end_s:
            seen = [get_status(node.http) or {} for node in self._cluster.nodes]
            if len({(one.get("agreed"), one.get("chain")) for one in seen}) == 1 and seen[0].get("chain"):
                return
            time.sleep(POLL_S)
