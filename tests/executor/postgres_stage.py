"""A PostgreSQL server of its own for tests, from Debian's package, in a directory that goes when they end."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psycopg
from tests.executor.executor_stage import ACL, Order, Request, folded

from chaplain.executor.events import Step, Work
from chaplain.executor.fingerprint import Change as FoldedChange
from chaplain.executor.fingerprint import Tallies, Tally
from chaplain.executor.statement import Outcome, decode_run
from chaplain.runtime.databases.engine import Server
from chaplain.runtime.databases.postgres import PostgresDatabase

USER, PASSWORD = "chaplain", "let me in"
"""Not secret: the server hears nobody but this machine's socket."""
_CREATE = "create database {} owner {} template template0 encoding 'UTF8' lc_collate 'C' lc_ctype 'C'"
_DEADLINE_S = 60
_COLUMNS = "select attname from pg_attribute where attrelid = {} and attnum > 0 and not attisdropped order by attnum"
_KEY = """
select a.attname from pg_index i, unnest(i.indkey) with ordinality k(n, place), pg_attribute a
where i.indrelid = {} and i.indisprimary and a.attrelid = i.indrelid and a.attnum = k.n order by place"""


def missing() -> str:
    """Why there can be no server here; empty if there can."""
    if _programs() is None:
        return "PostgreSQL is not installed: apt-get install postgresql"
    if os.getuid() == 0 and _account() is None:
        return "there is no user `postgres` or `nobody` to run a server as"
    return ""


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if found:
        return found[-1].parent
    path = shutil.which("initdb")
    return Path(path).parent if path else None


def _account() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


class TestServer:
    """Started anew as often as a test kills it."""

    __test__ = False

    def __init__(self, *, fsync: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="chaplain-postgres-"))
        self._fsync = fsync
        self._process: subprocess.Popen[bytes] | None = None
        self._who: dict[str, object] = {}
        self._made: set[str] = set()
        account = _account() if os.getuid() == 0 else None
        if account is not None:
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            self._who = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        options = [
            "--username=admin",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        ]
        self._run("initdb", f"--pgdata={self.data}", *options)
        hba = self.data / "pg_hba.conf"
        hba.write_text("local all admin trust\nlocal all all scram-sha-256\n")
        (self.folder / "password").write_text(PASSWORD + "\n")
        (self.folder / "password").chmod(0o600)
        self.start()
        self.ask(f"create role {USER} login createrole password '{PASSWORD}'")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def _command(self, name: str, *words: str) -> list[str]:
        programs = _programs()
        assert programs is not None
        return [str(programs / name), *words]

    def _run(self, name: str, *words: str) -> None:
        run = subprocess.run(
            self._command(name, *words), capture_output=True, timeout=_DEADLINE_S, cwd="/", check=False, **self._who
        )  # type: ignore[call-overload]
        assert run.returncode == 0, run.stderr.decode()

    def start(self) -> None:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "fsync": "on" if self._fsync else "off",
            "shared_buffers": "16MB",
            "max_connections": "60",
            "logging_collector": "off",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command("postgres", "-D", str(self.data), *words), stdout=log, stderr=log, cwd="/", **self._who
            )  # type: ignore[call-overload]
        end_s = time.monotonic() + _DEADLINE_S
        while True:
            try:
                self.ask("select 1")
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
                assert time.monotonic() < end_s, "the server does not answer"
                time.sleep(0.05)

    def kill(self) -> None:
        """As if it had never known."""
        assert self._process is not None
        children = self._children()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(_DEADLINE_S)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        end_s = time.monotonic() + _DEADLINE_S
        while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < end_s:
            time.sleep(0.02)

    def _children(self) -> list[int]:
        assert self._process is not None
        listed = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        return [int(word) for word in listed.split()]

    def ask(self, sql: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """As the server's own superuser."""
        with psycopg.connect(host=str(self.folder), user="admin", dbname=database, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def make(self, name: str) -> Server:
        """A database for one executor; of several streams, if they want."""
        if name not in self._made:
            self._made.add(name)
            self.ask(_CREATE.format(name, USER))
        return Server(str(self.folder), 5432, name, USER, str(self.folder / "password"))

    def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def a_server(*, fsync: bool = False) -> Iterator[TestServer]:
    server = TestServer(fsync=fsync)
    try:
        yield server
    finally:
        server.close()


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

    def apply(self, work: Work) -> Step:
        return self.engine.apply(work)

    def outcomes(self, acl: bytes = ACL) -> list[Outcome]:
        runs = map(decode_run, self.engine.results(acl, 0, 0, 0))
        return [outcome for run in runs for outcome in run.outcomes]

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        return list(self.engine.query(sql, ()).rows)

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        return self.admin.ask(sql, self.name)

    def tallies(self) -> dict[str, Tally]:
        """As the database says."""
        ((stored,),) = self.ask(f"select tallies from chaplain.state where stream = '{self.stream}'")
        return msgspec.msgpack.decode(bytes(stored), type=dict[str, Tally])  # type: ignore[arg-type]

    def counted(self) -> dict[str, Tally]:
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
                tallies.add([FoldedChange(str(table), encode([table, *keys]), b"", encode(plain))])
        return tallies.values()

    def folded(self) -> bytes:
        return folded(self.folder, self.stream, self.engine._store.state.changes)


class PostgresPair:
    """Two executors that are given the same; one of them is closed and opened again before each message."""

    def __init__(self, server: TestServer, folder: Path, stream: str = "main") -> None:
        self.order = Order()
        self.steady = PostgresStage(server, "one", folder / "one", stream)
        self.restarted = PostgresStage(server, "two", folder / "two", stream)

    def run(self, *requests: Request, lane: int = 1, acl: bytes = ACL) -> list[Outcome]:
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

    def one(self, sql: Request, **more: object) -> Outcome:
        (outcome,) = self.run(sql, **more)  # type: ignore[arg-type]
        return outcome

    def close(self) -> None:
        self.steady.engine.close()
        self.restarted.engine.close()
