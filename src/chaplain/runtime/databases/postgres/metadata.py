"""The executor's own tables in PostgreSQL: position in a stream, results, and read positions.

Decides what is kept and for how long, as `sqlite.metadata` does. The position is updated only if the stored one is the
one known here (compare-and-set). So nothing is applied twice, even if a transaction from before a crash, or another
node, has changed it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha256

import msgspec
import psycopg

from chaplain.executor.events import READ_MAX
from chaplain.executor.fingerprint import RowTally, fingerprint_of
from chaplain.executor.statement import OutcomeRun, encode_run
from chaplain.runtime.databases.interface import EngineFailed
from chaplain.runtime.databases.position import Position
from chaplain.runtime.databases.postgres.connection import Connection
from chaplain.runtime.databases.postgres.row_tracker import SchemaDefinition
from chaplain.runtime.databases.postgres.schema import OWN, TABLES, Layout, drop_stream, literal, make_stream

VERSION = 1
RESULT_BYTES_MAX = 16 * 1024 * 1024
"""Size of the results kept for one identity."""
PATIENCE_S = 30.0
"""How long the connections of a killed process may last."""
_WRITE = """
with wrote as (
    update {own}.state set idx = {index}, requests = {requests}, whole = {whole}, tallies = {tallies},
    fingerprint = {fingerprint}, changes = {changes}, shape = {shape}
    where stream = {stream} and idx = {old_index} and requests = {old_requests} and whole = {old_whole} returning 1)
select 1 / pg_catalog.count(*) from wrote"""
"""Divides by zero if the stored position differs: then nothing is committed."""
_KEEP = f"insert into {OWN}.results(stream, acl, client_id, first_id, last_id, body) values ({{}})"
_READ = f"""
select version, idx, requests, whole, tallies, fingerprint, changes, shape from {OWN}.state where stream = $1::text"""

_NOTE = f"""
insert into {OWN}.read as known (stream, acl, client_id, last_id)
values ($1::text, $2::bytea, $3::bigint, $4::bigint) on conflict (stream, acl, client_id)
do update set number = default, last_id = excluded.last_id where excluded.last_id > known.last_id"""
_FORGET = f"""
delete from {OWN}.read where stream = $1::text and number <=
(select number from {OWN}.read where stream = $1::text order by number desc limit 1 offset $2::bigint)"""
_NOTED = f"select acl, client_id, last_id from {OWN}.read where stream = $1::text order by number"
_tallies = msgspec.msgpack.Decoder(dict[str, RowTally])
_shape = msgspec.msgpack.Decoder(list[SchemaDefinition])


class PostgresState(Position, frozen=True):
    changes: int
    """Row changes so far."""
    definitions: list[SchemaDefinition]


class PostgresStore:
    def __init__(self, connection: Connection, layout: Layout) -> None:
        self._connection = connection
        self._layout = layout
        self._take(connection)
        self._end_others(connection)
        with connection.transaction():
            connection.execute(f"select pg_catalog.pg_advisory_xact_lock({_lock_of(OWN)})".encode())
            connection.execute(TABLES.encode())
            for words in make_stream(layout):
                connection.execute(words.encode())
        self.state = self._read()
        self._failures = 0
        sizes = f"select acl, sum(length(body))::bigint from {OWN}.results where stream = $1::text group by acl"
        self._kept: dict[bytes, int] = dict(connection.execute(sizes.encode(), (layout.stream,)))
        noted = connection.execute(_NOTED.encode(), (layout.stream,)).fetchall()
        self.read = tuple((bytes(acl), int(client_id), int(last_id)) for acl, client_id, last_id in noted)

    def _take(self, connection: Connection) -> None:
        """Take an advisory lock: while this connection lasts, no other executor uses this stream here."""
        end_s = time.monotonic() + PATIENCE_S
        lock = f"select pg_catalog.pg_try_advisory_lock({_lock_of(self._layout.stream)})"
        while True:
            row = connection.execute(lock.encode()).fetchone()
            if row is not None and row[0]:
                return
            if time.monotonic() > end_s:
                name = self._layout.database
                raise EngineFailed(f"another executor uses the database {name}: each node needs one of its own")
            time.sleep(0.05)

    def _end_others(self, connection: Connection) -> None:
        """Terminate the connections of a killed process, whose last transaction may still be open."""
        others = (
            "select pid, pg_catalog.pg_terminate_backend(pid) from pg_catalog.pg_stat_activity where datname ="
            " pg_catalog.current_database() and usename = session_user and application_name = $1"
            " and pid <> pg_catalog.pg_backend_pid()"
        )
        end_s = time.monotonic() + PATIENCE_S
        while connection.execute(others, (self._layout.label,)).fetchall():
            if time.monotonic() > end_s:
                raise EngineFailed("connections of an executor that has ended are still there: restart the server")
            time.sleep(0.02)

    def _read(self) -> PostgresState:
        row = self._connection.execute(_READ.encode(), (self._layout.stream,)).fetchone()
        if row is None:
            nothing = msgspec.msgpack.encode({})
            blank = (self._layout.stream, VERSION, nothing, fingerprint_of(b"\x90", {}), msgspec.msgpack.encode([]))
            make = (
                f"insert into {OWN}.state values ($1::text, $2::bigint, 0, 0, true, $3::bytea, $4::bytea, 0, $5::bytea)"
            )
            self._connection.execute(make.encode(), blank)
            return self._read()
        version, index, requests, whole, tallies, fingerprint, changes, shape = row
        if version != VERSION:
            raise EngineFailed(f"the database's state is of version {version}, not {VERSION}")
        try:
            known = _tallies.decode(tallies)
            definitions = _shape.decode(shape)
        except msgspec.MsgspecError as error:
            raise EngineFailed(f"the database's state: {error}") from None
        return PostgresState(index, requests, whole, known, bytes(fingerprint), changes, definitions)

    def rebuild(self) -> None:
        """Delete everything of the stream; it is rebuilt from the journal."""
        with self._connection.transaction():
            for words in [*drop_stream(self._layout), *make_stream(self._layout)]:
                self._connection.execute(words.encode())
        self._kept = {}
        self.state = self._read()

    # The end of a request's transaction.

    def commit(
        self,
        connection: Connection,
        state: PostgresState,
        runs: Sequence[tuple[bytes, OutcomeRun]],
        then: Sequence[str] = (),
    ) -> None:
        """Write position and results, commit, and run `then`, in one round trip. Commits nothing if the stored position
        differs.
        """
        encode, old = msgspec.msgpack.encode, self.state
        write = _WRITE.format(
            own=OWN,
            stream=literal(self._layout.stream),
            index=state.index,
            requests=state.requests,
            whole=state.whole,
            tallies=literal(encode(state.tallies)),
            fingerprint=literal(state.fingerprint),
            changes=state.changes,
            shape=literal(encode(state.definitions)),
            old_index=old.index,
            old_requests=old.requests,
            old_whole=old.whole,
        )
        words = ["reset role", write, *(self._keep(acl, run) for acl, run in runs), "commit", *then]
        try:
            connection.execute(";".join(words).encode())
        except psycopg.errors.DivisionByZero:
            raise EngineFailed(
                "the position is not where it was left: does another executor use this database?"
            ) from None
        self.state = state
        for acl, _ in runs:
            if self._kept[acl] > RESULT_BYTES_MAX:
                self._drop_oldest(acl)

    def _keep(self, acl: bytes, run: OutcomeRun) -> str:
        self._failures += sum(outcome.error is not None for outcome in run.outcomes)
        body = encode_run(run)
        self._kept[acl] = self._kept.get(acl, 0) + len(body)
        values: tuple[str | bytes | int, ...] = (
            self._layout.stream,
            acl,
            run.client_id,
            run.first_id,
            run.last_id,
            body,
        )
        return _KEEP.format(", ".join(literal(value) for value in values))

    def _drop_oldest(self, acl: bytes) -> None:
        """Delete the oldest results down to three quarters of the bound, so that this happens seldom."""
        those = f"from {OWN}.results where stream = $1::text and acl = $2::bytea"
        oldest = f"select number, length(body) {those} order by number"
        through = 0
        for number, size in self._connection.execute(oldest.encode(), (self._layout.stream, acl)).fetchall():
            if self._kept[acl] <= RESULT_BYTES_MAX * 3 // 4:
                break
            self._kept[acl] -= size
            through = number
        gone = f"delete {those} and number <= $3::bigint"
        self._connection.execute(gone.encode(), (self._layout.stream, acl, through))

    def take_failures(self) -> int:
        failures, self._failures = self._failures, 0
        return failures

    # Between requests.

    def clear(self, acl: bytes, through: Sequence[tuple[int, int]]) -> None:
        """Delete the results of these lanes of an identity, up to an id each, and record the read positions for other
        executors.
        """
        gone = (
            f"delete from {OWN}.results where stream = $1::text and acl = $2::bytea and client_id = $3::bigint"
            " and last_id <= $4::bigint returning length(body)"
        )
        with self._connection.transaction():
            for client_id, last_id in through:
                values = (self._layout.stream, acl, client_id, last_id)
                self._connection.execute(_NOTE.encode(), values)
                for (size,) in self._connection.execute(gone.encode(), values).fetchall():
                    self._kept[acl] -= size
            self._connection.execute(_FORGET.encode(), (self._layout.stream, READ_MAX))


def _lock_of(name: str) -> int:
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big", signed=True)
