"""PostgreSQL engines for tests, judged from outside."""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec

from chaplain.executor.events import MessageApplied, Work
from chaplain.executor.fingerprint import RowChange, RowTally, Tallies
from chaplain.executor.statement import RequestOutcome, decode_run
from chaplain.runtime.databases.postgres.database import PostgresDatabase
from tests.support.postgres_server import TestServer
from tests.unit.executor.sqlite_stage import ACL, Order, Pair, folded

_COLUMNS = "select attname from pg_attribute where attrelid = {} and attnum > 0 and not attisdropped order by attnum"
_KEY = """
select a.attname from pg_index i, unnest(i.indkey) with ordinality k(n, place), pg_attribute a
where i.indrelid = {} and i.indisprimary and a.attrelid = i.indrelid and a.attnum = k.n order by place"""


class PostgresStage:
    """An engine on a database of its own, judged from outside."""

    def __init__(self, server: TestServer, name: str, folder: Path, stream: str = "main") -> None:
        folder.mkdir(exist_ok=True)
        self.admin, self.name, self.folder, self.stream = server, name, folder, stream
        self.place = server.make(name)
        self.engine = PostgresDatabase(folder, stream, self.place)

    @property
    def schema(self) -> str:
        return f"stream_{self.stream}"

    def reopen(self) -> None:
        self.engine.close()
        self.engine = PostgresDatabase(self.folder, self.stream, self.place)

    def apply(self, work: Work) -> MessageApplied:
        return self.engine.apply(work)

    def outcomes(self, acl: bytes = ACL) -> list[RequestOutcome]:
        runs = map(decode_run, self.engine.results(acl, 0, 0, 0))
        return [outcome for run in runs for outcome in run.outcomes]

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        return list(self.engine.query(sql, ()).rows)

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        return self.admin.ask(sql, self.name)

    def tallies(self) -> dict[str, RowTally]:
        """As the database says."""
        ((stored,),) = self.ask(f"select tallies from chaplain.state where stream = '{self.stream}'")
        return msgspec.msgpack.decode(bytes(stored), type=dict[str, RowTally])  # type: ignore[arg-type]

    def counted(self) -> dict[str, RowTally]:
        """As its rows say, all of them read again."""
        encode, schema = msgspec.msgpack.encode, self.schema
        tallies = Tallies()
        for (table,) in self.ask(f"select tablename from pg_tables where schemaname = '{schema}'"):
            columns = self.ask(_COLUMNS.format(f"'{schema}.{table}'::regclass"))
            key = self.ask(_KEY.format(f"'{schema}.{table}'::regclass"))
            names = [name for (name,) in columns]
            for row in self.ask(f"select * from {schema}.{table}"):
                plain = [int(v) if isinstance(v, bool) else str(v) if isinstance(v, uuid.UUID) else v for v in row]
                keys = [plain[names.index(name)] for (name,) in key]
                tallies.add([RowChange(str(table), encode([table, *keys]), b"", encode(plain))])
        return tallies.values()

    def folded(self) -> bytes:
        return folded(self.folder, self.stream, self.engine._store.state.changes)


class PostgresPair(Pair):
    """The same with PostgreSQL."""

    def __init__(self, server: TestServer, folder: Path, stream: str = "main") -> None:
        self.order = Order()
        self.steady = PostgresStage(server, "one", folder / "one", stream)
        self.restarted = PostgresStage(server, "two", folder / "two", stream)
