"""The loads on a graph and on a sequence: a writer at each node, and a reading of every node at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from chaplain.client.api.sequence_calls import SequenceEvent
from chaplain.client.sync import Client
from chaplain.drill.cluster import RETRY_S, TIMEOUT_S, DrillCluster
from chaplain.drill.faults import Fault
from chaplain.drill.graph_history import judge_graph
from chaplain.drill.sequence_history import judge_sequence
from chaplain.drill.violations import GRAPH, SEQUENCE, KindVerdict
from chaplain.drill.workers import EntryWriters, WriteAttempt, counted
from chaplain.errors import ChaplainError
from chaplain.runtime.cluster.probe import get_status

POLL_S = 0.05
Statuses = Sequence[Mapping[str, object]]


class _EntryLoad:
    def __init__(self, cluster: DrillCluster, stream_kind: str, write: Callable[[Client, WriteAttempt], None]) -> None:
        self.stream_kind = stream_kind
        self._cluster = cluster
        self._writers = EntryWriters(cluster, stream_kind, write)

    def start(self) -> None:
        self._writers.start()

    def end(self) -> None:
        self._writers.end()

    def acked_since(self, since_s: float) -> int:
        return len(self._writers.acked(since_s))

    def first_acked(self, since_s: float) -> float | None:
        return min(self._writers.acked(since_s), default=None)

    def _wait_until(self, converged: Callable[[Statuses], bool]) -> None:
        """Wait until restarted nodes have caught up. If they never do, their readings differ, which is a break."""
        end_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end_s and not converged([get_status(node.http) or {} for node in self._cluster.nodes]):
            time.sleep(POLL_S)


class GraphLoad(_EntryLoad):
    """Appends to a graph."""

    def __init__(self, cluster: DrillCluster) -> None:
        super().__init__(cluster, GRAPH, self._append)

    def _append(self, client: Client, attempt: WriteAttempt) -> None:
        attempt.id = client.graph(self._cluster.stream).append(attempt.value).id

    def missing(self, since_s: float, statuses: Statuses) -> str:
        return ""

    def judge(self, faults: Sequence[Fault]) -> KindVerdict:
        self._wait_until(self._has_converged)
        stream = self._cluster.stream
        readings, unread = self._cluster.read(
            self.stream_kind, lambda client: list(client.graph(stream).read(unread=True))
        )
        attempts = self._writers.attempts
        return KindVerdict(self.stream_kind, *counted(attempts), (*unread, *judge_graph(attempts, readings)))

    def _has_converged(self, statuses: Statuses) -> bool:
        """Return whether the Model of all nodes has the same fingerprint."""
        models = [_part(_part(status, "graph"), self._cluster.stream).get("fingerprint") for status in statuses]
        return models[0] is not None and len({str(model) for model in models}) == 1


class SequenceLoad(_EntryLoad):
    """Publishes on a sequence, and follows it with a reader."""

    def __init__(self, cluster: DrillCluster) -> None:
        super().__init__(cluster, SEQUENCE, self._publish)
        self._follower = SequenceFollower(cluster)

    def start(self) -> None:
        self._follower.start()
        super().start()

    def _publish(self, client: Client, attempt: WriteAttempt) -> None:
        attempt.number = client.sequence(self._cluster.stream).publish(attempt.value)

    def missing(self, since_s: float, statuses: Statuses) -> str:
        """Restarted nodes must be in the work set again: until then, one more kill could cost the majority."""
        wanted = sorted(node.id for node in self._cluster.nodes)
        parts = [_part(status, "sequence") for status in statuses]
        joined = all(part.get("state") == "WRK" and part.get("work_set") == wanted for part in parts)
        one_history = len({str(part.get("history")) for part in parts}) == 1
        return "" if joined and one_history else "the work set is not complete"

    def judge(self, faults: Sequence[Fault]) -> KindVerdict:
        self._wait_until(_same_number)
        stream = self._cluster.stream
        readings, unread = self._cluster.read(self.stream_kind, lambda client: list(client.sequence(stream).read()))
        attempts = self._writers.attempts
        since_s = max((fault.over_s for fault in faults if fault.memory_lost), default=0.0)
        last = max((one.number for one in attempts if one.acked_s and one.invoked_s >= since_s), default=0)
        breaks, left_out = judge_sequence(attempts, readings, since_s, self._follower.end(last))
        return KindVerdict(self.stream_kind, *counted(attempts), (*unread, *breaks), tuple(left_out))


class SequenceFollower(threading.Thread):
    """Reads a sequence as it is written, at whichever node serves it.

    A restarted node joins the sequence at the present number, without earlier events. Once every node has been
    restarted, only a reader that was connected all the time has the earlier ones.
    """

    def __init__(self, cluster: DrillCluster) -> None:
        super().__init__(daemon=True, name="follower of the sequence")
        self.events: list[SequenceEvent] = []
        """Consecutive events of one history. When the history ends, or the reader falls behind, the list restarts."""
        self.failure: BaseException | None = None
        self._cluster = cluster
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._follow()
                self._stopped.wait(RETRY_S)
        except BaseException as error:  # `end` raises it in the main thread
            self.failure = error

    def _follow(self) -> None:
        try:
            with self._cluster.connect(timeout_s=TIMEOUT_S) as client:
                self.events = []
                for event in client.sequence(self._cluster.stream).read(follow=True):
                    self.events.append(event)
                    if self._stopped.is_set():
                        return
        except ChaplainError:
            pass  # the history has ended, or no node has the next event

    def end(self, number: int) -> list[SequenceEvent]:
        """Return the events, after waiting up to `TIMEOUT_S` for this number.

        The thread is not joined: it may wait for an event that never comes.
        """
        end_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end_s and (not self.events or self.events[-1].number < number):
            time.sleep(POLL_S)
        self._stopped.set()
        if self.failure is not None:
            raise ChaplainError(f"{self.name} did not end well: {self.failure}")
        return self.events.copy()


def _same_number(statuses: Statuses) -> bool:
    """Return whether all nodes have the same last number with the same hash."""
    ends = [(_part(status, "sequence").get("number"), _part(status, "sequence").get("hash")) for status in statuses]
    return ends[0][1] is not None and len({*map(str, ends)}) == 1


def _part(status: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = status.get(name)
    return found if isinstance(found, dict) else {}
