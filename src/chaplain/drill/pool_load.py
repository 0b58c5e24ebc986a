"""The load on a pool: at each node a client that broadcasts numbers, and one that listens."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from chaplain.client.sync import Client
from chaplain.drill.cluster import TIMEOUT_S, DrillCluster
from chaplain.drill.faults import Fault
from chaplain.drill.load import Worker
from chaplain.drill.pool_history import PoolHeard, judge_pool
from chaplain.drill.violations import POOL, BrokenPromise, KindVerdict, shown

LISTEN_S = 0.2
POLL_S = 0.05
IN_FLIGHT_S = 1.0
"""A fault also excuses losses of broadcasts that were acknowledged this long before it: they may be in flight still."""


class Speaker(Worker):
    """Broadcasts consecutive numbers, and records when each was sent and acknowledged."""

    def __init__(self, cluster: DrillCluster, node: int) -> None:
        super().__init__(cluster, node, f"pool speaker at node {node}")
        self.invoked_s: list[float] = []
        self.acked_s: list[float] = []

    def run_once(self, client: Client) -> None:
        self.acked_s.append(0.0)
        self.invoked_s.append(time.monotonic())
        number = len(self.invoked_s) - 1
        client.pool(self.cluster.stream).broadcast(b"%d:%d" % (self.node, number))
        self.acked_s[number] = time.monotonic()


class PoolListener(Worker):
    """Records all broadcasts that it receives, of all speakers."""

    def __init__(self, cluster: DrillCluster, node: int) -> None:
        super().__init__(cluster, node, f"pool listener at node {node}")
        self.heard: list[PoolHeard] = []
        self.foreign: list[bytes] = []
        self._last: dict[int, int] = {}
        self._reconnected = False

    def on_connected(self, client: Client) -> None:
        self._reconnected = bool(self.heard)

    def run_once(self, client: Client) -> None:
        for message in client.pool(self.cluster.stream).listen(timeout=LISTEN_S):
            # A client that reconnected knows of the gap without being informed.
            gap_reported = message.missed > 0 or message.moved or self._reconnected
            self._reconnected = False
            self._record(message.value, gap_reported)
            if self.stopped.is_set():
                return

    def _record(self, value: bytes, gap_reported: bool) -> None:
        speaker, _, number = value.partition(b":")
        if not speaker.isdigit() or not number.isdigit():
            self.foreign.append(value)
            return
        self.heard.append(PoolHeard(int(speaker), int(number), gap_reported))
        self._last[int(speaker)] = int(number)

    def last_of(self, speaker: int) -> int:
        return self._last.get(speaker, -1)


class PoolLoad:
    """A speaker and a listener at each node."""

    stream_kind = POOL

    def __init__(self, cluster: DrillCluster) -> None:
        self._speakers = [Speaker(cluster, node.id) for node in cluster.nodes]
        self._listeners = [PoolListener(cluster, node.id) for node in cluster.nodes]

    def start(self) -> None:
        for worker in (*self._listeners, *self._speakers):
            worker.start()

    def acked_since(self, since_s: float) -> int:
        return len(self._acked(since_s))

    def first_acked(self, since_s: float) -> float | None:
        return min(self._acked(since_s), default=None)

    def _acked(self, since_s: float) -> list[float]:
        pairs = [pair for one in self._speakers for pair in zip(one.invoked_s.copy(), one.acked_s.copy(), strict=False)]
        return [acked_s for invoked_s, acked_s in pairs if acked_s and invoked_s >= since_s]

    def missing(self, since_s: float, statuses: Sequence[Mapping[str, object]]) -> str:
        """Every listener must have received a broadcast of every speaker that was sent after this time."""
        for listener in self._listeners:
            for speaker in self._speakers:
                number = listener.last_of(speaker.node)
                if number < 0 or speaker.invoked_s[number] < since_s:
                    return f"the listener at node {listener.node} hears nothing of node {speaker.node}"
        return ""

    def end(self) -> None:
        for worker in self._speakers:
            worker.stopped.set()
        for worker in self._speakers:
            worker.end()
        self._wait_for_last_broadcasts()
        for listener in self._listeners:
            listener.stopped.set()
        for listener in self._listeners:
            listener.end()

    def _wait_for_last_broadcasts(self) -> None:
        """Give the last broadcasts time to arrive. Those that do not arrive count as lost."""
        lasts = {
            speaker.node: max((at for at, acked_s in enumerate(speaker.acked_s) if acked_s), default=-1)
            for speaker in self._speakers
        }
        end_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end_s:
            if all(listener.last_of(node) >= last for listener in self._listeners for node, last in lasts.items()):
                return
            time.sleep(POLL_S)

    def judge(self, faults: Sequence[Fault]) -> KindVerdict:
        sent = {speaker.node: speaker.acked_s for speaker in self._speakers}
        received = {listener.node: listener.heard for listener in self._listeners}
        spans = [(fault.from_s - IN_FLIGHT_S, fault.to_s) for fault in faults]
        breaks, losses = judge_pool(sent, received, spans)
        foreign = [value for listener in self._listeners for value in listener.foreign]
        breaks += [BrokenPromise("foreign", None, f"no client broadcast {shown(value)}", POOL) for value in foreign]
        acknowledged = sum(acked_s > 0 for times in sent.values() for acked_s in times)
        unknown = sum(map(len, sent.values())) - acknowledged
        reported = sum(one.gap_reported for heard in received.values() for one in heard)
        counts = (acknowledged, unknown, 0)
        return KindVerdict(self.stream_kind, *counts, tuple(breaks), (), losses.lost, reported, losses.unreported)
