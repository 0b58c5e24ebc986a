"""One-line bugs of reserved nodes and of trying out; `planted_bugs` plants them."""

from __future__ import annotations

from chaplain.sim.planted import Bug

INGEST, CLIENT, TRIED = "../journal/test_reserved_ingest.py", "../client/test_reserved_client.py", "test_rehearsals.py"


def _bug(name: str, module: str, old: str, new: str, *tests: str) -> Bug:
    return Bug(name, f"chaplain.{module}", old, new, "", tests)


RESERVED_BUGS = [
    _bug(
        "take what others write", "journal.intake", "if not self.seat.serves(lane.acl):", "if False:", INGEST, "others"
    ),
    _bug(
        "try out what may be proof",
        "journal.intake",
        "and not queue.taken and heading.requests == 1",
        "and heading.requests == 1",
        INGEST,
        "proof",
    ),
    _bug(
        "pass what is tried out", "journal.ingest", "if self._rehearsing.hold(taken):", "if False:", INGEST, "passes_it"
    ),
    _bug(
        "order what would fail",
        "journal.ingest",
        "        if not event.kind:\n            self._checked += group",
        "        if event:\n            self._checked += group",
        INGEST,
        "would_fail",
    ),
    _bug(
        "use up the id of what would fail",
        "journal.ingest",
        "            self._intake.finish(one)\n            first =",
        "            first =",
        INGEST,
        "id_is_free",
    ),
    _bug(
        "keep what was tried out",
        "runtime.databases.sqlite",
        "            self._take_back()\n        return None if",
        '            self._runner.own("commit")\n        return None if',
        TRIED,
        "leaves_nothing",
    ),
    _bug(
        "refuse by chance",
        "runtime.databases.sqlite",
        "return None if self._around.drew else outcome.error",
        "return outcome.error",
        TRIED,
        "chance",
    ),
    _bug(
        "try out on an old database",
        "executor.feed",
        "and not self._queue and not self.behind",
        "and not self._queue",
        TRIED,
        "read_the_log",
    ),
    _bug("try out for ever", "executor.rehearsals", "if now_ns >= wait.due_ns or not", "if not", TRIED, "too_long"),
    _bug(
        "apply while something is tried out",
        "executor.feed",
        "        if free:\n            self.phase = Phase.BUSY\n",
        "",
        TRIED,
        "applied_meanwhile",
    ),
    _bug(
        "believe a refusal of one copy of two",
        "client.writing",
        "message.kind.startswith(INVALID) and packed.sends > 1",
        "message.kind.startswith(INVALID) and packed.sends > 9",
        CLIENT,
        "another_copy",
    ),
    _bug(
        "go where nothing is taken",
        "client.outlets",
        "return not self.barred, self.ours",
        "return True, self.ours",
        CLIENT,
        "",
    ),
    _bug(
        "stay with nodes of others",
        "client.endpoints",
        "useful = self.wanted.keys() - self.aside",
        "useful = {*self.wanted}",
        CLIENT,
        "goes_on_to_more",
    ),
    _bug(
        "sign what nobody takes",
        "client.writing",
        "return not outlet.barred  #",
        "return True  #",
        CLIENT,
        "only_reserved",
    ),
]
