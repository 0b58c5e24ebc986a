"""What passes between the executor's core and its host, which has the databases."""

from __future__ import annotations

from typing import TypeAlias

from chaplain.core import Frozen
from chaplain.executor.statement import Parameters
from chaplain.segment.record import Record

READ_MAX = 4096
"""Lanes whose results were read, remembered for executors that are away or behind."""


class Work(Frozen, frozen=True):
    """What one agreed cluster message says to one database."""

    index: int
    timestamp_ns: int
    hash: bytes
    batches: tuple[tuple[int, bytes], ...]
    """First offset and packs, in order. Packs that hold no statements are passed over."""
    owners: tuple[tuple[int, bytes], ...] = ()
    """The lanes in them, and the identities that they are leased under."""

    @property
    def size_bytes(self) -> int:
        return sum(len(body) for _, body in self.batches)


class MessageApplied(Frozen, frozen=True):
    """A message was carried out, and is part of the database for good."""

    index: int
    fingerprint: bytes
    requests: int = 0
    failures: int = 0


# To the host.


class OpenDatabase(Frozen, frozen=True):
    """How far is the database of this stream? It is made if there is none. Answered with `DatabaseOpened`."""

    stream: str


class Apply(Frozen, frozen=True):
    """Carry these out in order, each in one transaction with its position. Answered with `Applied`."""

    stream: str
    works: tuple[Work, ...]


class TryOut(Frozen, frozen=True):
    """Execute one request's statements as at this time, and take everything back. Answered with `Tried`."""

    ticket: int
    stream: str
    values: tuple[bytes, ...]
    timestamp_ns: int


class RunQuery(Frozen, frozen=True):
    """Read, and change nothing. Answered with `Looked`."""

    token: int
    stream: str
    sql: str
    parameters: Parameters


class StopQuery(Frozen, frozen=True):
    """Nobody waits for this query any more. Answered with `Cleared`."""

    token: int
    stream: str


class TakeResults(Frozen, frozen=True):
    """What became of an identity's requests: of one lane, or of all if `client_id` is 0. Answered with `Looked`."""

    token: int
    stream: str
    acl: bytes
    client_id: int
    first_id: int
    last_id: int
    read: tuple[tuple[int, int], ...] = ()
    """Results of these lanes, up to an id each, were read: they are cleared first, and not given again."""


class ClearResults(Frozen, frozen=True):
    """Results of these lanes of an identity, up to an id each, were read. Answered with `Cleared`."""

    stream: str
    acl: bytes
    through: tuple[tuple[int, int], ...]


class ReadBack(Frozen, frozen=True):
    """Read the log between two positions. Answered with `BackRead`."""

    token: int
    start: int
    end: int


class KeepDatabase(Frozen, frozen=True):
    """Make a copy of the database as it is, synced, in place of any earlier one. Answered with `DatabaseKept`."""

    stream: str


class ReadKept(Frozen, frozen=True):
    """A piece of that copy, for another executor. Answered with `KeptRead`."""

    token: int
    stream: str
    position: int


class CheckDatabase(Frozen, frozen=True):
    """Read all rows again: do they add up to what is kept of them? Answered with `DatabaseChecked`."""

    stream: str


class RemakeDatabase(Frozen, frozen=True):
    """Set the database aside, and go on from the copy that is kept, or from nothing. Nothing is being applied to it.
    Answered with `DatabaseOpened`.
    """

    stream: str


class TakeCopy(Frozen, frozen=True):
    """A piece of another executor's copy. Answered with `CopyTaken`; the last one takes the database's place, and is
    answered with `DatabaseOpened`.
    """

    stream: str
    position: int
    data: bytes
    size_bytes: int
    digest: bytes


# From the host.


class DatabaseOpened(Frozen, frozen=True):
    stream: str
    index: int = 0
    fingerprint: bytes = b""
    failed: str = ""
    kept: int = 0
    """The last message in the copy that is kept beside it."""
    read: tuple[tuple[bytes, int, int], ...] = ()
    """Identities and lanes of which results were read, and the last such id of each."""
    damage: str = ""
    """What was wrong with the database that was here; this one was made in its place."""
    doubtful_rows: int = 0
    """How many rows it has, if nobody closed it."""


class DatabaseChecked(Frozen, frozen=True):
    """No `damage`: it is whole, or that could not be found out."""

    stream: str
    damage: str = ""


class DatabaseKept(Frozen, frozen=True):
    """With `damage` the copy was not kept, and neither with `failed`."""

    stream: str
    index: int = 0
    failed: str = ""
    damage: str = ""


class KeptRead(Frozen, frozen=True):
    """Nothing, if there is no copy, or it ends before; or if there is none any more, because of its `damage`."""

    token: int
    index: int = 0
    size_bytes: int = 0
    digest: bytes = b""
    data: bytes = b""
    damage: str = ""


class CopyTaken(Frozen, frozen=True):
    stream: str
    position: int
    """Where the next piece goes; 0: begin anew."""
    failed: str = ""


class Applied(Frozen, frozen=True):
    """`failed`: after these steps the database could not go on, and why."""

    stream: str
    steps: tuple[MessageApplied, ...]
    failed: str = ""


class Tried(Frozen, frozen=True):
    """`kind` and `reason` say why the request would fail. Not `done`: that could not be found out."""

    ticket: int
    stream: str
    done: bool
    kind: str = ""
    reason: str = ""


class Looked(Frozen, frozen=True):
    token: int
    payload: bytes = b""
    kind: str = ""
    reason: str = ""


class Cleared(Frozen, frozen=True):
    """Done, and nothing to tell of it."""

    stream: str


class BackRead(Frozen, frozen=True):
    token: int
    records: tuple[Record, ...]


CopyErrand: TypeAlias = KeepDatabase | ReadKept | TakeCopy | CheckDatabase | RemakeDatabase
ExecutorErrand: TypeAlias = (
    OpenDatabase | Apply | TryOut | RunQuery | StopQuery | TakeResults | ClearResults | ReadBack | CopyErrand
)
CopyAnswer: TypeAlias = DatabaseKept | KeptRead | CopyTaken | DatabaseChecked
ExecutorAnswer: TypeAlias = DatabaseOpened | Applied | Tried | Looked | Cleared | BackRead | CopyAnswer
