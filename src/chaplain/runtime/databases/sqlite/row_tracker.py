"""Tracks row changes of a SQLite database with SQLite's preupdate hook: records them and updates the tallies.

A row's key is its rowid, or the primary key of a table without rowids. The hook reports every row that a statement
inserts, updates or deletes, also through triggers, cascades and REPLACE. It does not report rows that are dropped with
their table, inserted by CREATE TABLE AS, or changed by ALTER TABLE: those are read before and after.

Invariants: at the end of every request the tallies match the rows in the database; no table contains the largest rowid,
because SQLite would choose the next rowid at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import apsw
import msgspec

from chaplain.executor.fingerprint import GONE, SCHEMA_KEY, RowChange, Tallies, by_key, fingerprint_of
from chaplain.runtime.databases.sqlite.statement_guard import OWN, OWN_TABLES

ROWID_MAX = (1 << 63) - 1
ROWS_MAX = 100_000
"""Rows that one request may change, and that a table may have when it is altered or dropped."""
BYTES_MAX = 16 * 1024 * 1024
"""Size of all rows that one request changes."""
READ_AGAIN_ROWS = 200
"""Rows between two pauses of `read_again`."""
_encode = msgspec.msgpack.Encoder().encode


class SqliteLimitExceeded(Exception):
    """A request exceeded a limit, or used something that is not supported."""


class SqliteTableSchema(msgspec.Struct, frozen=True):
    """A table's columns and key."""

    name: str
    sql: str
    columns: tuple[str, ...]
    key: tuple[int, ...] = ()
    """Positions of the primary-key columns, for a table without rowids."""


class TransactionMark(msgspec.Struct, frozen=True):
    """The tracker's state at the start of a transaction."""

    tallies: Tallies
    shapes: dict[str, SqliteTableSchema]
    schema: bytes
    names: frozenset[str]
    changes: int


class SqliteRowTracker:
    def __init__(self, connection: apsw.Connection, tallies: Tallies) -> None:
        self._connection = connection
        self._tallies = tallies
        self._shapes: dict[str, SqliteTableSchema] = {}
        self._schema = b""
        self._reported = b""
        """The schema that the row changes last reported."""
        self.names: frozenset[str] = frozenset()
        """Names of tables and views, in lower case."""
        self.changes: list[RowChange] = []
        """Row changes of the message that is being applied."""
        self._tallied = 0
        self._size_bytes = 0
        self._start = 0
        self.refers = False
        """True if a table has foreign keys: then a transaction may end with a deferred violation."""
        self.fault = ""
        """Why the current request must fail although SQLite accepted it."""
        connection.preupdate_hook(self._on_update, id=self)

    # During statements.

    def begin_request(self) -> None:
        count = len(self.changes)
        if count - self._start > 1:
            self._end_request()
        self._start = count
        self._size_bytes = 0
        self.fault = ""

    def _end_request(self) -> None:
        """The latest request succeeded: tally and sort its changes."""
        if len(self.changes) - self._start > 1:
            self._tally()
            self.changes[self._start :] = by_key(self.changes[self._start :])

    def undo_request(self) -> None:
        """Discard the changes of a request that SQLite rolled back."""
        assert self._tallied <= self._start, "a request was tallied before its outcome was known"
        del self.changes[self._start :]

    def _on_update(self, update: Any) -> None:
        table = update.table_name
        shape = self._shapes.get(table)
        if shape is None:
            return  # a table of the executor or of SQLite
        before = after = old_key = new_key = GONE
        new = update.new
        if update.op != "INSERT":
            old = update.old
            before = _encode(old)
            old_key = self._key_of(shape, old) if shape.key else _encode((table, update.rowid))
        if new is not None:
            after = _encode(new)
            rowid = update.rowid_new
            new_key = self._key_of(shape, new) if shape.key else _encode((table, rowid))
            if rowid == ROWID_MAX and not shape.key:
                self._object("the largest rowid must stay free: SQLite would go on by chance")
        if before and after and old_key != new_key:
            self.changes.append(RowChange(table, old_key, before, GONE))
            self.changes.append(RowChange(table, new_key, GONE, after))
        else:
            self.changes.append(RowChange(table, new_key or old_key, before, after))
        self._size_bytes += len(before) + len(after)
        if self._size_bytes > BYTES_MAX or len(self.changes) - self._start > ROWS_MAX:
            self._object(f"one request changes at most {ROWS_MAX} rows and {BYTES_MAX} bytes of them")
            self._connection.interrupt()

    def _key_of(self, shape: SqliteTableSchema, row: tuple[object, ...]) -> bytes:
        return _encode((shape.name, *(row[place] for place in shape.key)))

    def _object(self, reason: str) -> None:
        self.fault = self.fault or reason

    # When the schema changes.

    def remove_rows_of(self, tables: list[str]) -> None:
        """Record the rows of tables that are about to be altered or dropped as removed; stop tracking them until
        `reload_schema`.
        """
        names = {name.lower() for name in tables}
        leaving = [shape for name, shape in self._shapes.items() if name.lower() in names]
        self._tally()
        for shape in leaving:
            if self._tallies.count(shape.name) > ROWS_MAX:
                raise SqliteLimitExceeded(f"{shape.name} has more than {ROWS_MAX} rows: delete some first, in parts")
            self.changes += [RowChange(shape.name, key, row, GONE) for key, row in self._rows(shape)]
        self._set_shapes({name: shape for name, shape in self._shapes.items() if shape not in leaving})
        self._tally()
        for shape in leaving:
            self._tallies.forget(shape.name)

    def reload_schema(self) -> None:
        """Read the schema again; record the rows of new tables as inserted."""
        known = self._shapes
        self._set_shapes({shape.name: shape for shape in self._read_shapes()})
        assert all(name in self._shapes for name in known), "a table was dropped without being tracked"
        for name, shape in self._shapes.items():
            if name not in known:
                self._add_rows_of(shape)

    def open(self) -> None:
        """Read the schema of a database whose rows are already tallied and reported."""
        self._set_shapes({shape.name: shape for shape in self._read_shapes()})
        self._reported = self._schema

    def read_again(self, pause: Callable[[], object]) -> Tallies:
        """Compute the tallies from all rows, with a pause after every `READ_AGAIN_ROWS`."""
        tallies = Tallies()
        for shape in self._shapes.values():
            rows = (RowChange(shape.name, key, GONE, row) for key, row in self._rows(shape))
            while some := list(islice(rows, READ_AGAIN_ROWS)):
                tallies.add(some)
                pause()
        return tallies

    def _add_rows_of(self, shape: SqliteTableSchema) -> None:
        for number, (key, row) in enumerate(self._rows(shape)):
            if number >= ROWS_MAX:
                raise SqliteLimitExceeded(
                    f"{shape.name} would have more than {ROWS_MAX} rows from the start: fill it in parts"
                )
            self.changes.append(RowChange(shape.name, key, GONE, row))

    def _rows(self, shape: SqliteTableSchema) -> Iterator[tuple[bytes, bytes]]:
        quoted = '"' + shape.name.replace('"', '""') + '"'
        columns = ",".join('"' + column.replace('"', '""') + '"' for column in shape.columns)
        first = "null" if shape.key else self._rowid_name(shape)
        # Bypass the statement cache: SQLite would recompile a plan for an earlier schema halfway.
        for rowid, *row in self._connection.execute(f"select {first},{columns} from {quoted}", can_cache=False):
            key = self._key_of(shape, tuple(row)) if shape.key else _encode((shape.name, rowid))
            yield key, _encode(row)

    def _rowid_name(self, shape: SqliteTableSchema) -> str:
        taken = {column.lower() for column in shape.columns}
        for name in ("rowid", "_rowid_", "oid"):
            if name not in taken:
                return name
        raise SqliteLimitExceeded(f"{shape.name} has columns named rowid, _rowid_ and oid: choose other names")

    def _read_shapes(self) -> Iterator[SqliteTableSchema]:
        query = "select type, name, tbl_name, sql from sqlite_master order by type, name"
        rows = [row for row in self._connection.execute(query, can_cache=False) if row[2] not in OWN_TABLES]
        if any(part.lower().startswith(OWN) for row in rows for part in row[1:3]):
            raise SqliteLimitExceeded(f"names beginning with {OWN} are the executor's own")
        self._schema = _encode([row for row in rows if row[3] is not None])
        self.names = frozenset(row[1].lower() for row in rows if row[0] in ("table", "view"))
        for kind, name, _, sql in rows:
            if kind == "table" and not name.lower().startswith("sqlite_"):
                yield self._shape(name, sql)

    def _shape(self, name: str, sql: str) -> SqliteTableSchema:
        columns = list(self._connection.execute("select name, pk, hidden from pragma_table_xinfo(?)", (name,)))
        if any(hidden for _, _, hidden in columns):
            raise SqliteLimitExceeded(f"{name}: generated and hidden columns are not supported")
        query = "select wr from pragma_table_list where schema = 'main' and name = ?"
        ((without_rowid,),) = self._connection.execute(query, (name,))
        ranked = sorted((pk, place) for place, (_, pk, _) in enumerate(columns) if pk)
        key = tuple(place for _, place in ranked) if without_rowid else ()
        shape = SqliteTableSchema(name, sql, tuple(column for column, _, _ in columns), key)
        if not key:
            self._rowid_name(shape)
        return shape

    def _set_shapes(self, shapes: dict[str, SqliteTableSchema]) -> None:
        self._shapes = shapes
        self.refers = any("references" in shape.sql.lower() for shape in shapes.values())

    # Transactions.

    def mark(self) -> TransactionMark:
        self._tally()
        return TransactionMark(self._tallies.copy(), self._shapes, self._schema, self.names, len(self.changes))

    def restore(self, mark: TransactionMark) -> None:
        self._tallies = mark.tallies.copy()
        self._set_shapes(mark.shapes)
        self._schema, self.names = mark.schema, mark.names
        del self.changes[mark.changes :]
        self._tallied = mark.changes

    def take_pairs(self) -> list[tuple[bytes, bytes]]:
        """Return and reset the changes: key and new row, request by request, preceded by the schema if it has
        changed.
        """
        self._end_request()
        self._tally()
        pairs = [(change.key, change.after) for change in self.changes]
        if self._schema != self._reported:
            self._reported = self._schema
            pairs.insert(0, (SCHEMA_KEY, self._schema))
        self.changes, self._tallied, self._start = [], 0, 0
        return pairs

    def tallies(self) -> Tallies:
        self._tally()
        return self._tallies

    def fingerprint(self) -> bytes:
        return fingerprint_of(self._schema, self.tallies().values())

    def _tally(self) -> None:
        self._tallies.add(self.changes[self._tallied :])
        self._tallied = len(self.changes)
