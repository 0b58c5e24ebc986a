"""Cluster messages with statements, without a cluster; and a database that is judged from outside."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import apsw
import msgspec

from chaplain.executor.events import MessageApplied, Work
from chaplain.executor.fingerprint import SCHEMA_KEY, RowChange, RowTally, Tallies, fingerprint_of
from chaplain.executor.statement import SQL_TYPE, RequestOutcome, Statement, decode_run, encode_statement
from chaplain.runtime.databases.change_log import CHANGES, LOG, quoted
from chaplain.runtime.databases.sqlite.database import SqliteDatabase, file_name
from chaplain.runtime.databases.sqlite.integrity import check
from chaplain.segment.files import list_segments, scan_file
from chaplain.segment.pack import Pack, decode_pack, encode_pack
from chaplain.segment.record import Kind

ACL = b"A" * 15
Sql = str | tuple[str, object]
Request = Sql | list[Sql]
START_NS = 1_700_000_000_000_000_000


def statement(sql: Sql) -> bytes:
    return encode_statement(Statement(sql) if isinstance(sql, str) else Statement(sql[0], sql[1]))  # type: ignore[arg-type]


class Order:
    """Makes messages one after the other, as the journal would."""

    def __init__(self) -> None:
        self.index = self.offset = 0
        self._ids: dict[int, int] = {}

    def message(self, *requests: Request, lane: int = 1, acl: bytes = ACL) -> Work:
        self.index += 1
        several = [request if isinstance(request, list) else [request] for request in requests]
        values = tuple(statement(sql) for request in several for sql in request)
        counts = tuple(map(len, several))
        first = self._ids.get(lane, 0) + 1
        self._ids[lane] = first + len(several) - 1
        body = encode_pack(Pack(lane, first, values, request_counts=counts, message_type=SQL_TYPE))
        work = Work(
            self.index,
            START_NS + self.index * 1_000_000,
            sha256(self.index.to_bytes(8, "big")).digest(),
            ((self.offset, body),),
            ((lane, acl),),
        )
        self.offset += len(values)
        return work


class Database:
    """An engine and its file."""

    def __init__(self, folder: Path, stream: str = "main") -> None:
        self.folder, self.stream = folder, stream
        self.engine = SqliteDatabase(folder, stream)

    def reopen(self) -> None:
        self.engine.close()
        self.engine = SqliteDatabase(self.folder, self.stream)

    def apply(self, work: Work) -> MessageApplied:
        return self.engine.apply(work)

    def outcomes(self, acl: bytes = ACL) -> list[RequestOutcome]:
        """All that are kept."""
        runs = map(decode_run, self.engine.results(acl, 0, 0, 0))
        return [outcome for run in runs for outcome in run.outcomes]

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        return list(self.engine.query(sql, ()).rows)

    def tallies(self) -> dict[str, RowTally]:
        """As the file says."""
        with apsw.Connection(str(self.folder / file_name(self.stream))) as connection:
            ((stored,),) = connection.execute("select tallies from chaplain_state")
        return msgspec.msgpack.decode(stored, type=dict[str, RowTally])

    def folded(self) -> bytes:
        """The fingerprint that the row changes add up to."""
        return folded(self.folder, self.stream, self.engine._store.state.changes)

    def counted(self) -> dict[str, RowTally]:
        """As its rows say, all of them read again."""
        connection = apsw.Connection(str(self.folder / file_name(self.stream)), flags=apsw.SQLITE_OPEN_READONLY)
        tallies = Tallies()
        tables = connection.execute("select name, wr from pragma_table_list where schema='main' and type='table'")
        for table, without_rowid in list(tables):
            if not table.startswith(("chaplain_", "sqlite_")):
                tallies.add(_changes(connection, table, bool(without_rowid)))
        connection.close()
        return tallies.values()


def told(folder: Path, stream: str = "main", *, first: int = 0) -> list[tuple[bytes, bytes]]:
    """The log of row changes, which begins with number `first`: what is under which key from then on."""
    found: list[tuple[bytes, bytes]] = []
    for file in list_segments(folder / CHANGES / quoted(stream), LOG):
        for _, record in scan_file(file.path).records:
            if record.kind == Kind.BATCH:
                pack = decode_pack(record.body)
                assert (record.first_offset, record.stream) == (first + len(found), stream), (
                    "a change is missing, or twice"
                )
                found += zip(pack.keys or (), pack.values, strict=True)  # type: ignore[arg-type]
    return found


def folded(folder: Path, stream: str, changes: int) -> bytes:
    """The fingerprint that a log of row changes adds up to."""
    pairs = told(folder, stream)
    assert len(pairs) == changes, "a change too many, or too few"
    latest = dict(pairs)
    schema = latest.pop(SCHEMA_KEY, b"\x90")
    tallies = Tallies()
    tallies.add(RowChange(msgspec.msgpack.decode(key)[0], key, b"", row) for key, row in latest.items() if row)
    return fingerprint_of(schema, tallies.values())


def _changes(connection: apsw.Connection, table: str, without_rowid: bool) -> Sequence[RowChange]:
    encode = msgspec.msgpack.encode
    keys = connection.execute("select cid from pragma_table_info(?) where pk order by pk", (table,))
    places = [cid for (cid,) in keys] if without_rowid else []
    columns = {name for (name,) in connection.execute("select name from pragma_table_info(?)", (table,))}
    first = "null" if without_rowid else next(name for name in ("rowid", "oid") if name not in columns)
    quoted = table.replace('"', '""')
    found = []
    for rowid, *row in connection.execute(f'select {first}, * from "{quoted}"'):
        key = [row[place] for place in places] if without_rowid else [rowid]
        found.append(RowChange(table, encode([table, *key]), b"", encode(row)))
    return found


class Pair:
    """Two executors that are given the same; one of them is closed and opened again before each message."""

    def __init__(self, folder: Path) -> None:
        (folder / "one").mkdir()
        (folder / "two").mkdir()
        self.order = Order()
        self.steady, self.restarted = Database(folder / "one"), Database(folder / "two")

    def run(self, *requests: Request, lane: int = 1, acl: bytes = ACL) -> list[RequestOutcome]:
        """What became of them, alike on both."""
        work = self.order.message(*requests, lane=lane, acl=acl)
        before = len(self.steady.outcomes(acl))
        self.restarted.reopen()
        steps = [database.apply(work) for database in (self.steady, self.restarted)]
        assert steps[0] == steps[1], "executors differ"
        outcomes = self.steady.outcomes(acl)
        assert outcomes == self.restarted.outcomes(acl), "executors answer differently"
        assert self.steady.tallies() == self.steady.counted(), "the tallies are not those of the rows"
        assert self.steady.folded() == self.restarted.folded() == steps[0].fingerprint, "the changes are not the rows"
        return outcomes[before:]

    def one(self, sql: Request, **more: object) -> RequestOutcome:
        (outcome,) = self.run(sql, **more)  # type: ignore[arg-type]
        return outcome

    def close(self) -> None:
        self.steady.engine.close()
        self.restarted.engine.close()
        if isinstance(self.steady.engine, SqliteDatabase):
            check(self.steady.engine.path, self.steady.stream)  # whatever was done to it is no damage
