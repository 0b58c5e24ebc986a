"""The rows of a stream's tables in PostgreSQL as they change: told by a trigger of ours, tallied, given on as changes.

A row's key is its primary key, which every table has. The trigger tells of each row that a statement inserts, updates
or deletes, by a notice, which comes in order with the statement's answer and needs no table. Rows whose table is
altered or dropped are read, before and after. Values are written as SQLite's are: a boolean as 0 or 1, a UUID as text.

Invariants: tallies are those of the rows in the database, at every request's end; no row holds a number that equals
another and is written differently (negative zero, not a number).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psycopg

from chaplain.executor.fingerprint import GONE, SCHEMA_KEY, RowChange, Tallies, by_key, fingerprint_of
from chaplain.runtime.databases.postgres.connection import Connection
from chaplain.runtime.databases.postgres.grammar import COLUMN_TYPES, TYPES
from chaplain.runtime.databases.postgres.schema import CHANGED, OWN, Layout, quoted_name

ROWS_MAX = 100_000
"""Rows that one request may change, and that a table may have when it is altered or dropped."""
BYTES_MAX = 16 * 1024 * 1024
"""Of all rows that one request changes."""
VALUE_BYTES_MAX = 256 * 1024
_encode = msgspec.msgpack.Encoder().encode
_NAMES = {number: name for name, number in TYPES.items()}
_COLUMNS = """
select c.relname, a.attname, a.atttypid::bigint from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace join pg_catalog.pg_attribute a on a.attrelid = c.oid
where n.nspname = $1 and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped order by c.relname, a.attnum"""
_KEYS = """
select c.relname, a.attname, k.contype::text, coalesce(f.relname, '') from pg_catalog.pg_constraint k
join pg_catalog.pg_class c on c.oid = k.conrelid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
left join pg_catalog.pg_class f on f.oid = k.confrelid
cross join lateral pg_catalog.unnest(k.conkey) with ordinality as u(attnum, place)
join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = u.attnum
where n.nspname = $1 and k.contype in ('p', 'f') order by c.relname, k.contype, u.place"""
_UNIQUES = """
select distinct c.relname, a.attname from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = any(i.indkey)
where n.nspname = $1 and i.indisunique"""


class PostgresLimitExceeded(Exception):
    """A request wanted what no request may have."""


class PostgresTableSchema(msgspec.Struct, frozen=True):
    """A table: its columns with their types, and which of them are its key."""

    name: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[int, ...]
    refers: frozenset[str] = frozenset()
    uniques: frozenset[str] = frozenset()
    """Columns that are in a key of which no two rows have the same."""


Made = tuple[str, str, str, str]
"""Of the schema: type, name, table, and the words that made it."""


class PostgresRowTracker:
    def __init__(self, layout: Layout, tallies: Tallies, made: list[Made]) -> None:
        self._layout = layout
        self._tallies = tallies
        self.made = made
        self.shapes: dict[str, PostgresTableSchema] = {}
        self._told = self._before = made
        """The schema that row changes told of last, and that the request began with."""
        self._shapes_before = self.shapes
        self._size_bytes = 0
        self._changes: list[RowChange] = []
        self.fault = ""
        """Why the present request must not stand, though the server let it."""

    # Within a request.

    def begin(self) -> None:
        self._changes, self._size_bytes, self.fault = [], 0, ""
        self._before, self._shapes_before = self.made, self.shapes

    def take_back(self) -> None:
        self.made, self.shapes = self._before, self._shapes_before
        self.begin()

    def note(self, notice: psycopg.errors.Diagnostic) -> None:
        """From the trigger; whatever else the server has to say is passed over."""
        if notice.sqlstate != CHANGED or self.fault:
            return
        shape = self.shapes.get(notice.message_primary or "")
        if shape is None:
            self.fault = "a row of an unknown table has changed"
            return
        try:
            old = self._told_row(shape, notice.message_detail)
            new = self._told_row(shape, notice.message_hint)
            self._add(shape, old, new)
        except PostgresLimitExceeded as beyond:
            self.fault = str(beyond)

    def _told_row(self, shape: PostgresTableSchema, told: str | None) -> list[object] | None:
        if not told:
            return None
        row = json.loads(told, parse_int=_whole)
        return [_from_json(kind, row[name]) for name, kind in shape.columns]

    def _add(self, shape: PostgresTableSchema, old: list[object] | None, new: list[object] | None) -> None:
        before = GONE if old is None else _encode(old)
        after = GONE if new is None else _encode(new)
        old_key, new_key = _key(shape, old), _key(shape, new)
        if before and after and old_key != new_key:
            self._changes.append(RowChange(shape.name, old_key, before, GONE))
            self._changes.append(RowChange(shape.name, new_key, GONE, after))
        else:
            self._changes.append(RowChange(shape.name, new_key or old_key, before, after))
        self._size_bytes += len(before) + len(after)
        if self._size_bytes > BYTES_MAX or len(self._changes) > ROWS_MAX:
            raise PostgresLimitExceeded(f"one request changes at most {ROWS_MAX} rows and {BYTES_MAX} bytes of them")

    def rows(self, table: str) -> int:
        """How many a table has, or fewer: those that the request changed may all be in it."""
        return self._tallies.count(table) + len(self._changes)

    # When the schema changes.

    def leave(self, connection: Connection, table: str) -> None:
        """It is about to be altered or dropped: its rows go."""
        shape = self.shapes.get(table)
        if shape is None:
            return
        if self.rows(table) > ROWS_MAX:
            raise PostgresLimitExceeded(f"{table} has more than {ROWS_MAX} rows: delete some first, in parts")
        for row in self._read(connection, shape):
            self._add(shape, row, None)
        self.shapes = {name: one for name, one in self.shapes.items() if name != table}

    def look(self, connection: Connection) -> None:
        """Read the schema again; tables that are new here get the trigger, rights, and their rows tallied."""
        known = self.shapes
        self.shapes = self._read_shapes(connection)
        for name, shape in self.shapes.items():
            if name not in known:
                self._adopt(connection, name)
                for row in self._read(connection, shape):
                    self._add(shape, None, row)

    def open(self, connection: Connection) -> None:
        """Read the schema of a database whose rows are tallied, and told of, already."""
        self.shapes = self._shapes_before = self._read_shapes(connection)
        self._told = self.made

    def _adopt(self, connection: Connection, name: str) -> None:
        table = f"{quoted_name(self._layout.schema)}.{quoted_name(name)}"
        writer, reader = self._layout.role("writer"), self._layout.role("reader")
        told = f"after insert or update or delete on {table} for each row execute function {OWN}.note()"
        words = [
            f"create or replace trigger chaplain {told}",
            f"grant select, insert, update, delete on {table} to {writer}",
            f"grant select on {table} to {reader}",
            f"alter table {table} set (autovacuum_analyze_threshold = 2147483647)",
        ]
        connection.execute(";".join(words).encode())

    def _read_shapes(self, connection: Connection) -> dict[str, PostgresTableSchema]:
        columns: dict[str, list[tuple[str, str]]] = {}
        for table, column, kind in connection.execute(_COLUMNS, (self._layout.schema,)):
            if _NAMES.get(kind) not in COLUMN_TYPES:
                raise PostgresLimitExceeded(f"{table}.{column} has a type that is not taken")
            columns.setdefault(table, []).append((column, _NAMES[kind]))
        keys: dict[str, list[str]] = {}
        refers: dict[str, set[str]] = {}
        for table, column, sort, other in connection.execute(_KEYS, (self._layout.schema,)):
            if sort == "p":
                keys.setdefault(table, []).append(column)
            else:
                refers.setdefault(table, set()).add(other)
        uniques: dict[str, set[str]] = {}
        for table, column in connection.execute(_UNIQUES, (self._layout.schema,)):
            uniques.setdefault(table, set()).add(column)
        return {
            name: _shape(name, found, keys.get(name), refers.get(name, set()), uniques.get(name, set()))
            for name, found in columns.items()
        }

    def _read(self, connection: Connection, shape: PostgresTableSchema) -> Iterator[list[object]]:
        table = f"{quoted_name(self._layout.schema)}.{quoted_name(shape.name)}"
        names = ",".join(quoted_name(name) for name, _ in shape.columns)
        for row in connection.execute(f"select {names} from {table}".encode()):
            yield [_from_server(kind, cell) for (_, kind), cell in zip(shape.columns, row, strict=True)]

    # When a request ends.

    def settle(self) -> list[tuple[bytes, bytes]]:
        """The request stands: what is now under which key, by key, the schema first if it has changed."""
        self._tallies.add(self._changes)
        pairs = [(change.key, change.after) for change in by_key(self._changes)]
        if self.made != self._told:
            self._told = self.made
            pairs.insert(0, (SCHEMA_KEY, self.schema()))
        gone = {table for kind, table, _, _ in self._before if kind == "table"} - set(self.shapes)
        for table in gone:
            self._tallies.forget(table)
        self.begin()
        return pairs

    def schema(self) -> bytes:
        return _encode(sorted(self.made))

    def tallies(self) -> Tallies:
        return self._tallies

    def fingerprint(self) -> bytes:
        return fingerprint_of(self.schema(), self._tallies.values())


def _shape(
    name: str, columns: list[tuple[str, str]], keys: list[str] | None, refers: set[str], uniques: set[str]
) -> PostgresTableSchema:
    if keys is None:
        raise PostgresLimitExceeded(f"{name} needs a primary key: rows are known by it")
    places = [column for column, _ in columns]
    key = tuple(map(places.index, keys))
    return PostgresTableSchema(name, tuple(columns), key, frozenset(refers), frozenset(uniques))


def _key(shape: PostgresTableSchema, row: list[object] | None) -> bytes:
    return GONE if row is None else _encode([shape.name, *(row[place] for place in shape.key)])


def _whole(text: str) -> int | float:
    """A floating-point number may come without a point; its zero may be a negative one."""
    return -0.0 if text == "-0" else int(text)


def _number(value: Any) -> float:
    number = float(value)
    if math.isnan(number) or (number == 0 and math.copysign(1, number) < 0):
        raise PostgresLimitExceeded(
            "negative zero and what is not a number are not stored: they equal what is written differently"
        )
    return number


def _text(value: str) -> str:
    if len(value.encode()) > VALUE_BYTES_MAX:
        raise PostgresLimitExceeded(f"a value has at most {VALUE_BYTES_MAX} octets")
    return value


def _octets(value: bytes) -> bytes:
    if len(value) > VALUE_BYTES_MAX:
        raise PostgresLimitExceeded(f"a value has at most {VALUE_BYTES_MAX} octets")
    return value


_SAME: dict[str, Callable[[Any], object]] = {
    "int2": int,
    "int4": int,
    "int8": int,
    "bool": int,
    "float8": _number,
    "text": _text,
    "varchar": _text,
    "uuid": str,
}


def _from_json(kind: str, value: Any) -> object:
    if value is None:
        return None
    return _octets(bytes.fromhex(value[2:])) if kind == "bytea" else _SAME[kind](value)


def _from_server(kind: str, value: Any) -> object:
    if value is None:
        return None
    return _octets(bytes(value)) if kind == "bytea" else _SAME[kind](value)
