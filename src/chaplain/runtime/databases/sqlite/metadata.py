"""The executor's own tables in a SQLite file: position, results, and read positions.

Decides what is kept and for how long. Results are not part of the fingerprint, because the number of stored results
depends on what clients have read at each node. An identity that never reads its results loses its own oldest ones
first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

import apsw
import msgspec

from chaplain.executor.events import READ_MAX
from chaplain.executor.fingerprint import RowTally, fingerprint_of
from chaplain.executor.statement import OutcomeRun, encode_run
from chaplain.runtime.databases.interface import DatabaseDamaged, EngineFailed
from chaplain.runtime.databases.position import Position
from chaplain.runtime.databases.sqlite.statement_guard import OWN

VERSION = 1
RESULT_BYTES_MAX = 16 * 1024 * 1024
"""Size of the results kept for one identity."""
_TABLES = f"""
create table if not exists {OWN}state(
    one integer primary key check (one = 1), version integer, stream text, idx integer, requests integer,
    whole integer, tallies blob, fingerprint blob, budget blob, changes integer, seal blob);
create table if not exists {OWN}results(
    number integer primary key, acl blob, client_id integer, first_id integer, last_id integer, body blob);
create index if not exists {OWN}results_of on {OWN}results(acl, client_id, last_id);
create table if not exists {OWN}read(
    number integer primary key, acl blob, client_id integer, last_id integer, unique (acl, client_id));
"""
_encode = msgspec.msgpack.Encoder().encode
_tallies = msgspec.msgpack.Decoder(dict[str, RowTally])
_WRITE = f"update {OWN}state set idx=?, requests=?, whole=?, tallies=?, fingerprint=?, budget=?, changes=?, seal=?"
_KEEP = f"insert into {OWN}results(acl, client_id, first_id, last_id, body) values (?,?,?,?,?)"

_NOTE = f"""
insert into {OWN}read(acl, client_id, last_id) values (?, ?, ?) on conflict (acl, client_id)
do update set number = (select max(number) + 1 from {OWN}read), last_id = excluded.last_id
where excluded.last_id > last_id"""
_FORGET = f"""
delete from {OWN}read where number <= (select number from {OWN}read order by number desc limit 1 offset ?)"""


class SqliteState(Position, frozen=True):
    budget: dict[bytes, int]
    """Steps that identities have left in a message that is not complete."""
    changes: int
    """Row changes so far."""


def _values(state: SqliteState) -> tuple[object, ...]:
    tallies, budget = _encode(state.tallies), _encode(state.budget)
    return (state.index, state.requests, int(state.whole), tallies, state.fingerprint, budget, state.changes)


def _seal(values: tuple[object, ...]) -> bytes:
    """A checksum of the whole row: nothing else would detect bit rot in the position."""
    return sha256(_encode(values)).digest()


def stream_in(connection: apsw.Connection) -> str:
    """The stream that the database names as its own; empty if it has no state yet."""
    return next((str(stream) for (stream,) in connection.execute(f"select stream from {OWN}state")), "")


def state_of(connection: apsw.Connection, stream: str) -> SqliteState | None:
    """The stored state; None if there is none yet."""
    rows = list(connection.execute(f"select * from {OWN}state"))
    if not rows:
        return None
    _, version, of_stream, *_ = values = rows[0]
    if version != VERSION or of_stream != stream:
        raise EngineFailed(f"the database is of stream {of_stream!r} and version {version}, not of {stream!r}")
    *sealed, seal = values[1:11] if len(values) > 10 else (*values[1:], None)  # an earlier version had no seal
    if seal is not None and seal != _seal(tuple(sealed)):
        raise DatabaseDamaged("its position and tallies are not as they were written")
    _, _, index, requests, whole, tallies, fingerprint, budget, changes = sealed
    try:
        known = _tallies.decode(tallies)
        left = msgspec.msgpack.decode(budget, type=dict[bytes, int])
    except (msgspec.MsgspecError, TypeError) as error:
        raise DatabaseDamaged(f"its position and tallies: {error}") from None
    return SqliteState(index, requests, bool(whole), known, fingerprint, left, changes)


class SqliteStore:
    def __init__(self, connection: apsw.Connection, stream: str) -> None:
        self._connection = connection
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "normal")
        connection.pragma("foreign_keys", True)
        connection.pragma("recursive_triggers", False)
        connection.pragma("temp_store", "file")
        connection.set_busy_timeout(0)
        connection.execute(_TABLES)
        columns = [name for (name,) in connection.execute("select name from pragma_table_info(?)", (f"{OWN}state",))]
        if "seal" not in columns:  # the file was written by an earlier version
            connection.execute(f"alter table {OWN}state add column seal blob")
        self._stream = stream
        self.state = state_of(connection, stream) or self._begin()
        self._next = self.state
        self._failures = 0
        sizes = f"select acl, sum(length(body)) from {OWN}results group by acl"
        self._kept: dict[bytes, int] = dict(connection.execute(sizes))
        self.read = tuple(connection.execute(f"select acl, client_id, last_id from {OWN}read order by number"))

    def _begin(self) -> SqliteState:
        if list(self._connection.execute("select 1 from sqlite_master where tbl_name not glob ?", (OWN + "*",))):
            raise DatabaseDamaged("the database contains tables but no state")
        blank = SqliteState(0, 0, True, {}, fingerprint_of(b"\x90", {}), {}, 0)
        values = (VERSION, self._stream, *_values(blank))
        self._connection.execute(f"insert into {OWN}state values (1,?,?,?,?,?,?,?,?,?,?)", (*values, _seal(values)))
        return blank

    # Within the transaction of a message.

    def put_state(
        self,
        position: tuple[int, int, bool],
        tallies: Mapping[str, RowTally],
        fingerprint: bytes,
        budget: Mapping[bytes, int],
        changes: int,
    ) -> None:
        self._next = SqliteState(*position, dict(tallies), fingerprint, dict(budget), changes)
        values = _values(self._next)
        self._connection.execute(_WRITE, (*values, _seal((VERSION, self._stream, *values))))

    def put_results(self, runs: Sequence[tuple[bytes, OutcomeRun]]) -> None:
        for acl, run in runs:
            self._failures += sum(outcome.error is not None for outcome in run.outcomes)
            body = encode_run(run)
            self._connection.execute(_KEEP, (acl, run.client_id, run.first_id, run.last_id, body))
            self._kept[acl] = self._kept.get(acl, 0) + len(body)
            if self._kept[acl] > RESULT_BYTES_MAX:
                self._drop_oldest(acl)

    def _drop_oldest(self, acl: bytes) -> None:
        """Delete the oldest results down to three quarters of the bound, so that this happens seldom."""
        oldest = f"select number, length(body) from {OWN}results where acl = ? order by number"
        through = 0
        for number, size in self._connection.execute(oldest, (acl,)):
            if self._kept[acl] <= RESULT_BYTES_MAX * 3 // 4:
                break
            self._kept[acl] -= size
            through = number
        self._connection.execute(f"delete from {OWN}results where acl = ? and number <= ?", (acl, through))

    def committed(self) -> None:
        self.state = self._next

    def take_failures(self) -> int:
        failures, self._failures = self._failures, 0
        return failures

    # Between messages.

    def clear(self, acl: bytes, through: Sequence[tuple[int, int]]) -> None:
        """Delete the results of these lanes of an identity, up to an id each, and record the read positions for other
        executors.
        """
        gone = f"delete from {OWN}results where acl = ? and client_id = ? and last_id <= ? returning length(body)"
        with self._connection:
            for client_id, last_id in through:
                self._connection.execute(_NOTE, (acl, client_id, last_id))
                for (size,) in self._connection.execute(gone, (acl, client_id, last_id)):
                    self._kept[acl] -= size
            self._connection.execute(_FORGET, (READ_MAX,))
