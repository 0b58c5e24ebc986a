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
        "clients_of_others_are_refused_with_the_reason",
        "packs_of_other_clients_do_not_wait_for_a_dry_run",
    ),
    caught_by_tests(
        "try out what may be proof",
        "journal.ingest.admission",
        "and not queue.taken and heading.requests == 1",
        "and heading.requests == 1",
        INGEST,
        "second_request_for_an_id_is_ordered_without_a_dry_run",
    ),
    caught_by_tests(
        "pass what is tried out",
        "journal.ingest.core",
        "if self._dry_runs.lanes and self._dry_runs.queue_behind(taken):",
        "if False:",
        INGEST,
        "only_the_first_pack_of_a_lane_gets_a_dry_run_and_none_overtakes_it",
    ),
    caught_by_tests(
        "order what would fail",
        "journal.ingest.core",
        "        if not event.kind:\n            self._verified_packs += group",
        "        if event:\n            self._verified_packs += group",
        INGEST,
        "pack_that_fails_its_dry_run_is_refused_and_its_id_stays_free",
        "packs_after_a_failed_dry_run_are_sent_back",
    ),
    caught_by_tests(
        "use up the id of what would fail",
        "journal.ingest.core",
        "            self._admission.release(one)\n            first =",
        "            first =",
        INGEST,
        "pack_that_fails_its_dry_run_is_refused_and_its_id_stays_free",
    ),
    caught_by_tests(
        "keep what was tried out",
        "runtime.databases.sqlite.database",
        "            self._roll_back()\n        return None if",
        '            self._runner.run_own("commit")\n        return None if',
        TRIED,
        "dry_run_predicts_the_outcome_and_changes_nothing",
    ),
    caught_by_tests(
        "refuse by chance",
        "runtime.databases.sqlite.database",
        "return None if self._functions.used_random else outcome.error",
        "return outcome.error",
        TRIED,
        "statement_with_random_values_is_not_refused",
    ),
    caught_by_tests(
        "try out on an old database",
        "executor.apply_queue",
        "and not self._queue and not self.behind",
        "and not self._queue",
        TRIED,
        "dry_run_waits_for_a_database_that_reads_the_log",
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
        "apply_waits_for_a_dry_run_and_follows_it",
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
        "client_connects_to_more_nodes_while_all_are_reserved_for_others",
    ),
    caught_by_tests(
        "sign what nobody takes",
        "client.protocol.journal.writer",
        "return not session.unusable_reason  #",
        "return True  #",
        CLIENT,
        "client_that_knows_only_foreign_reserved_nodes_is_refused_unsigned",
    ),
]
