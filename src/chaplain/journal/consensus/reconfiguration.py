"""Advances configuration changes: selects the stage of a change that is due, and records the progress of each node.

Decides when Catchup becomes Live, Block becomes Drop, Nominate becomes Refuse or Implement, and Implement becomes
Confirm. Does not know how a stage is ordered (`master`) and what it changes (`model.cluster_config`).

| stage     | the next stage is due |
|---|---|
| Catchup   | when the node has the message that added it |
| Block     | when the node reports that none of its payloads waits, or has been silent for `drain_ns` |
| Nominate  | Refuse: at once if the new set equals the old one; or if one of its nodes is silent, or makes no
              progress, for `nomination_ns`. Implement: when all of them were heard within `election_ns` and have
              the message that nominated them |
| Implement | Confirm: at once. A majority of both sets must agree on it, and that is the whole condition |

This state belongs to one master. The next master begins with an empty `Progress`.
"""

from __future__ import annotations

from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.messages.membership import EntryType, SetRefusal, Stage, StageStep
from chaplain.journal.model.cluster_config import ConfigChange


class Progress:
    """Per node: when the master heard it last, and the last index that it reported (Raft's follower progress)."""

    def __init__(self, now_ns: int) -> None:
        self._began_ns = now_ns
        self._last_heard_ns: dict[int, int] = {}
        self._last_progress_ns: dict[int, int] = {}
        self._last_index: dict[int, int] = {}

    def record(self, now_ns: int, node: int, index: int) -> None:
        """A node reported that it has messages up to `index`."""
        self._last_heard_ns[node] = now_ns
        if index > self.last_index(node):
            self._last_index[node] = index
            self._last_progress_ns[node] = now_ns

    def last_index(self, node: int) -> int:
        """The highest index that the node has reported; 0 if none."""
        return self._last_index.get(node, 0)

    def last_heard_ns(self, node: int) -> int:
        """When the node was heard last. A node not heard yet counts as heard when this mastership began."""
        return self._last_heard_ns.get(node, self._began_ns)

    def has_heard(self, node: int) -> bool:
        """True if the node has reported anything to this master."""
        return node in self._last_heard_ns

    def last_progress_ns(self, node: int) -> int:
        """When the node's last index increased; 0 if never."""
        return self._last_progress_ns.get(node, 0)


class Reconfiguration:
    """Chooses the next stage of the open changes."""

    def __init__(self, context: ConsensusContext, progress: Progress) -> None:
        self._context = context
        self._progress = progress
        self._drained: list[int] = []
        """Ingest nodes that reported that none of their payloads waits."""
        self._first_seen_ns: dict[bytes, int] = {}
        """When this master saw each change first."""

    def ingest_drained(self, node: int) -> None:
        if node not in self._drained:
            self._drained.append(node)

    def next_step(self, now_ns: int) -> StageStep | None:
        """The first stage that is due, or None."""
        for change in self._context.log.cluster_config.changes:
            if change.open:
                self._first_seen_ns.setdefault(change.id, now_ns)
                step = self._next_stage(now_ns, change)
                if step is not None:
                    return step
        return None

    def _next_stage(self, now_ns: int, change: ConfigChange) -> StageStep | None:
        match change.stage:
            case Stage.CATCHUP:
                node = change.nodes[0]  # the master itself has every message that it has agreed on
                has_it = node == self._context.settings.node or self._progress.last_index(node) >= change.since
                return _step(change, Stage.LIVE) if has_it else None
            case Stage.BLOCK:
                return _step(change, Stage.DROP) if self._is_drained(now_ns, change) else None
            case Stage.NOMINATE:
                return self._judge_nomination(now_ns, change)
            case _:
                # From Implement on, a message needs a majority of both sets. So Confirm can be agreed only with the new
                # set, and nothing else has to be waited for.
                return _step(change, Stage.CONFIRM)

    def _is_drained(self, now_ns: int, change: ConfigChange) -> bool:
        """True if the ingest node has no payloads left to order, or has been silent for `drain_ns`."""
        node = change.nodes[0]
        silent_ns = now_ns - max(self._progress.last_heard_ns(node), self._first_seen_ns[change.id])
        silent = node != self._context.settings.node and silent_ns >= self._context.settings.drain_ns
        return silent or (node in self._drained and not self._context.payload_queue.has_any_of(node))

    def _judge_nomination(self, now_ns: int, change: ConfigChange) -> StageStep | None:
        """Refuse or implement a nominated set, or None while it is too early for either."""
        if sorted(change.nodes) == sorted(self._context.log.cluster_config.serializers):
            return _step(change, Stage.REFUSE, SetRefusal.SAME_SET)
        others = [node for node in change.nodes if node != self._context.settings.node]
        for node in others:
            if self._is_late(now_ns, change, node):
                return _step(change, Stage.REFUSE, SetRefusal.TIMED_OUT, node)
        ready = all(self._is_ready(now_ns, change, node) for node in others)
        return _step(change, Stage.IMPLEMENT) if ready else None

    def _is_ready(self, now_ns: int, change: ConfigChange, node: int) -> bool:
        """True if the node was heard within `election_ns` and has the message that nominated it."""
        progress = self._progress
        lately = progress.has_heard(node) and now_ns - progress.last_heard_ns(node) < self._context.settings.election_ns
        return lately and progress.last_index(node) >= change.since

    def _is_late(self, now_ns: int, change: ConfigChange, node: int) -> bool:
        """True if the node was silent, or made no progress towards that message, for `nomination_ns`."""
        progress = self._progress
        has_it = progress.last_index(node) >= change.since
        alive_ns = progress.last_heard_ns(node) if has_it else progress.last_progress_ns(node)
        return now_ns - max(alive_ns, self._first_seen_ns[change.id]) >= self._context.settings.nomination_ns


def _step(change: ConfigChange, stage: Stage, reason: SetRefusal = SetRefusal.NONE, about: int = 0) -> StageStep:
    return StageStep(EntryType(change.entry_type), stage, change.nodes, change.id, reason, about)
