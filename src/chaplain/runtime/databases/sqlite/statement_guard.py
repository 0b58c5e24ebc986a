"""The statement guard for SQLite: decides at compilation what a statement may do, by allow-lists only.

Allowed are ordinary tables, indexes, views and triggers of the main database, and functions whose value depends only on
their arguments or on the message (`functions`). Refused are other databases, settings, extensions, virtual tables
(except two for JSON), temporary objects, the executor's own tables, and everything that reveals the file itself.

Invariant: everything that is not named here is denied, including additions of a newer SQLite.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import apsw

OWN = "chaplain_"
"""Prefix of the executor's tables."""
OWN_TABLES = tuple(OWN + name for name in ("state", "results", "read"))
LENGTH_MAX = 256 * 1024
"""Size of a text, a blob or a row in bytes."""
_OWN_LENGTH_MAX = 1 << 30
LIMITS = {
    apsw.SQLITE_LIMIT_LENGTH: LENGTH_MAX,
    apsw.SQLITE_LIMIT_SQL_LENGTH: 64 * 1024,
    apsw.SQLITE_LIMIT_COLUMN: 256,
    apsw.SQLITE_LIMIT_EXPR_DEPTH: 100,
    apsw.SQLITE_LIMIT_COMPOUND_SELECT: 64,
    apsw.SQLITE_LIMIT_VDBE_OP: 100_000,
    apsw.SQLITE_LIMIT_FUNCTION_ARG: 64,
    apsw.SQLITE_LIMIT_ATTACHED: 0,
    apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 256,
    apsw.SQLITE_LIMIT_VARIABLE_NUMBER: 4096,
    apsw.SQLITE_LIMIT_TRIGGER_DEPTH: 16,
    apsw.SQLITE_LIMIT_WORKER_THREADS: 0,
}

_FUNCTIONS = """
abs avg ceil ceiling char coalesce concat concat_ws count cume_dist current_date current_time current_timestamp date
datetime dense_rank first_value floor format glob group_concat hex if ifnull iif instr json json_array json_array_length
json_error_position json_extract json_insert json_object json_quote json_remove json_replace json_set json_type
json_valid jsonb jsonb_array jsonb_extract jsonb_insert jsonb_object jsonb_remove jsonb_replace jsonb_set julianday lag
last_value lead length like likelihood likely lower ltrim max min nth_value ntile nullif octet_length percent_rank
printf quote random randomblob rank replace round row_number rtrim sign sqrt strftime string_agg substr substring sum
time timediff total trim trunc typeof unhex unicode unistr unistr_quote unixepoch unlikely upper zeroblob -> ->>
sqlite_rename_table sqlite_rename_column sqlite_rename_test sqlite_rename_quotefix sqlite_drop_column
sqlite_add_constraint sqlite_drop_constraint sqlite_find_constraint sqlite_fail
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
"""Functions that depend only on their arguments or on the message. The last two lines are functions that ALTER TABLE
calls; SQLite refuses them to clients.

Functions of which one call can take minutes (`json_patch`, `json_pretty`) are missing: the step bound does not cover
them.
"""
QUERY_FUNCTIONS = FUNCTIONS | {"json_group_array", "json_group_object", "jsonb_group_array", "jsonb_group_object"}
"""The JSON aggregates have no length bound, so they are allowed only in queries, which have a memory bound."""
_COSTLY = ("unhex", 2)
"""An overload of an allowed function that takes minutes for long arguments."""

_TABLES_OF_SQLITE = ("sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_sequence")
_MODULES_ALLOWED = ("json_each", "json_tree")
_COME_WHEN_NAMED = ("carray",)
"""Virtual tables that SQLite creates when they are named, in addition to those of PRAGMA and JSON."""
_FREE = (apsw.SQLITE_SELECT, apsw.SQLITE_RECURSIVE)
_DROPS = (apsw.SQLITE_DROP_TABLE, apsw.SQLITE_DROP_INDEX, apsw.SQLITE_DROP_VIEW, apsw.SQLITE_DROP_TRIGGER)
_MAKES = (
    apsw.SQLITE_CREATE_TABLE,
    apsw.SQLITE_CREATE_INDEX,
    apsw.SQLITE_CREATE_VIEW,
    apsw.SQLITE_CREATE_TRIGGER,
    apsw.SQLITE_REINDEX,
)
_WRITES = (apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE)

QUICK = frozenset(("insert", "update", "delete", "replace", "select", "with", "values"))
"""First words of statements that cannot change the schema."""
SLOW = frozenset(("create", "drop", "alter"))
_FIRST_WORD = re.compile(r"(?>\s+|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z)|;)*+([A-Za-z]+)", re.DOTALL)
"""Possessive, without backtracking: many blanks or comments must not make it slow."""
_REMEMBERED_MAX = 1024
"""Number of cached statements, and the length of one."""


def first_word(sql: str) -> str:
    """The first word of a statement in lower case, after blanks and comments."""
    return _remembered(sql) if len(sql) <= _REMEMBERED_MAX else _look(sql)


def _look(sql: str) -> str:
    found = _FIRST_WORD.match(sql)
    return found[1].lower() if found else ""


_remembered = lru_cache(maxsize=_REMEMBERED_MAX)(_look)


class Guard:
    """SQLite's authorizer: it is asked about every action of a statement. `denied` names the first refused action."""

    def __init__(self, connection: apsw.Connection, names: Callable[[], Set[str]], *, writes: bool) -> None:
        """`names` returns the existing tables and views in lower case: SQLite also has tables that exist only when
        named.
        """
        self._connection = connection
        self._names = names
        self._writes = writes
        self._allowed_functions = FUNCTIONS if writes else QUERY_FUNCTIONS
        self._making = ""
        self.asked = True
        """True if SQLite has asked since `begin`. It does not ask for a cached statement."""
        self.free = False
        """True while the executor runs its own statements."""
        self.denied = ""
        self.reshaped: list[str] = []
        """Tables that the statement alters or drops."""
        self._dropping = False
        connection.drop_modules(_MODULES_ALLOWED)
        connection.create_scalar_function(_COSTLY[0], None, _COSTLY[1])
        for limit, value in LIMITS.items():
            connection.limit(limit, value)
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.authorizer = self._decide

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Allow everything, and raise the length bound, for statements of the executor itself."""
        self.free = True
        self._connection.limit(apsw.SQLITE_LIMIT_LENGTH, _OWN_LENGTH_MAX)
        try:
            yield
        finally:
            self.free = False
            self._connection.limit(apsw.SQLITE_LIMIT_LENGTH, LENGTH_MAX)

    def begin(self) -> None:
        """Start with another statement."""
        self.asked = False
        self.denied = ""
        self.reshaped = []
        self._dropping = False
        self._making = ""

    def _decide(self, action: int, one: Any, two: Any, database: Any, inside: Any) -> int:
        self.asked = True
        if self.free or self._allows(action, one, two, database):
            return int(apsw.SQLITE_OK)
        if not self.denied:
            name = str(apsw.mapping_authorizer_function[action]).removeprefix("SQLITE_").replace("_", " ").lower()
            self.denied = " ".join(str(part) for part in (name, one, two) if part)[:200]
        return int(apsw.SQLITE_DENY)

    def _allows(self, action: int, one: Any, two: Any, database: Any) -> bool:
        if action in _FREE:
            return True
        if action == apsw.SQLITE_FUNCTION:
            return str(two).lower() in self._allowed_functions
        if action == apsw.SQLITE_READ:
            return self._may_read(str(one), str(two))
        if not self._writes or database not in ("main", None, "temp"):
            return action == apsw.SQLITE_ALTER_TABLE and self._writes and self._may_reshape(str(two))
        if action in _WRITES:
            return self._may_write(str(one))
        if action in _MAKES or action in _DROPS:
            return self._may_make(action, str(one), two)
        return action == apsw.SQLITE_ALTER_TABLE and self._may_reshape(str(two))

    def _may_read(self, table: str, column: str) -> bool:
        """Allow reading a column. `rootpage` depends on the file's history, so only DROP may read it."""
        if table.lower() in _TABLES_OF_SQLITE:
            return column.lower() != "rootpage" or self._dropping
        if not column and table.lower() not in _COME_WHEN_NAMED:
            return self._is_ordinary(table)  # may be a name from WITH; all other virtual tables are unregistered
        return table.lower() in _MODULES_ALLOWED or self._is_there(table)

    def _may_write(self, table: str) -> bool:
        """SQLite protects its own tables from clients, except `sqlite_sequence`."""
        lower = table.lower()
        if lower == "sqlite_sequence":
            return self._dropping or bool(self.reshaped)
        return lower in ("sqlite_master", "sqlite_temp_master") or self._is_there(table)

    def _may_make(self, action: int, name: str, table: Any) -> bool:
        self._dropping = self._dropping or action in _DROPS
        if action == apsw.SQLITE_CREATE_TABLE:
            self._making = name.lower()
        if action == apsw.SQLITE_DROP_TABLE:
            self.reshaped.append(name)
        of_table = action in (apsw.SQLITE_CREATE_INDEX, apsw.SQLITE_CREATE_TRIGGER, *_DROPS) and table is not None
        own = name.lower() == "sqlite_sequence" or name.lower().startswith("sqlite_autoindex_")
        return (own or self._is_ordinary(name)) and (not of_table or self._is_ordinary(str(table)))

    def _may_reshape(self, table: str) -> bool:
        self.reshaped.append(table)
        return self._is_ordinary(table)

    def _is_there(self, name: str) -> bool:
        return self._is_ordinary(name) and (name.lower() in self._names() or name.lower() == self._making)

    def _is_ordinary(self, name: str) -> bool:
        return not name.lower().startswith(("sqlite_", "pragma_", OWN))
