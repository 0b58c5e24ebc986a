"""Two-phase writes: many writers stage packs, then one commits them, all or none, exactly once.

    STAGED pack    is in the log under the ids of its lane; has no offsets
    COMMIT pack    names ranges of request ids; from here on, all of them will be in their streams, in this order
    DISCARD pack   names ranges of request ids in the same way; the staged packs in them are discarded
    STAGED again   a node orders the committed packs a second time (replay); now they get their offsets

Decides which octets are a commit, and whether it is granted. A commit contains the name of a writer of batches (the
app) and a version. A version that is not above the app's last one was committed before: the packs that the repeated
commit names are discarded, and nothing else changes. Does not know which node orders the second copies
(`ingest.commit_replay`). Byte table: docs/protocol/journal-requests.md.

Invariants: a pack is committed once. The versions of an app never decrease while its transaction is stored. One
identity never occupies the space of all others, and discards only its own packs.
"""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.execution.staged_packs import StagedPacksDraft
from chaplain.journal.model.records import PackKey, Staged, Transaction
from chaplain.journal.storage.verdict import Reason
from chaplain.segment.layout import Bytes
from chaplain.segment.pack import decode_pack
from chaplain.units import SECOND_NS
from chaplain.wire.primitives import ByteReader, put_number, put_string

STAGED = 0xF0
COMMIT = 0xF1
DISCARD = 0xF2
"""Message types of packs. The executor of the packs defines the smaller types."""
TO_TRANSACTIONS = (COMMIT, DISCARD)
"""Message types that are written to `TRANSACTIONS`."""
TRANSACTIONS = "_transactions"
"""The stream name of commits and discards. No message is ever written to this stream: the log itself contains them."""
PROTOCOL = 1
RANGES_MAX = 65_536
VERSION_MAX = (1 << 63) - 1

STAGED_MAX = 131_072
"""Bound of staged packs. At the bound, a pack is refused."""
STAGED_IDENTITY_MAX = 65_536
"""Bound of the staged packs of one identity: half of all, so that batches that one identity left unfinished do not
block the others. The quota is for identities because an app's name is the writer's own statement, and is unknown before
the commit.
"""
STAGED_NS = 3600 * SECOND_NS
"""A staged pack expires after this time, by cluster time."""
TRANSACTIONS_MAX = 4096
TRANSACTION_SPARE_NS = 30 * 24 * 3600 * SECOND_NS
"""At `TRANSACTIONS_MAX`, a new app replaces one without a commit in this time. If there is none, the commit is refused.
"""


class RequestRange(Frozen, frozen=True):
    """Requests of one lane, both ends included."""

    client_id: int
    first_id: int
    last_id: int


class Commit(Frozen, frozen=True):
    """A request to commit staged packs."""

    app: str
    """Name of the writer of batches. Empty for a commit that is never repeated under a version."""
    version: int
    spans: tuple[RequestRange, ...]


def encode(commit: Commit) -> bytes:
    """The value of a COMMIT pack's only message."""
    if not commit.spans or len(commit.spans) > RANGES_MAX or not 0 <= commit.version <= VERSION_MAX:
        raise ValueError(f"a commit has 1 to {RANGES_MAX} spans and a version from 0 on")
    pieces = [put_number(PROTOCOL, 1), put_string(commit.app), put_number(commit.version, 8)]
    pieces.append(put_number(len(commit.spans), 4))
    for span in commit.spans:
        pieces += [put_number(number, 4) for number in (span.client_id, span.first_id, span.last_id)]
    return b"".join(pieces)


def decode(data: bytes) -> Commit:
    cursor = ByteReader(data)
    if cursor.number(1, "protocol") != PROTOCOL:
        raise Malformed(f"commit: this program speaks protocol {PROTOCOL}")
    app, version, count = cursor.string("app"), cursor.number(8, "version"), cursor.number(4, "spans")
    if version > VERSION_MAX or not 1 <= count <= RANGES_MAX:
        raise Malformed(f"commit: version {version}, {count} spans")
    spans = tuple(_span(cursor) for _ in range(count))
    cursor.end("commit")
    return Commit(app, version, spans)


def _span(cursor: ByteReader) -> RequestRange:
    span = RequestRange(cursor.number(4, "client id"), cursor.number(4, "first id"), cursor.number(4, "last id"))
    if not span.client_id or not 1 <= span.first_id <= span.last_id:
        raise Malformed(f"commit: {span}")
    return span


def commit_of(raw: Bytes) -> Commit:
    """The commit in a COMMIT pack."""
    values = decode_pack(raw).values
    if len(values) != 1:
        raise Malformed(f"commit: one message, not {len(values)}")
    return decode(values[0])


# Rules.


def expire(draft: StagedPacksDraft, now_ns: int) -> None:
    draft.expire(now_ns - STAGED_NS)


def stage_decision(draft: StagedPacksDraft, acl: bytes) -> Reason:
    full = draft.staged_count >= STAGED_MAX or draft.staged_by(acl) >= STAGED_IDENTITY_MAX
    return Reason.STAGED_FULL if full else Reason.STAGED


def commit(draft: StagedPacksDraft, acl: bytes, wanted: Commit, now_ns: int) -> tuple[Reason, int]:
    """Grant a commit, or return the reason for the refusal. All packs of the commit have offsets when as many packs are
    replayed as the ticket states.
    """
    known = draft.transaction(acl, wanted.app) if wanted.app else None
    if known is not None and wanted.version <= known.version:
        discard(draft, acl, wanted.spans)  # a batch that was staged again although it had been committed
        return Reason.COMMITTED, known.ticket
    found = _find(draft, acl, wanted.spans)
    if found is None:
        return Reason.NOT_STAGED, 0
    if wanted.app and known is None and not _room(draft, now_ns):
        return Reason.TRANSACTIONS_FULL, 0
    draft.put_committed(found)
    if wanted.app:
        draft.put_transaction(Transaction(acl, wanted.app, wanted.version, draft.committed_total, now_ns))
    return Reason.COMMITTED, draft.committed_total


def discard(draft: StagedPacksDraft, acl: bytes, spans: tuple[RequestRange, ...]) -> None:
    """Discard the packs in these ranges that this identity staged. A range ends at its first pack that is not staged,
    so the work is bounded by the number of ranges and of staged packs.
    """
    for span in spans:
        next_id = span.first_id
        while next_id <= span.last_id:
            staged = draft.staged((span.client_id, next_id))
            if staged is None or staged.acl != acl or staged.last_id > span.last_id:
                break
            draft.drop_staged(staged)
            next_id = staged.last_id + 1


def _find(draft: StagedPacksDraft, acl: bytes, spans: tuple[RequestRange, ...]) -> list[Staged] | None:
    """All packs that the ranges name, in their order. None unless each is staged, by this identity, and named once."""
    found: dict[PackKey, Staged] = {}
    for span in spans:
        next_id = span.first_id
        while next_id <= span.last_id:
            staged = draft.staged((span.client_id, next_id))
            if staged is None or staged.acl != acl or staged.last_id > span.last_id:
                return None
            if staged.key in found:
                return None  # at once: a commit that repeats ranges a thousand times must not cost more
            found[staged.key] = staged
            next_id = staged.last_id + 1
    return list(found.values())


def _room(draft: StagedPacksDraft, now_ns: int) -> bool:
    """True if one more app can have a transaction."""
    return draft.transactions_count < TRANSACTIONS_MAX or draft.forget_transaction(now_ns - TRANSACTION_SPARE_NS)
