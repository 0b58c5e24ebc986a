"""One-line mutations of checkpoints and of what is dropped for them; the `retention` workload must catch each.

That a wiped disk does not vote at once is judged where votes are: `order`.
"""

from __future__ import annotations

from simulator.mutate import Bug, caught_by_tests

_BY = ("retention", "requests", "assert")


def _bug(name: str, module: str, old: str, new: str, *, mode: str = "safety", seeds: int = 60) -> Bug:
    return Bug(name, f"chaplain.journal.{module}", old, new, "retention", _BY, seeds, mode)


BUGS = [
    _bug(
        "drop behind the checkpoint",
        "snapshots.checkpointer",
        "limit = min(self.covered_through(), self.first_needed() - 1)",
        "limit = min(log.agreed, self.first_needed() - 1)",
    ),
    _bug(
        "drop what no quorum has",
        "snapshots.checkpointer",
        "        return self._execution.cluster_config.quorum.reached([*confirming, self._settings.node])",
        "        return True",
    ),
    _bug(
        "drop before the checkpoint is on disk",
        "snapshots.checkpointer",
        "        self.effects.append(Persist(self._ticket, (*self._before(), Replace(file, data))))",
        "        self.effects.append(Persist(self._ticket, (*self._before(), Replace(file, data))))\n"
        "        self.durable = own.index\n        self.broadcast_offer()",
    ),
    caught_by_tests(
        "drop what is to be kept",
        "journal.snapshots.retention",
        "    if segment.last <= released:",
        "    if segment.last:",
        "unit/journal/snapshots/test_checkpoints.py",
    ),
    caught_by_tests(
        "believe a state whatever its digest",
        "journal.snapshots.install",
        "            if sha256(state).digest() != wanted.digest:",
        "            if not state:",
        "unit/journal/snapshots/test_checkpoints.py",
    ),
    caught_by_tests(
        "take pieces of a state from a node that was not asked",
        "journal.snapshots.install",
        "self._writing or node != self._source or node in self._liars:",
        "self._writing or node in self._liars:",
        "unit/journal/snapshots/test_checkpoints.py",
    ),
    caught_by_tests(
        "ask a node again that sent a forged state",
        "journal.snapshots.install",
        "            self._liars.add(node)\n",
        "            pass\n",
        "unit/journal/snapshots/test_checkpoints.py",
    ),
    _bug(
        "believe one node about a checkpoint",
        "snapshots.install",
        "            if quorum.reached(alike):",
        "            if alike:",
    ),
    _bug(
        "start again before the checkpoint is on disk",
        "snapshots.install",
        "        self.effects.append(Persist(1, (file,)))",
        "        self.effects.append(Persist(1, (file,)))\n        self.written()",
    ),
    _bug(
        "take down a state that is not whole",
        "snapshots.service",
        "    return checkpoint.make(executed.position.index, execution.state.export())",
        "    execution.state.proofs.clear()\n"
        "    return checkpoint.make(executed.position.index, execution.state.export())",
    ),
    _bug(
        "drop one message more",
        "storage.segment_index",
        "            if segment.last > limit:",
        "            if segment.last > limit + 1:",
    ),
    _bug(
        "a message is only where it ends",
        "storage.segment_index",
        "            if segment.base < end:",
        "            if segment.base < end <= segment.end:",
    ),
    _bug(
        "drop what is staged",
        "snapshots.retention",
        "    return min(owed, staged.index if staged is not None else NOT_NEEDED, *others)",
        "    return min(NOT_NEEDED, *others)",
        mode="liveness",
        seeds=110,  # it takes a batch that is committed just when everybody has covered what was staged
    ),
    _bug(
        "do not wait for who comes back",
        "snapshots.checkpointer",
        ", *self._lagging.checkpoints()])",
        "])",
        mode="liveness",
    ),
    _bug(
        "ask those who have dropped it",
        "snapshots.install",
        "            return bool(ahead)\n",
        "            return False\n",
        mode="liveness",
    ),
    Bug(
        "leave what others keep to them",
        "chaplain.journal.consensus.backfill",
        "        if not log.hash_before_first or self._retention_reached or log.index_only:",
        "        if log.hash_before_first or self._retention_reached or log.index_only:",
        "disks",
        _BY,
        30,
        "liveness",
    ),
]
