"""Builds a node's executor: its core, and the databases in the node's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chaplain.config import SEGMENTS, NodeConfig
from chaplain.executor import claims
from chaplain.executor.core import ExecutorCore
from chaplain.executor.events import BackRead, ReadBack
from chaplain.journal.consensus.events import ReadLog
from chaplain.runtime.databases.interface import Server
from chaplain.runtime.databases.workers import Databases
from chaplain.runtime.disk.log_files import read_if_exists, read_log
from chaplain.runtime.fd_limits import retry_when_exhausted

FOLDER = "databases"
NONE = "none"


def make_executor(config: NodeConfig, identifier: int) -> ExecutorCore | None:
    """Build the executor's core, or return None if this node has neither databases nor index-only serializers.

    A node without a database needs a core in a cluster with index-only serializers: it tells the executors how far
    the log is ordered.
    """
    serializers = config.texts("journal.index_only")
    bare = str(config.number("id")) in serializers or config.text("database") == NONE
    if not config.disks or (bare and not serializers):
        return None
    if bare:
        return ExecutorCore(identifier, config.number("id"), bare=True)
    # Only SQLite databases are copied between nodes. Other databases are rebuilt from the log, which is retained for
    # them without a limit.
    copied = config.text("database") == "sqlite"
    file = f"{SEGMENTS}/{claims.FILE}"
    return ExecutorCore(
        identifier,
        config.number("id"),
        stopped_bytes_max=config.number("journal.keep_stopped_bytes") if copied else 0,
        given_up=read_if_exists(config.path("data") / file),
        given_up_file=file,
    )


def make_databases(config: NodeConfig) -> Databases:
    folder, rows_bytes = config.path("data") / FOLDER, config.number("record.keep_rows_bytes")
    return Databases(config.text("database"), folder, server_of(config), rows_bytes)


def server_of(config: NodeConfig) -> Server:
    """Return the connection parameters of a database server. Nodes can share a server, but not a database on it."""
    return Server(
        config.text("postgres.host"),
        config.number("postgres.port"),
        config.text("postgres.database") or f"chaplain_{config.number('id')}",
        config.text("postgres.user"),
        config.text("postgres.password_file"),
    )


def read_back(data: Path, log: str) -> Mapping[type, Callable[[Any], Any]]:
    """Return the handler that reads ordered messages from the log again for a database that lags behind."""

    def read(wanted: ReadBack) -> BackRead:
        found = read_log(data / SEGMENTS, log, ReadLog(wanted.token, wanted.start, wanted.end))
        return BackRead(wanted.token, tuple(found.records))

    return {ReadBack: retry_when_exhausted(read)}
