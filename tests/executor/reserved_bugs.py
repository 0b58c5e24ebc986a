"""One-line bugs of reserved nodes and of trying out; `planted_bugs` plants them."""

from __future__ import annotations

from simulator.mutate import Bug

INGEST, CLIENT, TRIED = "../journal/test_reserved_ingest.py", "../client/test_reserved_client.py", "test_rehearsals.py"


def _bug(name: str, module: str, old: str, new: str, *tests: str) -> Bug:
    return Bug(name, f"chaplain.{module}", old, new, "", tests)


RESERVED_BUGS = [
    _bug(
        "take what others write",
        "journal.ingest.admission",
        "if not self.seat.accepts_client(lane.acl):",
        "if False:",
        INGEST,
        "others",
    ),
    _bug(
        "try out what may be proof",
        "journal.ingest.admission",
        "and not queue.taken and heading.requests == 1",
        "and heading.requests == 1",
        INGEST,
        "proof",
    ),
    _bug(
        "pass what is tried out",
        "journal.ingest.core",
        "if self._rehearsing.hold(taken):",
        "if False:",
        INGEST,
        "passes_it",
    ),
    _bug(
        "order what would fail",
        "journal.ingest.core",
        "        if not event.kind:\n            self._checked += group",
        "        if event:\n            self._checked += group",
        INGEST,
        "would_fail",
    ),
    _bug(
        "use up the id of what would fail",
        "journal.ingest.core",
        "            self._intake.finish(one)\n            first =",
        "            first =",
        INGEST,
        "id_is_free",
    ),
    _bug(
        "keep what was tried out",
        "runtime.databases.sqlite.database",
        "            self._take_back()\n        return None if",
        '            self._runner.own("commit")\n        return None if',
        TRIED,
        "leaves_nothing",
    ),
    _bug(
        "refuse by chance",
        "runtime.databases.sqlite.database",
        "return None if self._around.drew else outcome.error",
        "return outcome.error",
        TRIED,
        "chance",
    ),
    _bug(
        "try out on an old database",
        "executor.apply_queue",
        "and not self._queue and not self.behind",
        "and not self._queue",
        TRIED,
        "read_the_log",
    ),
    _bug("try out for ever", "executor.dry_runs", "if now_ns >= wait.due_ns or not", "if not", TRIED, "too_long"),
    _bug(
        "apply while something is tried out",
        "executor.apply_queue",
        "        if free:\n            self.phase = ApplyPhase.BUSY\n",
        "",
        TRIED,
        "applied_meanwhile",
    ),
    _bug(
        "believe a refusal of one copy of two",
        "client.protocol.journal.writer",
        "message.kind.startswith(INVALID) and packed.sends > 1",
        "message.kind.startswith(INVALID) and packed.sends > 9",
        CLIENT,
        "another_copy",
    ),
    _bug(
        "go where nothing is taken",
        "client.protocol.journal.node_selection",
        "return not self.barred, self.ours",
        "return True, self.ours",
        CLIENT,
        "",
    ),
    _bug(
        "stay with nodes of others",
        "client.protocol.endpoints",
        "useful = self.wanted.keys() - self.aside",
        "useful = {*self.wanted}",
        CLIENT,
        "goes_on_to_more",
    ),
    _bug(
        "sign what nobody takes",
        "client.protocol.journal.writer",
        "return not outlet.barred  #",
        "return True  #",
        CLIENT,
        "only_reserved",
    ),
]
