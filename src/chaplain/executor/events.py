"""Errands from the executor's core to its host, which runs the databases, and the host's answers."""

from __future__ import annotations

from typing import TypeAlias

from chaplain.core import Frozen
from chaplain.executor.statement import Parameters
from chaplain.segment.record import Record

READ_MAX = 4096
"""Lanes whose read positions are remembered for executors that are away or behind."""


class Work(Frozen, frozen=True):
    """The statements of one agreed cluster message for one database."""

    index: int
    timestamp_ns: int
    hash: bytes
    batches: tuple[tuple[int, bytes], ...]
    """First offset and packs, in order. Packs without statements are skipped."""
    owners: tuple[tuple[int, bytes], ...] = ()
    """The lanes of the packs, each with the identity that it is leased to."""

    @property
    def size_bytes(self) -> int:
        return sum(len(body) for _, body in self.batches)


class MessageApplied(Frozen, frozen=True):
    """A message was applied and committed in the database."""

    index: int
    fingerprint: bytes
    requests: int = 0
    failures: int = 0


# Errands to the host.


class OpenDatabase(Frozen, frozen=True):
    """Open the stream's database, or create it, and report its position. Answered with `DatabaseOpened`."""

    stream: str


class Apply(Frozen, frozen=True):
    """Apply these in order, each in one transaction with its position. Answered with `Applied`."""

    stream: str
    works: tuple[Work, ...]


class TryOut(Frozen, frozen=True):
    """Dry-run one request at this time, and roll everything back. Answered with `Tried`."""

    ticket: int
    stream: str
    values: tuple[bytes, ...]
    timestamp_ns: int


class RunQuery(Frozen, frozen=True):
    """Run a read-only query. Answered with `Looked`."""

    token: int
    stream: str
    sql: str
    parameters: Parameters


class StopQuery(Frozen, frozen=True):
    """Cancel a query that the client has withdrawn. Answered with `Cleared`."""

    token: int
    stream: str


class TakeResults(Frozen, frozen=True):
    """Read the outcomes of an identity's requests: of one lane, or of all lanes if `client_id` is 0. Answered with
    `Looked`.
    """

    token: int
    stream: str
    acl: bytes
    client_id: int
    first_id: int
    last_id: int
    read: tuple[tuple[int, int], ...] = ()
    """Lanes with the last id whose result was read. These results are deleted first and not returned again."""


class ClearResults(Frozen, frozen=True):
    """Delete results that were read: per lane of an identity, up to an id. Answered with `Cleared`."""

    stream: str
    acl: bytes
    through: tuple[tuple[int, int], ...]


class ReadBack(Frozen, frozen=True):
    """Read the log between two positions. Answered with `BackRead`."""

    token: int
    start: int
    end: int


class KeepDatabase(Frozen, frozen=True):
    """Make a synced copy of the database as it is; it replaces any earlier copy. Answered with `DatabaseKept`."""

    stream: str


class ReadKept(Frozen, frozen=True):
    """Read a piece of that copy for another executor. Answered with `KeptRead`."""

    token: int
    stream: str
    position: int


class CheckDatabase(Frozen, frozen=True):
    """Read all rows and compare them with the stored tallies. Answered with `DatabaseChecked`."""

    stream: str


class RemakeDatabase(Frozen, frozen=True):
    """Set the damaged database aside and rebuild it from the kept copy, or from nothing. No `Apply` is in flight.
    Answered with `DatabaseOpened`.
    """

    stream: str


class TakeCopy(Frozen, frozen=True):
    """Write a piece of another executor's copy. Answered with `CopyTaken`. After the last piece the copy replaces the
    database, and the answer is `DatabaseOpened`.
    """

    stream: str
    position: int
    data: bytes
    size_bytes: int
    digest: bytes


# Answers of the host.


class DatabaseOpened(Frozen, frozen=True):
    stream: str
    index: int = 0
    fingerprint: bytes = b""
    failed: str = ""
    kept: int = 0
    """The last message in the copy kept beside the database."""
    read: tuple[tuple[bytes, int, int], ...] = ()
    """Identities and lanes whose results were read, with the last such id of each."""
    damage: str = ""
    """The damage of the previous database, which this one replaces; empty if there was none."""
    doubtful_rows: int = 0
    """The database's number of rows if it was not closed properly; else 0."""


class DatabaseChecked(Frozen, frozen=True):
    """If `damage` is empty, the database is intact, or its state could not be determined."""

    stream: str
    damage: str = ""


class DatabaseKept(Frozen, frozen=True):
    """No copy was kept if `damage` or `failed` is set."""

    stream: str
    index: int = 0
    failed: str = ""
    damage: str = ""


class KeptRead(Frozen, frozen=True):
    """No data if there is no copy, if it ends before the position, or if it was discarded because of `damage`."""

    token: int
    index: int = 0
    size_bytes: int = 0
    digest: bytes = b""
    data: bytes = b""
    damage: str = ""


class CopyTaken(Frozen, frozen=True):
    stream: str
    position: int
    """Position of the next piece; 0: start again."""
    failed: str = ""


class Applied(Frozen, frozen=True):
    """`failed` says why the database could not continue after these steps."""

    stream: str
    steps: tuple[MessageApplied, ...]
    failed: str = ""


class Tried(Frozen, frozen=True):
    """`kind` and `reason` say why the request would fail; both are empty if it would succeed. If `done` is False, the
    dry run had no result.
    """

    ticket: int
    stream: str
    done: bool
    kind: str = ""
    reason: str = ""


class Looked(Frozen, frozen=True):
    """The result of a query or of `TakeResults`, or the kind and reason of its failure."""

    token: int
    payload: bytes = b""
    kind: str = ""
    reason: str = ""


class Cleared(Frozen, frozen=True):
    """The errand is done and has no result."""

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
