"""One-line mutations of reserved ingest nodes and of rehearsals. A test must catch each."""

from __future__ import annotations

from simulator.mutate import caught_by_tests

INGEST = "unit/journal/ingest/test_reserved_nodes.py"
CLIENT = "unit/client/protocol/test_reserved_nodes.py"
TRIED = "unit/executor/test_dry_runs.py"

BUGS = [
    caught_by_tests(
        "take what others write",
        "journal.ingest.admission",
        "if not self.roles.accepts_client(lane.acl):",
        "if False:",
        INGEST,
        "others",
    ),
    caught_by_tests(
        "try out what may be proof",
        "journal.ingest.admission",
        "and not queue.taken and heading.requests == 1",
        "and heading.requests == 1",
        INGEST,
        "proof",
    ),
    caught_by_tests(
        "pass what is tried out",
        "journal.ingest.core",
        "if self._dry_runs.lanes and self._dry_runs.queue_behind(taken):",
        "if False:",
        INGEST,
        "passes_it",
    ),
    caught_by_tests(
        "order what would fail",
        "journal.ingest.core",
        "        if not event.kind:\n            self._verified_packs += group",
        "        if event:\n            self._verified_packs += group",
        INGEST,
        "would_fail",
    ),
    caught_by_tests(
        "use up the id of what would fail",
        "journal.ingest.core",
        "            self._admission.release(one)\n            first =",
        "            first =",
        INGEST,
        "id_is_free",
    ),
    caught_by_tests(
        "keep what was tried out",
        "runtime.databases.sqlite.database",
        "            self._roll_back()\n        return None if",
        '            self._runner.run_own("commit")\n        return None if',
        TRIED,
        "leaves_nothing",
    ),
    caught_by_tests(
        "refuse by chance",
        "runtime.databases.sqlite.database",
        "return None if self._functions.used_random else outcome.error",
        "return outcome.error",
        TRIED,
        "chance",
    ),
    caught_by_tests(
        "try out on an old database",
        "executor.apply_queue",
        "and not self._queue and not self.behind",
        "and not self._queue",
        TRIED,
        "read_the_log",
    ),
    caught_by_tests(
        "try out for ever", "executor.dry_runs", "if now_ns >= wait.due_ns or not", "if not", TRIED, "too_long"
    ),
    caught_by_tests(
        "apply while something is tried out",
        "executor.apply_queue",
        "        if free:\n            self.phase = ApplyPhase.BUSY\n",
        "",
        TRIED,
        "applied_meanwhile",
    ),
    caught_by_tests(
        "believe a refusal of one copy of two",
        "client.protocol.journal.writer",
        "message.kind.startswith(INVALID) and packed.sends > 1",
        "message.kind.startswith(INVALID) and packed.sends > 9",
        CLIENT,
        "another_copy",
    ),
    caught_by_tests(
        "go where nothing is taken",
        "client.protocol.journal.node_selection",
        "return not self.unusable_reason, self.reserved_for_us",
        "return True, self.reserved_for_us",
        CLIENT,
    ),
    caught_by_tests(
        "stay with nodes of others",
        "client.protocol.endpoints",
        "useful = self.wanted.keys() - self.unusable",
        "useful = {*self.wanted}",
        CLIENT,
        "goes_on_to_more",
    ),
    caught_by_tests(
        "sign what nobody takes",
        "client.protocol.journal.writer",
        "return not session.unusable_reason  #",
        "return True  #",
        CLIENT,
        "only_reserved",
    ),
]
