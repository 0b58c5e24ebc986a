"""The loads on a graph and on a sequence: a client at each node, and readings of every node in the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from chaplain.client.sync import Client
from chaplain.drill.cluster import PATIENCE_S, Access
from chaplain.drill.follower import DrillFollower
from chaplain.drill.graph_history import judge_graph
from chaplain.drill.load import Blow
from chaplain.drill.sequence_history import judge_sequence
from chaplain.drill.violations import GRAPH, SEQUENCE, Judged
from chaplain.drill.workers import Clerks, WriteAttempt, counted
from chaplain.runtime.cluster.probe import get_status

POLL_S = 0.05
Statuses = Sequence[Mapping[str, object]]


class _EntryLoad:
    def __init__(self, access: Access, of: str, enter: Callable[[Client, WriteAttempt], None]) -> None:
        self.of = of
        self._access = access
        self._clerks = Clerks(access, of, enter)

    def start(self) -> None:
        self._clerks.start()

    def end(self) -> None:
        self._clerks.end()

    def acked_since(self, since_s: float) -> int:
        return len(self._clerks.acked(since_s))

    def first_acked(self, since_s: float) -> float | None:
        return min(self._clerks.acked(since_s), default=None)

    def _wait_until(self, same: Callable[[Statuses], bool]) -> None:
        """Nodes that were away catch up; if they never do, their readings will differ, and that is said."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s and not same([get_status(node.http) or {} for node in self._access.nodes]):
            time.sleep(POLL_S)


class GraphLoad(_EntryLoad):
    def __init__(self, access: Access) -> None:
        super().__init__(access, GRAPH, self._append)

    def _append(self, client: Client, entry: WriteAttempt) -> None:
        entry.id = client.graph(self._access.stream).append(entry.value).id

    def missing(self, since_s: float, statuses: Statuses) -> str:
        return ""

    def judge(self, blows: Sequence[Blow]) -> Judged:
        self._wait_until(self._same)
        readings, unread = self._access.read(self.of, lambda client: list(client.graph(self._access.stream).read()))
        entries = self._clerks.entries
        return Judged(self.of, *counted(entries), (*unread, *judge_graph(entries, readings)))

    def _same(self, statuses: Statuses) -> bool:
        """One fingerprint of the Model."""
        models = [_part(_part(status, "graph"), self._access.stream).get("fingerprint") for status in statuses]
        return models[0] is not None and len({str(model) for model in models}) == 1


class SequenceLoad(_EntryLoad):
    def __init__(self, access: Access) -> None:
        super().__init__(access, SEQUENCE, self._publish)
        self._follower = DrillFollower(access)

    def start(self) -> None:
        self._follower.start()
        super().start()

    def _publish(self, client: Client, entry: WriteAttempt) -> None:
        entry.number = client.sequence(self._access.stream).publish(entry.value)

    def missing(self, since_s: float, statuses: Statuses) -> str:
        """Who was restarted has joined anew: until then one more loss could take the majority."""
        wanted = sorted(node.id for node in self._access.nodes)
        parts = [_part(status, "sequence") for status in statuses]
        joined = all(part.get("state") == "WRK" and part.get("work_set") == wanted for part in parts)
        return "" if joined and len({str(part.get("history")) for part in parts}) == 1 else "the work set is not whole"

    def judge(self, blows: Sequence[Blow]) -> Judged:
        self._wait_until(_same_number)
        stream = self._access.stream
        readings, unread = self._access.read(self.of, lambda client: list(client.sequence(stream).read()))
        entries = self._clerks.entries
        since_s = max((blow.over_s for blow in blows if blow.forgets), default=0.0)
        last = max((entry.number for entry in entries if entry.acked_s and entry.invoked_s >= since_s), default=0)
        breaks, left_out = judge_sequence(entries, readings, since_s, self._follower.end(last))
        return Judged(self.of, *counted(entries), (*unread, *breaks), tuple(left_out))


def _same_number(statuses: Statuses) -> bool:
    ends = [(_part(status, "sequence").get("number"), _part(status, "sequence").get("hash")) for status in statuses]
    return ends[0][1] is not None and len({*map(str, ends)}) == 1


def _part(status: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = status.get(name)
    return found if isinstance(found, dict) else {}
