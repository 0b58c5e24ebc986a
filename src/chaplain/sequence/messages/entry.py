"""Entries of the log. Byte tables: docs/protocol/sequence.md.

    kind 1 | ballot: round 8, seat 8 | author 4 | next 8 | n 4 | body n

An entry's hash covers its predecessor's hash, its index and all its bytes. So two logs with the same hash at an index
are equal up to that index. `next` names the seat that may write the following entry under the same ballot: this is the
lock. Because it is part of the entry, every index has exactly one lock holder.

Decoders validate every length before they use it, and raise only `Malformed`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.wire.primitives import ByteReader, put_number, put_string

_HEAD = struct.Struct(">BQQIQI")
_COUNT = struct.Struct(">I")
HEAD_BYTES = _HEAD.size
MEMBERS_MAX = 255
NO_HASH = bytes(32)
_NAMES_MAX = 1024
"""Size of the caches of encoded and decoded pairs of stream and publisher."""


class EntryKind(IntEnum):
    """FOUND founds a history, CHANGE changes the work set, EVENTS contains events, PASS only passes the lock."""

    FOUND = 1
    CHANGE = 2
    EVENTS = 3
    PASS = 4


class Ballot(NamedTuple):
    """The right to write from some entry on. Ballots are unique, because seats are."""

    round: int
    seat: int


NO_BALLOT = Ballot(0, 0)


class SeatedMember(NamedTuple):
    """A member of a work set: a node, and the random seat that identifies its memory. Seat 0 is vacant."""

    identifier: int
    seat: int


class EventRun(Frozen, frozen=True):
    """Consecutive events of one publisher for one stream, with their place in the encoded entry."""

    stream: str
    publisher: str
    lengths: tuple[int, ...]
    data: bytes
    named: int
    """Where the publisher's name begins in `data`. The hash covers it, the lengths and the values."""
    at: int
    """Where the first value begins in `data`."""
    end: int

    def values(self, skip: int = 0) -> Iterator[bytes]:
        start = self.at + sum(self.lengths[:skip])
        for length in self.lengths[skip:]:
            yield self.data[start : start + length]
            start += length


class SequenceEntry(Frozen, frozen=True):
    kind: EntryKind
    ballot: Ballot
    author: int
    """Identifier of the node that wrote it."""
    next: int
    """The seat that writes the following entry under this ballot."""
    encoded: bytes
    """The whole entry, as hashed and sent."""
    runs: tuple[EventRun, ...] = ()
    """The runs of an EVENTS entry."""

    @property
    def body(self) -> bytes:
        return self.encoded[HEAD_BYTES:]


def make_entry(kind: EntryKind, ballot: Ballot, author: int, then: int, body: bytes = b"") -> SequenceEntry:
    encoded = _HEAD.pack(kind, *ballot, author, then, len(body)) + body
    return _finish(kind, ballot, author, then, encoded)


class WorkSetChange(Frozen, frozen=True):
    member: SeatedMember
    joins: bool
    """True: the member counts from the next entry on. False: it no longer does."""


def entry_hash(previous: bytes, index: int, encoded: bytes) -> bytes:
    return sha256(b"".join((previous, index.to_bytes(8, "big"), encoded))).digest()


def decode_entries(data: bytes) -> list[SequenceEntry]:
    entries: list[SequenceEntry] = []
    position = 0
    while position < len(data):
        if len(data) - position < HEAD_BYTES:
            raise Malformed(f"entry: a head has {HEAD_BYTES} octets, {len(data) - position} left")
        kind, round_, seat, author, then, size = _HEAD.unpack_from(data, position)
        end = position + HEAD_BYTES + size
        if end > len(data):
            raise Malformed(f"entry: body of {size} octets, {len(data) - position - HEAD_BYTES} left")
        if kind not in _KINDS:
            raise Malformed(f"entry: there is no kind {kind}")
        entries.append(_finish(_KINDS[kind], Ballot(round_, seat), author, then, data[position:end]))
        position = end
    return entries


_KINDS = {kind.value: kind for kind in EntryKind}


def _finish(kind: EntryKind, ballot: Ballot, author: int, then: int, encoded: bytes) -> SequenceEntry:
    """Validate the body, so that every entry can be applied."""
    if ballot.round == 0 or ballot.seat == 0:
        raise Malformed("entry: a ballot has a round and a seat")
    runs: tuple[EventRun, ...] = ()
    match kind:
        case EntryKind.EVENTS:
            runs = _take_runs(encoded)
        case EntryKind.FOUND:
            decode_members(encoded[HEAD_BYTES:])
        case EntryKind.CHANGE:
            decode_change(encoded[HEAD_BYTES:])
        case EntryKind.PASS:
            if len(encoded) > HEAD_BYTES:
                raise Malformed("entry: PASS has no body")
    return SequenceEntry(kind, ballot, author, then, encoded, runs)


# Bodies.


def encode_members(members: Iterable[SeatedMember]) -> bytes:
    listed = sorted(members)
    assert len(listed) <= MEMBERS_MAX
    return bytes((len(listed),)) + b"".join(
        put_number(identifier, 4) + put_number(seat, 8) for identifier, seat in listed
    )


def take_members(cursor: ByteReader) -> tuple[SeatedMember, ...]:
    count = cursor.number(1, "work set")
    members = tuple(SeatedMember(cursor.number(4, "work set"), cursor.number(8, "work set")) for _ in range(count))
    if not members or any(one.identifier >= other.identifier for one, other in pairwise(members)):
        raise Malformed("work set: identifiers must ascend, and there must be one")
    return members


def decode_members(body: bytes) -> tuple[SeatedMember, ...]:
    cursor = ByteReader(body)
    members = take_members(cursor)
    cursor.end("work set")
    return members


def encode_change(change: WorkSetChange) -> bytes:
    return struct.pack(">BIQ", change.joins, *change.member)


def decode_change(body: bytes) -> WorkSetChange:
    cursor = ByteReader(body)
    joins, member = cursor.number(1, "change"), SeatedMember(cursor.number(4, "change"), cursor.number(8, "change"))
    cursor.end("change")
    if joins > 1 or (joins and not member.seat):
        raise Malformed("change: a member with a seat joins (1), or one leaves (0)")
    return WorkSetChange(member, bool(joins))


def encode_run(stream: str, publisher: str, values: Sequence[bytes]) -> bytes:
    count = len(values)
    lengths = struct.pack(f">{count + 1}I", count, *map(len, values))
    return b"".join((_put_names(stream, publisher), lengths, *values))


@lru_cache(_NAMES_MAX)
def _put_names(stream: str, publisher: str) -> bytes:
    return put_string(stream) + put_string(publisher)


@lru_cache(_NAMES_MAX)
def _take_names(octets: bytes) -> tuple[str, str]:
    """Decode two names; cached, because the same pairs recur."""
    cursor = ByteReader(octets)
    stream, publisher = cursor.string("stream"), cursor.string("publisher")
    if not stream:
        raise Malformed("run: a stream has a name")
    return stream, publisher


def _take_runs(encoded: bytes) -> tuple[EventRun, ...]:
    runs: list[EventRun] = []
    begin, size = HEAD_BYTES, len(encoded)
    while begin < size:
        named = begin + 1 + encoded[begin]
        counted = named + 1 + encoded[named] if named < size else size
        if counted + _COUNT.size > size:
            raise Malformed(f"run: two names and a count wanted, {size - begin} octets left")
        stream, publisher = _take_names(encoded[begin:counted])
        (count,) = _COUNT.unpack_from(encoded, counted)
        at = counted + 4 + 4 * count
        if not count or at > size:
            raise Malformed(f"run: it has an event; lengths of {count}, {size - counted - 4} octets left")
        lengths = struct.unpack_from(f">{count}I", encoded, counted + 4)
        end = at + sum(lengths)
        if end > size:
            raise Malformed(f"run: values of {end - at} octets, {size - at} left")
        runs.append(EventRun(stream, publisher, lengths, encoded, named, at, end))
        begin = end
    if not runs:
        raise Malformed("entry: EVENTS has at least one run")
    return tuple(runs)


# The chain of one stream.


def run_hash(previous: bytes, first: int, run: EventRun) -> bytes:
    """The stream's hash after a run whose first event has this number."""
    lengths_at = run.at - 4 * len(run.lengths)
    publisher = run.data[run.named : lengths_at - 4]
    hashed = sha256(b"".join((previous, first.to_bytes(8, "big"), publisher)))
    hashed.update(memoryview(run.data)[lengths_at : run.end])
    return hashed.digest()


def values_hash(previous: bytes, first: int, publisher: str, values: Sequence[bytes]) -> bytes:
    """The same, for a reader that has the values."""
    lengths = struct.pack(f">{len(values)}I", *map(len, values))
    parts = (previous, first.to_bytes(8, "big"), put_string(publisher), lengths, *values)
    return sha256(b"".join(parts)).digest()


def event_hashes(previous: bytes, first: int, values: Iterable[bytes]) -> Iterator[bytes]:
    """Each event's own hash, linked to the one before it; the first is linked to the stream's hash before its run."""
    for number, value in enumerate(values, first):
        previous = sha256(b"".join((previous, put_number(number, 8), value))).digest()
        yield previous
