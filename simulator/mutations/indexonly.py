"""One-line mutations of what index-only serializers need; the `indexonly` workload must catch each."""

from __future__ import annotations

from simulator.mutate import Bug, caught_by_tests

_BY = ("copies", "requests", "retention", "assert")


def _bug(name: str, module: str, old: str, new: str, *, by: tuple[str, ...] = _BY) -> Bug:
    return Bug(name, f"chaplain.journal.{module}", old, new, "indexonly", by, 100)


BUGS = [
    _bug(
        "order before the copies are there",
        "consensus.master",
        "            if pre_replication.is_complete:",
        "            if pre_replication:",
    ),
    _bug(
        "show it to serializers at once",
        "consensus.master",
        "        if log.copies and message.entries:",
        "        if log.copies > len(message.entries) > 0:",
    ),
    _bug(
        "count a copy that is not synced",
        "consensus.follower",
        "        self._context.barrier.send_after_sync(node, acknowledge)",
        "        self._context.barrier.send_now(node, acknowledge)",
    ),
    _bug(
        "count the same node twice",
        "consensus.acks",
        "            self._acknowledged.add(node)",
        "            self._acknowledged.add((node, len(self._acknowledged)))",
    ),
    _bug(
        "be content with fewer copies",
        "consensus.acks",
        "        return len(self._acknowledged) >= self._copies",
        "        return len(self._acknowledged) >= max(1, self._copies - 1)",
    ),
    _bug(
        "count a copy of something else",
        "consensus.acks",
        "        if same and node in self._holders:",
        "        if node in self._holders:",
    ),
    _bug(
        "write it down before there are copies",
        "consensus.master",
        "        self._pre_replication = PreReplication(now_ns, message",
        "        self._store_and_send(message)\n        self._pre_replication = PreReplication(now_ns, message",
    ),
    _bug(
        "an index-only serializer keeps payloads",
        "storage.log",
        "        with_payloads = not self.index_only\n",
        "        with_payloads = not message.lacks_payloads\n",
    ),
    _bug(
        "do without payloads after a restart",
        "storage.log",
        "            return  # other nodes must send the payloads of this message and of all later ones",
        "            pass",
        by=("crash", *_BY),
    ),
    caught_by_tests(
        "a member that never answers is asked as often as others",
        "journal.consensus.catch_up",
        "            self._silent.add(self._asked)\n",
        "            pass\n",
        "unit/journal/consensus/test_catch_up.py",
    ),
    caught_by_tests(
        "a member that was silent once is never asked again",
        "journal.consensus.catch_up",
        "                self._silent.clear()\n",
        "                pass\n",
        "unit/journal/consensus/test_catch_up.py",
    ),
    caught_by_tests(
        "an index-only serializer offers its checkpoint once",
        "journal.snapshots.checkpointer",
        "        first = self.durable + 1 if self._log.index_only else self._log.segment_index.first\n",
        "        first = self._log.segment_index.first\n",
        "unit/journal/snapshots/test_checkpoints.py",
    ),
    caught_by_tests(
        "a message that is only to be confirmed is asked of a data holder",
        "journal.consensus.catch_up",
        "        if holders and self._supplies.awaits_confirmation():\n",
        "        if False:\n",
        "unit/journal/consensus/test_index_only.py",
    ),
]
