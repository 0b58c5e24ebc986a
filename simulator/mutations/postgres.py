"""One-line mutations of the PostgreSQL engine. A test must catch each; the tests need a PostgreSQL server."""

from __future__ import annotations

from simulator.mutate import Bug, caught_by_tests

ENGINE, HOSTILE = "test_engine.py", "test_hostile.py"
AROUND = "test_environment.py"


def _bug(name: str, module: str, old: str, new: str, file: str, *words: str) -> Bug:
    return caught_by_tests(name, f"runtime.databases.{module}", old, new, f"unit/executor/postgres/{file}", *words)


BUGS = [
    _bug(
        "count a request that was not run",
        "postgres.database",
        "(work.index, number, number == len(requests))",
        "(work.index, number + 1, number == len(requests))",
        ENGINE,
        "dies_between",
    ),
    _bug(
        "begin a message again that was begun",
        "postgres.database",
        "self._store.state.done(work.index)",
        "0",
        ENGINE,
        "dies_between",
    ),
    _bug(
        "write over a position that moved",
        "postgres.metadata",
        " and idx = {old_index} and requests = {old_requests} and whole = {old_whole}",
        "",
        ENGINE,
        "position_that_moved",
    ),
    _bug("go on without changes", "postgres.database", "if self._changes.is_behind(", "if not (", ENGINE, "made_anew"),
    _bug(
        "two executors for one database",
        "postgres.metadata",
        "if row is not None and row[0]:",
        "if row is not None:",
        AROUND,
        "one_executor",
    ),
    _bug(
        "keep changes that were taken back",
        "postgres.execute",
        "        self._tracker.roll_back()\n",
        "",
        ENGINE,
        "alike",
    ),
    _bug(
        "forget rows that go with their table",
        "postgres.row_tracker",
        "            self._add(shape, row, None)\n",
        "            pass\n",
        ENGINE,
        "schema_and_rows",
    ),
    _bug(
        "forget rows that come with their table",
        "postgres.row_tracker",
        "                    self._add(shape, None, row)\n",
        "                    pass\n",
        ENGINE,
        "schema_and_rows",
    ),
    _bug(
        "pass the trigger over",
        "postgres.row_tracker",
        "after insert or update or delete on",
        "after insert or update on",
        ENGINE,
        "alike",
    ),
    _bug(
        "take negative zero for zero",
        "postgres.row_tracker",
        'return -0.0 if text == "-0" else int(text)',
        "return int(text)",
        ENGINE,
        "two_ways",
    ),
    _bug(
        "allow every function",
        "postgres.statement_guard",
        "name not in self._functions:",
        "not name:",
        HOSTILE,
        "refused",
    ),
    _bug(
        "allow other schemas",
        "postgres.grammar",
        '"RangeVar": {"relname": ANY,',
        '"RangeVar": {"relname": ANY, "schemaname": ANY,',
        HOSTILE,
        "refused",
    ),
    _bug(
        "take names of WITH for names everywhere",
        "postgres.statement_guard",
        "known = dict(env)",
        "known = env if isinstance(env, dict) else dict(env)",
        HOSTILE,
        "refused",
    ),
    _bug(
        "chance for every row",
        "postgres.statement_guard",
        "if not self._chance or self._selects > 1:",
        "if False:",
        HOSTILE,
        "refused",
    ),
    _bug(
        "give rows as the server finds them",
        "postgres.execute",
        "rows.sort(key=_encode)",
        "pass",
        ENGINE,
        "keeps_its_rows",
    ),
    _bug(
        "keys may be computed from rows",
        "postgres.execute",
        "self._admit_keys(verdict.computed & shapes[verdict.target].uniques)",
        "pass",
        ENGINE,
        "a_key_does_not",
    ),
    _bug("no bound on work", "postgres.execute", "and work > WORK_MAX", "and False", ENGINE, "bounds"),
    _bug(
        "the machine's time",
        "postgres.execute",
        "seconds = timestamp_ns // 1_000_000_000",
        'seconds = __import__("time").time_ns() // 10**9',
        ENGINE,
        "time_and_chance",
    ),
    _bug(
        "the same chance for all",
        "postgres.execute",
        'sha256(work.hash + offset.to_bytes(8, "big"))',
        "sha256(b'')",
        ENGINE,
        "time_and_chance",
    ),
    _bug(
        "rights to everything",
        "postgres.row_tracker",
        'f"grant select, insert, update, delete on',
        'f"grant all on',
        AROUND,
        "roles",
    ),
    _bug(
        "clear what is another's",
        "postgres.metadata",
        "and acl = $2::bytea and client_id = $3::bigint",
        "and $2::bytea is not null and client_id = $3::bigint",
        ENGINE,
        "until_read",
    ),
    _bug(
        "keep results for ever",
        "postgres.metadata",
        "if self._kept[acl] > RESULT_BYTES_MAX:",
        "if self._kept[acl] < 0:",
        ENGINE,
        "until_read",
    ),
    _bug(
        "tell the server's own words",
        "postgres.errors",
        'return StatementError("constraint", f"{_CONSTRAINTS[code]}: {name}", number)',
        'return StatementError("constraint", str(error), number)',
        ENGINE,
        "words_of_ours",
    ),
]
