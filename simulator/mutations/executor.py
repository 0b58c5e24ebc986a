"""One-line mutations of the executor and its SQLite engine. Databases are not simulated: a test must catch each."""

from __future__ import annotations

from simulator.mutate import Bug, caught_by_tests

ENGINE, CORE, HOSTILE = "test_sqlite_engine.py", "test_core.py", "test_sqlite_hostile.py"
COPYING, CHECKING, DAMAGE = "test_snapshots.py", "test_integrity.py", "test_damaged_rows.py"
CLAIMS, NAMES = "test_claims.py", "test_long_stream_names.py"


def _bug(name: str, module: str, old: str, new: str, file: str, *words: str) -> Bug:
    package = "executor" if file in (CORE, COPYING, CHECKING, CLAIMS) else "runtime.databases"
    return caught_by_tests(name, f"{package}.{module}", old, new, f"unit/executor/{file}", *words)


BUGS = [
    _bug(
        "count a request that was not run",
        "sqlite.database",
        "position = (work.index, done + len(outcomes), whole)",
        "position = (work.index, done + len(outcomes) + 1, whole)",
        ENGINE,
        "dies_between",
    ),
    _bug(
        "begin a message again that was begun",
        "sqlite.database",
        "self._store.state.done(work.index)",
        "0",
        ENGINE,
        "dies_between",
    ),
    _bug(
        "forget the steps that were used",
        "sqlite.database",
        "dict(self._store.state.budget) if done else {}",
        "{}",
        ENGINE,
        "dies_between",
    ),
    _bug("no bound on a client's steps", "sqlite.database", "if steps >= _SPARED:", "if steps < 0:", ENGINE, "steps"),
    _bug(
        "leave what a statement left half done",
        "sqlite.execute",
        "if self._transaction_lost() or self._connection.total_changes() != before:",
        "if self._transaction_lost():",
        ENGINE,
        "takes_nobody_along",
    ),
    _bug(
        "leave a statement under way",
        "sqlite.execute",
        "            cursor.close(True)\n",
        "",
        ENGINE,
        "half_way",
    ),
    _bug(
        "owe a foreign key",
        "sqlite.execute",
        "return self._tracker.refers and bool(",
        "return False and bool(",
        HOSTILE,
        "fine",
    ),
    _bug(
        "take the largest rowid",
        "sqlite.row_tracker",
        "if rowid == ROWID_MAX and not shape.key:",
        "if rowid < 0 and not shape.key:",
        HOSTILE,
        "test_refused",
    ),
    _bug(
        "keep changes that were taken back",
        "sqlite.row_tracker",
        "        del self.changes[self._start :]\n",
        "",
        ENGINE,
        "transaction",
    ),
    _bug(
        "forget rows that go with their table",
        "sqlite.row_tracker",
        "self.changes += [RowChange(shape.name, key, row, GONE) for key, row in self._rows(shape)]",
        "self.changes += []",
        ENGINE,
        "schema_and_rows",
    ),
    _bug(
        "forget rows that come with their table",
        "sqlite.row_tracker",
        "                self._add_rows_of(shape)\n",
        "                pass\n",
        ENGINE,
        "schema_and_rows",
    ),
    _bug(
        "allow every function",
        "sqlite.statement_guard",
        "return str(two).lower() in self._allowed_functions",
        "return True",
        HOSTILE,
        "test_refused",
    ),
    _bug(
        "show the executor's own tables",
        "sqlite.statement_guard",
        '"pragma_", OWN))',
        '"pragma_"))',
        HOSTILE,
        "test_refused",
    ),
    _bug(
        "the machine's time",
        "sqlite.functions",
        'int(getattr(_local, "now_ms", 0))',
        '__import__("time").time_ns() // 10**6',
        ENGINE,
        "time_and_chance",
    ),
    _bug(
        "the same chance for all",
        "sqlite.functions",
        "message_hash, offset = self._seed",
        'message_hash, offset = b"", 0',
        ENGINE,
        "time_and_chance",
    ),
    _bug("write changes twice", "change_log", "start = head - first", "start = 0", ENGINE, "dies_before"),
    _bug(
        "go on without changes",
        "change_log",
        "return self._tap.head(self._stream) < count",
        "return False",
        ENGINE,
        "made_anew",
    ),
    _bug(
        "clear what is another's",
        "sqlite.metadata",
        "where acl = ? and client_id = ?",
        "where ? <> 0 and client_id = ?",
        ENGINE,
        "until_read",
    ),
    _bug(
        "keep results for ever",
        "sqlite.metadata",
        "if self._kept[acl] > RESULT_BYTES_MAX:",
        "if self._kept[acl] < 0:",
        ENGINE,
        "bounded_for_each",
    ),
    _bug(
        "pass a message over",
        "apply_queue",
        "and self._queued_through >= before:",
        "and self._queued_through >= 0:",
        CORE,
        "overtaken",
    ),
    _bug("ask too few", "queries", "if quorum.reached(asked.reaches):", "if asked.reaches:", CORE, "fresh"),
    _bug(
        "believe an old quorum",
        "queries",
        "if wait.quorum in (None, journal.assembly.quorum):",
        "if True:",
        CORE,
        "fresh",
    ),
    _bug("answer too early", "queries", "settled >= wait.index and (queue", "settled >= 0 and (queue", CORE, "fresh"),
    _bug("let everybody read", "queries", "not may_read(wait.client, message.stream)", "False", CORE, "refusals"),
    _bug("never be the one who differs", "divergence", "return winner != own", "return False", CORE, "compared"),
    _bug("stop for one who differs", "divergence", "return winner != own", "return True", CORE, "majority"),
    _bug("keep what is not applied", "snapshots", " and queue.has_reached(through):", ":", COPYING, "applied"),
    _bug("mix two copies", "snapshots", "copy.name not in (None, name) or ", "", COPYING, "another_copy"),
    _bug("take what goes back", "snapshots", "piece.index <= queue.applied or ", "", COPYING, "further_on"),
    _bug("take it from anybody", "snapshots", "peer != copy.peer or ", "", COPYING, "asked_for"),
    _bug(
        "wake for who has stopped", "snapshots", " if copy.queue.phase is ApplyPhase.LACKING]", "]", COPYING, "stopped"
    ),
    _bug("count no rows again", "sqlite.integrity", "if found != state.tallies:", "if False:", DAMAGE, "in_a_row"),
    _bug("believe every index", "sqlite.integrity", "    if wrong:", "    if False:", DAMAGE, "in_an_index"),
    _bug("believe every position", "sqlite.metadata", "seal != _seal(tuple(sealed))", "False", DAMAGE, "position"),
    _bug("go on telling of damage", "sqlite.backup", "restore(path, stream))", "1 << 40)", DAMAGE, "the_beginning"),
    _bug("make anew what is in use", "integrity", " and not queue.in_use:", ":", CHECKING, "ends_first"),
    _bug(
        "make anew for ever", "integrity", "            if queue.damage:", "            if False:", CHECKING, "for_ever"
    ),
    _bug(
        "begin in the middle", "core", "if journal.first_offset(stream):", "if False:", CHECKING, "of_its_stream_went"
    ),
    _bug(
        "stay behind one's copy", "sqlite.database", " or self.index < self.kept:", ":", DAMAGE, "behind_its_own_copy"
    ),
    _bug(
        "keep the log for a stopped executor for ever", "claims", "> self._bytes_max:", "> 1 << 62:", CLAIMS, "beyond"
    ),
    _bug(
        "drop the log before the note is on disk",
        "claims",
        "            self._writing[self._ticket] = (queue, last)\n",
        "            self._writing[self._ticket] = (queue, last)\n            queue.given_up = last\n",
        CLAIMS,
        "on_disk",
    ),
    _bug("apply statements behind dropped ones", "core", "and queue.needs_copy:", "and False:", CLAIMS, "further"),
    _bug("take a copy that lacks dropped ones", "snapshots", " or piece.index < queue.given_up", "", CLAIMS, "further"),
    _bug(
        "name files of any length",
        "change_log",
        "return bounded(escaped, stream, ESCAPE, FILE_NAME_BYTES_MAX - SUFFIX_BYTES_MAX)",
        "return escaped",
        NAMES,
        "with_copies",
    ),
]
