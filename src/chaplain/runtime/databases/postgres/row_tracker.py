"""Tracks row changes of a stream's tables in PostgreSQL with a trigger: records them and updates the tallies.

A row's key is its primary key, which every table must have. The trigger reports each inserted, updated or deleted row
by a notice; notices arrive in order with the statement's result and need no table. Rows of a table that is altered or
dropped are read before and after. Values are encoded as SQLite's are: a boolean as 0 or 1, a UUID as text.

Invariants: at the end of every request the tallies match the rows in the database; no row contains a number that equals
another but is encoded differently (negative zero, NaN).
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
"""Size of all rows that one request changes."""
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
    """A request exceeded a limit, or used something that is not supported."""


class PostgresTableSchema(msgspec.Struct, frozen=True):
    """A table's columns with their types, its primary key and its constraints."""

    name: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[int, ...]
    refers: frozenset[str] = frozenset()
    uniques: frozenset[str] = frozenset()
    """Columns that are part of a unique key."""


SchemaDefinition = tuple[str, str, str, str]
"""An object of the schema: type, name, table, and the statement that created it."""


class RequestMark(msgspec.Struct, frozen=True):
    """The tracker's state at a savepoint of a request."""

    definitions: list[SchemaDefinition]
    shapes: dict[str, PostgresTableSchema]
    changes: int


class PostgresRowTracker:
    def __init__(self, layout: Layout, tallies: Tallies, definitions: list[SchemaDefinition]) -> None:
        self._layout = layout
        self._tallies = tallies
        self.definitions = definitions
        self.shapes: dict[str, PostgresTableSchema] = {}
        self._reported = self._before = definitions
        """The schema that the row changes last reported, and the schema at the start of the request."""
        self._shapes_before = self.shapes
        self._size_bytes = 0
        self._changes: list[RowChange] = []
        self.fault = ""
        """Why the current request must fail although the server accepted it."""

    # During a request.

    def begin(self) -> None:
        self._changes, self._size_bytes, self.fault = [], 0, ""
        self._before, self._shapes_before = self.definitions, self.shapes

    def roll_back(self) -> None:
        self.definitions, self.shapes = self._before, self._shapes_before
        self.begin()

    def mark(self) -> RequestMark:
        return RequestMark(self.definitions, self.shapes, len(self._changes))

    def restore(self, mark: RequestMark) -> None:
        """The server rolled back to this savepoint. The size of the request's changes keeps counting: it bounds the
        work.
        """
        self.definitions, self.shapes = mark.definitions, mark.shapes
        del self._changes[mark.changes :]

    def note(self, notice: psycopg.errors.Diagnostic) -> None:
        """Process a notice of the trigger; other notices are ignored."""
        if notice.sqlstate != CHANGED or self.fault:
            return
        shape = self.shapes.get(notice.message_primary or "")
        if shape is None:
            self.fault = "a row of an unknown table has changed"
            return
        try:
            old = self._decode_row(shape, notice.message_detail)
            new = self._decode_row(shape, notice.message_hint)
            self._add(shape, old, new)
        except PostgresLimitExceeded as exceeded:
            self.fault = str(exceeded)

    def _decode_row(self, shape: PostgresTableSchema, row_json: str | None) -> list[object] | None:
        if not row_json:
            return None
        row = json.loads(row_json, parse_int=_whole)
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
        """An upper bound of the table's row count: all rows that the request changed may be in it."""
        return self._tallies.count(table) + len(self._changes)

    # When the schema changes.

    def remove_rows_of(self, connection: Connection, table: str) -> None:
        """Record the rows of a table that is about to be altered or dropped as removed."""
        shape = self.shapes.get(table)
        if shape is None:
            return
        if self.rows(table) > ROWS_MAX:
            raise PostgresLimitExceeded(f"{table} has more than {ROWS_MAX} rows: delete some first, in parts")
        for row in self._read(connection, shape):
            self._add(shape, row, None)
        self.shapes = {name: one for name, one in self.shapes.items() if name != table}

    def reload_schema(self, connection: Connection) -> None:
        """Read the schema again; new tables get the trigger and rights, and their rows are tallied."""
        known = self.shapes
        self.shapes = self._read_shapes(connection)
        for name, shape in self.shapes.items():
            if name not in known:
                self._adopt(connection, name)
                for row in self._read(connection, shape):
                    self._add(shape, None, row)

    def open(self, connection: Connection) -> None:
        """Read the schema of a database whose rows are already tallied and reported."""
        self.shapes = self._shapes_before = self._read_shapes(connection)
        self._reported = self.definitions

    def _adopt(self, connection: Connection, name: str) -> None:
        table = f"{quoted_name(self._layout.schema)}.{quoted_name(name)}"
        writer, reader = self._layout.role("writer"), self._layout.role("reader")
        trigger = f"after insert or update or delete on {table} for each row execute function {OWN}.note()"
        words = [
            f"create or replace trigger chaplain {trigger}",
            f"grant select, insert, update, delete on {table} to {writer}",
            f"grant select on {table} to {reader}",
            f"alter table {table} set (autovacuum_analyze_threshold = 2147483647)",
        ]
        connection.execute(";".join(words).encode())

    def _read_shapes(self, connection: Connection) -> dict[str, PostgresTableSchema]:
        columns: dict[str, list[tuple[str, str]]] = {}
        for table, column, kind in connection.execute(_COLUMNS, (self._layout.schema,)):
            if _NAMES.get(kind) not in COLUMN_TYPES:
                raise PostgresLimitExceeded(f"{table}.{column} has an unsupported type")
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
        """The request succeeded: return the new row of each changed key, ordered by key, preceded by the schema if it
        changed.
        """
        self._tallies.add(self._changes)
        pairs = [(change.key, change.after) for change in by_key(self._changes)]
        if self.definitions != self._reported:
            self._reported = self.definitions
            pairs.insert(0, (SCHEMA_KEY, self.schema()))
        gone = {table for kind, table, _, _ in self._before if kind == "table"} - set(self.shapes)
        for table in gone:
            self._tallies.forget(table)
        self.begin()
        return pairs

    def schema(self) -> bytes:
        return _encode(sorted(self.definitions))

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
    """Parse a JSON integer. A float may have no decimal point, and its zero may be negative."""
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
