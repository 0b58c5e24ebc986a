"""Peer messages of the sequence layer. Byte tables and examples: docs/protocol/sequence.md.

Every message begins with the state of its sender (`PeerState`), among it history, seat, promised ballot and log length.
So every message is a heartbeat, an acknowledgement and a promise at once, and its history is always explicit.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import TypeAlias

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.sequence.messages.entry import (
    MEMBERS_MAX,
    NO_BALLOT,
    NO_HASH,
    Ballot,
    SeatedMember,
    encode_members,
    take_members,
)
from chaplain.wire.primitives import ByteReader, put_number, put_string

_PEER_STATE = struct.Struct(">BBHQQQQQQQQ32sQ")
PEER_STATE_BYTES = _PEER_STATE.size
_PREVIOUS = struct.Struct(">Q32s")
"""Index and hash of the entry before those in the message."""
NEIGHBOURS_MAX = MEMBERS_MAX
_WANTS, _REMEMBERS = 4, 8


class SequenceState(IntEnum):
    DSC = 0
    WRK = 1
    ERR = 2


class SequenceMessageType(IntEnum):
    DSCREQ = 1
    DSCRES = 2
    SEQRES = 3
    SEQ = 4
    BEAT = 5
    EVENTS = 6
    LOCK = 7
    GRANT = 8
    REFUSE = 9
    FILL = 10


class Why(IntEnum):
    """Why a lock is not granted, or entries are not sent."""

    STALE = 1
    """The sender has promised a higher ballot."""
    BEHIND = 2
    """The asker lacks decided entries and should request them first."""
    OUTSIDE = 3
    """The asker is not in the work set."""
    FORGOTTEN = 4
    """The requested entries have left the window."""


class LogLength(Frozen, frozen=True, order=True):
    """A log's length. The last entry's ballot comes first in the comparison, because it identifies the log."""

    ballot: Ballot
    index: int


class PeerState(Frozen, frozen=True):
    """The sender's state, at the start of every message."""

    state: SequenceState = SequenceState.DSC
    history: int = 0
    seat: int = 0
    tenure: int = 0
    """Number of seats that this process had before."""
    wants: bool = False
    """The sender waits for the lock."""
    remembers: bool = False
    """The sender has known a history. It must not take part in founding another one unless all listed nodes do."""
    promised: Ballot = NO_BALLOT
    head: LogLength = LogLength(NO_BALLOT, 0)
    decided: int = 0
    decided_hash: bytes = NO_HASH
    events: int = 0
    """Decided events of this history."""


class DscReq(Frozen, frozen=True):
    """Discovery request: the sender looks for other nodes, and lists those it knows."""

    peer_state: PeerState
    neighbours: Mapping[int, str] = {}


class DscRes(Frozen, frozen=True):
    peer_state: PeerState
    neighbours: Mapping[int, str] = {}


class SeqRes(Frozen, frozen=True):
    """Without a history: request for a window base (`Seq`). With one: the sender holds the window and asks
    for a seat.
    """

    peer_state: PeerState


class Seq(Frozen, frozen=True):
    """The window base of the sender: the oldest entry after which a joining node can start, and the state there."""

    peer_state: PeerState
    index: int
    hash: bytes
    ballot: Ballot
    next: int
    members: tuple[SeatedMember, ...]
    streams: Mapping[str, tuple[int, bytes]]


class Beat(Frozen, frozen=True):
    """Heartbeat and acknowledgement: only the peer state."""

    peer_state: PeerState


class EntryBatch(Frozen, frozen=True):
    """Entries after `previous`."""

    peer_state: PeerState
    previous: int
    previous_hash: bytes
    entries: bytes


class Lock(Frozen, frozen=True):
    """Request for the lock under the promised ballot of the peer state."""

    peer_state: PeerState


class LockGranted(Frozen, frozen=True):
    """The sender promises the ballot. It includes its entries after `previous` if its log is longer than the
    asker's.
    """

    peer_state: PeerState
    ballot: Ballot
    previous: int
    previous_hash: bytes
    entries: bytes


class LockRefused(Frozen, frozen=True):
    peer_state: PeerState
    why: Why


class Fill(Frozen, frozen=True):
    """Request for the entries after the decided index of the peer state."""

    peer_state: PeerState


Message: TypeAlias = DscReq | DscRes | SeqRes | Seq | Beat | EntryBatch | Lock | LockGranted | LockRefused | Fill


def encode(message: Message) -> tuple[bytes, bytes]:
    """The parcel's body and payload. The most frequent messages come first, here and in `decode`."""
    match message:
        case Beat():
            return _lead(SequenceMessageType.BEAT, message.peer_state), b""
        case EntryBatch():
            fixed = _PREVIOUS.pack(message.previous, message.previous_hash)
            return _lead(SequenceMessageType.EVENTS, message.peer_state) + fixed, message.entries
        case DscReq():
            return _lead(SequenceMessageType.DSCREQ, message.peer_state) + _put_neighbours(message.neighbours), b""
        case DscRes():
            return _lead(SequenceMessageType.DSCRES, message.peer_state) + _put_neighbours(message.neighbours), b""
        case SeqRes():
            return _lead(SequenceMessageType.SEQRES, message.peer_state), b""
        case Seq():
            fixed = struct.pack(">Q32sQQQ", message.index, message.hash, *message.ballot, message.next)
            body = _lead(SequenceMessageType.SEQ, message.peer_state) + fixed + encode_members(message.members)
            return body, _put_streams(message.streams)
        case Lock():
            return _lead(SequenceMessageType.LOCK, message.peer_state), b""
        case LockGranted():
            fixed = struct.pack(">QQQ32s", *message.ballot, message.previous, message.previous_hash)
            return _lead(SequenceMessageType.GRANT, message.peer_state) + fixed, message.entries
        case LockRefused():
            return _lead(SequenceMessageType.REFUSE, message.peer_state) + bytes((message.why,)), b""
        case Fill():
            return _lead(SequenceMessageType.FILL, message.peer_state), b""


def _lead(kind: SequenceMessageType, peer_state: PeerState) -> bytes:
    flags = peer_state.state | _WANTS * peer_state.wants | _REMEMBERS * peer_state.remembers
    return _PEER_STATE.pack(
        kind,
        flags,
        peer_state.tenure,
        peer_state.history,
        peer_state.seat,
        *peer_state.promised,
        *peer_state.head.ballot,
        peer_state.head.index,
        peer_state.decided,
        peer_state.decided_hash,
        peer_state.events,
    )


def _put_neighbours(neighbours: Mapping[int, str]) -> bytes:
    listed = sorted(neighbours.items())[:NEIGHBOURS_MAX]
    return bytes((len(listed),)) + b"".join(
        put_number(identifier, 4) + put_string(where) for identifier, where in listed
    )


def _put_streams(streams: Mapping[str, tuple[int, bytes]]) -> bytes:
    return b"".join(put_string(name) + put_number(number, 8) + hash_ for name, (number, hash_) in streams.items())


def decode(body: bytes, payload: bytes) -> Message:
    if len(body) < PEER_STATE_BYTES:
        raise Malformed(f"sequence: a peer state has {PEER_STATE_BYTES} octets, not {len(body)}")
    kind, peer_state = _take_peer_state(body)
    size = len(body) - PEER_STATE_BYTES
    if kind == _BEAT and not size and not payload:
        return Beat(peer_state)
    if kind == _EVENTS and size == _PREVIOUS.size:
        previous, hash_ = _PREVIOUS.unpack_from(body, PEER_STATE_BYTES)
        return EntryBatch(peer_state, previous, hash_, payload)
    cursor = ByteReader(body, PEER_STATE_BYTES)
    message = _decode_rest(kind, peer_state, cursor, payload)
    cursor.end("sequence")
    if payload and not isinstance(message, Seq | EntryBatch | LockGranted):
        raise Malformed(f"sequence: type {kind} has no payload")
    return message


def _take_peer_state(body: bytes) -> tuple[int, PeerState]:
    kind, flags, tenure, history, seat, r, s, hr, hs, index, decided, hash_, events = _PEER_STATE.unpack_from(body)
    state = flags & 3
    if state > SequenceState.ERR or flags & ~(3 | _WANTS | _REMEMBERS):
        raise Malformed(f"sequence: flags {flags:#04x} are not known")
    if not seat:
        raise Malformed("sequence: whoever speaks has a seat")
    promised = Ballot(r, s)
    head = LogLength(promised if hr == r and hs == s else Ballot(hr, hs), index)
    wants, remembers = flags & _WANTS != 0, flags & _REMEMBERS != 0
    fields = (wants, remembers, promised, head, decided, hash_, events)
    return kind, PeerState(_STATES[state], history, seat, tenure, *fields)


_STATES = tuple(SequenceState)
_BEAT, _EVENTS = int(SequenceMessageType.BEAT), int(SequenceMessageType.EVENTS)


def _decode_rest(kind: int, peer_state: PeerState, cursor: ByteReader, payload: bytes) -> Message:
    match kind:
        case SequenceMessageType.DSCREQ:
            return DscReq(peer_state, _take_neighbours(cursor))
        case SequenceMessageType.DSCRES:
            return DscRes(peer_state, _take_neighbours(cursor))
        case SequenceMessageType.SEQRES:
            return SeqRes(peer_state)
        case SequenceMessageType.SEQ:
            index, hash_ = cursor.number(8, "index"), cursor.take(32, "hash")
            ballot, then = Ballot(cursor.number(8, "round"), cursor.number(8, "seat")), cursor.number(8, "next")
            return Seq(peer_state, index, hash_, ballot, then, take_members(cursor), _take_streams(payload))
        case SequenceMessageType.BEAT:
            return Beat(peer_state)
        case SequenceMessageType.EVENTS:
            return EntryBatch(peer_state, cursor.number(8, "previous"), cursor.take(32, "hash"), payload)
        case SequenceMessageType.LOCK:
            return Lock(peer_state)
        case SequenceMessageType.GRANT:
            ballot = Ballot(cursor.number(8, "round"), cursor.number(8, "seat"))
            return LockGranted(peer_state, ballot, cursor.number(8, "previous"), cursor.take(32, "hash"), payload)
        case SequenceMessageType.REFUSE:
            why = cursor.number(1, "why")
            if why not in list(Why):
                raise Malformed(f"sequence: there is no reason {why}")
            return LockRefused(peer_state, Why(why))
        case SequenceMessageType.FILL:
            return Fill(peer_state)
        case _:
            raise Malformed(f"sequence: there is no type {kind}")


def _take_neighbours(cursor: ByteReader) -> dict[int, str]:
    count = cursor.number(1, "neighbours")
    found = {cursor.number(4, "neighbour"): cursor.string("neighbour") for _ in range(count)}
    if len(found) != count or list(found) != sorted(found):
        raise Malformed("neighbours: identifiers must ascend")
    return found


def _take_streams(payload: bytes) -> dict[str, tuple[int, bytes]]:
    cursor = ByteReader(payload)
    streams: dict[str, tuple[int, bytes]] = {}
    while cursor.position < len(payload):
        name = cursor.string("stream")
        if not name or name in streams:
            raise Malformed("stream: each has a name of its own")
        streams[name] = (cursor.number(8, "number"), cursor.take(32, "hash"))
    return streams
