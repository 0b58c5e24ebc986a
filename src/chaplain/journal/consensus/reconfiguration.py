"""What a master does next about the changes under way: which stage is due, and whom it has heard.

Decides when Catchup becomes Live, Block becomes Drop, and Nominate becomes Refuse or Implement, and Implement Confirm.
Refuses to know how a stage is ordered (`office`) and what it changes (`assembly`).

| stage | the next one is due when |
|---|---|
| Catchup | the node holds the message that added it |
| Block | the node says that nothing of it waits, or is silent for `drain_ns` |
| Nominate | Refuse at once, if the set is the same; Refuse, if one of its nodes is silent or comes no further for
  `nomination_ns`; Implement, when all of them were heard lately and hold the message that nominated them |
| Implement | at once: the quorum of both sets is what it waits for |

Everything here is forgotten with the tenure: the next master watches anew.
"""

from __future__ import annotations

from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.messages.membership import EntryType, SetRefusal, Stage, StageStep
from chaplain.journal.model.cluster_config import ConfigChange


class Progress:
    """When each node was heard last, and how far it is."""

    def __init__(self, now_ns: int) -> None:
        self._began_ns = now_ns
        self._heard_ns: dict[int, int] = {}
        self._moved_ns: dict[int, int] = {}
        self._reach: dict[int, int] = {}

    def hear(self, now_ns: int, node: int, index: int) -> None:
        self._heard_ns[node] = now_ns
        if index > self.reach(node):
            self._reach[node] = index
            self._moved_ns[node] = now_ns

    def reach(self, node: int) -> int:
        """The furthest message that it says it holds."""
        return self._reach.get(node, 0)

    def heard_ns(self, node: int) -> int:
        """When it was heard; whoever was not yet is given the time that it takes."""
        return self._heard_ns.get(node, self._began_ns)

    def spoke(self, node: int) -> bool:
        return node in self._heard_ns

    def moved_ns(self, node: int) -> int:
        return self._moved_ns.get(node, 0)


class Reconfiguration:
    def __init__(self, bench: ConsensusContext, watch: Progress) -> None:
        self._bench = bench
        self._watch = watch
        self._drained: list[int] = []
        self._noticed_ns: dict[bytes, int] = {}
        """When we saw each change first, as this master."""

    def drained(self, node: int) -> None:
        if node not in self._drained:
            self._drained.append(node)

    def due(self, now_ns: int) -> StageStep | None:
        """The first stage that is due, if any is."""
        for change in self._bench.log.cluster_config.changes:
            if change.open:
                self._noticed_ns.setdefault(change.id, now_ns)
                step = self._next(now_ns, change)
                if step is not None:
                    return step
        return None

    def _next(self, now_ns: int, change: ConfigChange) -> StageStep | None:
        match change.stage:
            case Stage.CATCHUP:
                node = change.nodes[0]  # if it is ours, it is as far as whatever we go by here
                there = node == self._bench.settings.node or self._watch.reach(node) >= change.since
                return _step(change, Stage.LIVE) if there else None
            case Stage.BLOCK:
                return _step(change, Stage.DROP) if self._is_drained(now_ns, change) else None
            case Stage.NOMINATE:
                return self._judge(now_ns, change)
            case _:
                return _step(change, Stage.CONFIRM)

    def _is_drained(self, now_ns: int, change: ConfigChange) -> bool:
        node = change.nodes[0]
        silent_ns = now_ns - max(self._watch.heard_ns(node), self._noticed_ns[change.id])
        silent = node != self._bench.settings.node and silent_ns >= self._bench.settings.drain_ns
        return silent or (node in self._drained and not self._bench.shelf.holds(node))

    def _judge(self, now_ns: int, change: ConfigChange) -> StageStep | None:
        if sorted(change.nodes) == sorted(self._bench.log.cluster_config.serializers):
            return _step(change, Stage.REFUSE, SetRefusal.SAME_SET)
        others = [node for node in change.nodes if node != self._bench.settings.node]
        for node in others:
            if self._is_late(now_ns, change, node):
                return _step(change, Stage.REFUSE, SetRefusal.TIMED_OUT, node)
        ready = all(self._is_ready(now_ns, change, node) for node in others)
        return _step(change, Stage.IMPLEMENT) if ready else None

    def _is_ready(self, now_ns: int, change: ConfigChange, node: int) -> bool:
        watch = self._watch
        lately = watch.spoke(node) and now_ns - watch.heard_ns(node) < self._bench.settings.election_ns
        return lately and watch.reach(node) >= change.since

    def _is_late(self, now_ns: int, change: ConfigChange, node: int) -> bool:
        watch = self._watch
        there = watch.reach(node) >= change.since
        alive_ns = watch.heard_ns(node) if there else watch.moved_ns(node)
        return now_ns - max(alive_ns, self._noticed_ns[change.id]) >= self._bench.settings.nomination_ns


def _step(change: ConfigChange, stage: Stage, reason: SetRefusal = SetRefusal.NONE, about: int = 0) -> StageStep:
    return StageStep(EntryType(change.entry_type), stage, change.nodes, change.id, reason, about)
