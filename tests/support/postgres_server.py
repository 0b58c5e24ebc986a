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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from chaplain.runtime.databases.interface import Server

USER, PASSWORD = "chaplain", "let me in"
"""Not secret: the server hears nobody but this machine's socket."""
_CREATE = "create database {} owner {} template template0 encoding 'UTF8' lc_collate 'C' lc_ctype 'C'"
_DEADLINE_S = 60


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


def _stat(pid: int) -> list[str]:
    """State, parent and so on; nothing if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _runs(pid: int) -> bool:
    """Not if it only waits to be buried."""
    return _stat(pid)[:1] not in ([], ["Z"])


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
        end_s = time.monotonic() + _DEADLINE_S
        while not self._answers(words):
            assert time.monotonic() < end_s, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.05)

    def _answers(self, words: list[str]) -> bool:
        """It is started again if it ended: what a killed one had may not be free yet."""
        if self._process is None or self._process.poll() is not None:
            with (self.folder / "log").open("ab") as log:
                command = self._command("postgres", "-D", str(self.data), *words)
                self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self._who)  # type: ignore[call-overload]
        try:
            self.ask("select 1")
        except psycopg.OperationalError:
            return False
        return True

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
        while any(map(_runs, children)):
            assert time.monotonic() < end_s, "a killed server's processes are still there"
            time.sleep(0.02)

    def _children(self) -> list[int]:
        assert self._process is not None
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [pid for pid in pids if _stat(pid)[1:2] == [str(self._process.pid)]]

    def cpu_s(self) -> float:
        """What its processes have used, those that are gone with them."""
        assert self._process is not None
        ticks = 0
        for pid in [self._process.pid, *self._children()]:
            ticks += sum(map(int, _stat(pid)[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

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
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # at once: nothing here is needed any more
            try:
                self._process.wait(_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def a_server(*, fsync: bool = False) -> Iterator[TestServer]:
    server = TestServer(fsync=fsync)
    try:
        yield server
    finally:
        server.close()
