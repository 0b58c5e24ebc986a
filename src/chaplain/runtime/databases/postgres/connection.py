"""Connections to a node's PostgreSQL server, and the checks of the server before anything is executed on it.

Every connection has the same settings, which override those of the server, its databases and roles: the result of a
statement must not depend on the installation. Each error message about the setup says how to correct it.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow

from chaplain.runtime.databases.interface import EngineFailed, Server
from chaplain.runtime.databases.postgres.schema import Layout

VERSION_MIN = 150000
CONNECT_SECONDS_MAX = 10
PATIENCE_S = 5.0
"""How long an executor waits at start-up for a server that does not answer."""
STARTING_S = 60.0
"""How long it waits for a server that reports that it is starting."""
STATEMENT_SECONDS_MAX = 600
"""A request's statement that takes longer stops this executor: a duration must not become a result."""
NAME_MAX = 32
"""Length of a database name; role names are derived from it."""
FIXED = {
    "timezone": "UTC",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "backslash_quote": "safe_encoding",
    "array_nulls": "on",
    "client_min_messages": "notice",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_table_access_method": "heap",
    "default_tablespace": "",
    "default_toast_compression": "pglz",
    "row_security": "on",
    "lock_timeout": "60s",
    "statement_timeout": f"{STATEMENT_SECONDS_MAX}s",
    "idle_in_transaction_session_timeout": "0",
    # As with SQLite: after a machine failure, the journal has the missing transactions.
    "synchronous_commit": "off",
}
PLANNER = {
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "synchronize_seqscans": "off",
    "plan_cache_mode": "force_custom_plan",
    "join_collapse_limit": "1",
    "from_collapse_limit": "1",
    "geqo": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_indexonlyscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_memoize": "off",
}
"""Planner settings of requests. They fix the plan where possible, because the plan decides which error comes first: an
index if there is one, and joins in the order of the text.
"""

Connection = psycopg.Connection[TupleRow]


class NoServer(EngineFailed):
    """No server answers."""


class Starting(NoServer):
    """The server is starting or shutting down."""


def connect(server: Server, layout: Layout, *, reads: bool = False) -> Connection:
    """A connection of the executor's own role with the fixed settings."""
    if len(server.database.encode()) > NAME_MAX:
        raise EngineFailed(f"postgres.database must have at most {NAME_MAX} octets")
    try:
        connection = psycopg.connect(
            host=server.host or None,
            port=server.port,
            dbname=server.database,
            user=server.user,
            password=_password(server.password_file),
            connect_timeout=CONNECT_SECONDS_MAX,
            application_name=layout.label,
            options="",
            autocommit=True,
            prepare_threshold=None,
            cursor_factory=psycopg.RawCursor,
        )
    except psycopg.OperationalError as error:
        raise _advice(server, error) from None
    settings = {**FIXED, **({} if reads else PLANNER)}
    words = [f"set {name} = '{value}'" for name, value in settings.items()]
    connection.execute(";".join([*words, f"set search_path = {layout.path}"]).encode())
    return connection


def first_connection(server: Server, layout: Layout) -> Connection:
    """The executor's first connection: the server may start after the node, or may be recovering after it was
    killed.
    """
    begun_s = time.monotonic()
    while True:
        try:
            return connect(server, layout)
        except NoServer as absent:
            patience_s = STARTING_S if isinstance(absent, Starting) else PATIENCE_S
            if time.monotonic() > begun_s + patience_s:
                raise
            time.sleep(0.2)


def check(connection: Connection, server: Server) -> None:
    """Check that the server, role and database have the properties that all executors need."""
    if connection.info.server_version < VERSION_MIN:
        raise EngineFailed(
            f"the server at {server.place} is PostgreSQL {connection.info.parameter_status('server_version')}: "
            f"install {VERSION_MIN // 10000} or newer"
        )
    role = connection.execute(
        "select rolsuper, rolcreaterole, rolbypassrls, rolreplication from pg_catalog.pg_roles"
        " where rolname = current_user"
    ).fetchone()
    assert role is not None
    if role[0] or role[2] or role[3]:
        raise EngineFailed(
            f"the role {server.user} is a superuser, or bypasses or replicates: make one that is not, with"
            f" `create role chaplain login createrole password …`, and name it in postgres.user"
        )
    if not role[1]:
        raise EngineFailed(
            f"the role {server.user} cannot make roles for clients: `alter role {server.user} createrole`"
        )
    found = connection.execute(
        "select pg_catalog.pg_encoding_to_char(encoding), datcollate, datctype,"
        " pg_catalog.has_database_privilege(oid, 'create') from pg_catalog.pg_database"
        " where datname = pg_catalog.current_database()"
    ).fetchone()
    assert found is not None
    if found[:3] != ("UTF8", "C", "C") or not found[3]:
        raise EngineFailed(
            f"the database {server.database} must be of UTF8 and collation C, and {server.user}'s own: `create database"
            f" {server.database} owner {server.user} template template0 encoding 'UTF8' lc_collate 'C' lc_ctype 'C'`"
        )


def _password(file: str) -> str | None:
    if not file:
        return None
    path = Path(file)
    try:
        if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
            raise EngineFailed(f"{path} can be read by others: chmod 600 {path}")
        return path.read_text().strip()
    except OSError as error:
        raise EngineFailed(f"cannot read postgres.password_file {path}: {error.strerror}") from None


def _advice(server: Server, error: psycopg.OperationalError) -> EngineFailed:
    """A message for known errors only: libpq's text may contain credentials. libpq has no codes for most of these
    errors.
    """
    message = str(error).lower()
    if "password" in message or "authentication" in message or "no pg_hba.conf entry" in message or "peer" in message:
        return EngineFailed(
            f"the server at {server.place} does not let {server.user} in: correct postgres.user and the password in"
            f" postgres.password_file, or the server's pg_hba.conf"
        )
    if "database" in message and "does not exist" in message:
        return EngineFailed(
            f"there is no database {server.database} at {server.place}: `create database {server.database} owner"
            f" {server.user} template template0 encoding 'UTF8' lc_collate 'C' lc_ctype 'C'`"
        )
    if "role" in message and "does not exist" in message:
        return EngineFailed(
            f"there is no role {server.user} at {server.place}: `create role {server.user} login createrole password …`"
        )
    if "starting up" in message or "recovery" in message or "shutting down" in message:
        return Starting(f"the PostgreSQL server at {server.place} is starting or ending: start the node again later")
    return NoServer(
        f"no PostgreSQL server answers at {server.place}: start it, or correct postgres.host and postgres.port"
    )
