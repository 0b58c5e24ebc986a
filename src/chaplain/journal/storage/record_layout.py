"""Layout of the ingest messages of one cluster message in the log: packs by stream, everything else beside them.

    skeleton   what remains of each ingest message without its packs; it follows the body in the message's first record
    batch      BATCH  the packs that one ingest message contains for one stream, in order
    …

    skeleton = messages 4 | message …
    message  = opaque 1 | front size 4 | front | loose pack …

The batches are in the order of their ingest messages. The batches of one ingest message are in the order in which its
streams first appear. An entry with fewer octets than the head of a pack is loose: it stays in the skeleton, and adds no
batch. An opaque message cannot be decoded; its front is all of it.

The layout follows from the octets alone, so a node can store a message before execution decides about it.
`applied_batches` states later which octets of the batches were applied.

Decides where octets are stored, and restores the original octets. Refuses to judge packs.

Invariant: `decode_payloads(*encode_payloads(entries, payloads))` returns the same payloads, octet by octet, whatever
they contain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages import ingest
from chaplain.journal.messages.cluster import DataEntry, Reference
from chaplain.journal.model.reason import Reason
from chaplain.journal.model.results import DataVerdict, ExecutedIngest
from chaplain.segment.pack import PACK_HEAD_BYTES
from chaplain.segment.record import Kind, Record
from chaplain.segment.verdicts import AppliedBatch
from chaplain.wire.primitives import ByteReader

_FRONT = Struct(">?I")
FIRST_BATCH_PART = 1
"""The batches follow the message's first record."""


def encode_payloads(entries: Sequence[DataEntry], payloads: Sequence[bytes]) -> tuple[bytes, list[Record]]:
    """The skeleton, and the batches without offsets."""
    pieces: list[bytes | memoryview] = [len(payloads).to_bytes(4, "big")]
    batches: list[Record] = []
    for entry, payload in zip(entries, payloads, strict=True):
        _lay_out(entry.reference, payload, pieces, batches)
    return b"".join(pieces), batches


def _lay_out(reference: Reference, payload: bytes, skeleton: list[bytes | memoryview], batches: list[Record]) -> None:
    try:
        heads, position = ingest.split(payload)
    except Malformed:
        skeleton += (_FRONT.pack(True, len(payload)), payload)
        return
    view = memoryview(payload)
    skeleton += (_FRONT.pack(False, position), view[:position])
    streams = {name if size >= PACK_HEAD_BYTES else "" for name, size in heads}
    if len(streams) == 1 and "" not in streams:
        batches.append(_batch(reference, heads[0][0], view[position:]))  # the common case: nothing is copied
        return
    found: dict[str, list[memoryview]] = {}
    for stream, size in heads:
        raw = view[position : position + size]
        position += size
        if size >= PACK_HEAD_BYTES:
            found.setdefault(stream, []).append(raw)
        else:
            skeleton.append(raw)
    batches += [_batch(reference, stream, b"".join(raws)) for stream, raws in found.items()]


def _batch(reference: Reference, stream: str, body: bytes | memoryview) -> Record:
    return Record(
        Kind.BATCH,
        body,
        stream=stream,
        origin_node=reference.node,
        origin_journal=reference.journal,
        origin_index=reference.index,
    )


def decode_payloads(skeleton: bytes, batches: Sequence[Record]) -> tuple[bytes, ...]:
    """The original ingest messages."""
    cursor = ByteReader(skeleton)
    remaining = iter(batches)
    payloads = tuple([_decode_message(cursor, remaining) for _ in range(cursor.number(4, "messages"))])
    cursor.end("skeleton")
    if next(remaining, None) is not None:
        raise Malformed("records: a batch too many")
    return payloads


def _decode_message(cursor: ByteReader, batches: Iterator[Record]) -> bytes:
    opaque = cursor.number(1, "opaque")
    front = cursor.take(cursor.number(4, "front size"), "front")
    if opaque:
        return front
    cursors: dict[str, ByteReader] = {}
    pieces = [front]
    for stream, size in ingest.heads_of(front):
        if size < PACK_HEAD_BYTES:
            pieces.append(cursor.take(size, "pack"))
            continue
        if stream not in cursors:
            batch = next(batches, None)
            if batch is None or batch.kind != Kind.BATCH or batch.stream != stream:
                raise Malformed(f"records: the batch of {stream!r} is missing")
            cursors[stream] = ByteReader(bytes(batch.body))
        pieces.append(cursors[stream].take(size, "pack"))
    for stream, rest in cursors.items():
        rest.end(f"batch of {stream!r}")
    return b"".join(pieces)


def batch_layout(skeleton: bytes) -> list[tuple[int, str]]:
    """The ingest message of each batch, by its number, and the stream."""
    cursor = ByteReader(skeleton)
    found: list[tuple[int, str]] = []
    for number in range(cursor.number(4, "messages")):
        opaque = cursor.number(1, "opaque")
        front = cursor.take(cursor.number(4, "front size"), "front")
        heads = [] if opaque else ingest.heads_of(front)
        found += dict.fromkeys((number, stream) for stream, size in heads if size >= PACK_HEAD_BYTES)
        cursor.take(sum(size for _, size in heads if size < PACK_HEAD_BYTES), "loose packs")
    return found


# What was applied.


class _Batch:
    """One batch, while its packs are compared with the verdict."""

    __slots__ = ("count", "end", "first_offset", "ranges", "raws", "reference", "stored", "stream", "whole")

    def __init__(self, reference: Reference, stream: str) -> None:
        self.reference = reference
        self.stream = stream
        self.end = 0
        self.count = self.first_offset = 0
        self.whole = True
        self.ranges: list[tuple[int, int]] = []
        self.raws: list[bytes | memoryview] = []
        self.stored: memoryview | None = None
        """The batch within the ingest message, if all packs of the message are in it."""

    def skip(self, size: int) -> None:
        self.whole = False
        self.end += size

    def add(self, raw: bytes | memoryview, first_offset: int, count: int) -> None:
        start, self.end = self.end, self.end + len(raw)
        if not self.raws:
            self.first_offset = first_offset
        assert first_offset == self.first_offset + self.count, "the offsets of a batch have a gap"
        if self.ranges and self.ranges[-1][1] == start:
            self.ranges[-1] = (self.ranges[-1][0], self.end)
        else:
            self.ranges.append((start, self.end))
        self.raws.append(raw)
        self.count += count

    def applied(self, part: int) -> AppliedBatch:
        return AppliedBatch(part, self.first_offset, self.count, () if self.whole else tuple(self.ranges))

    def record(self) -> Record:
        """The batch as readers see it. It is copied only if some of its packs were not applied, or if the ingest
        message has packs of several streams.
        """
        body = self.stored if self.whole and self.stored is not None else b"".join(self.raws)
        return Record(
            Kind.BATCH,
            body,
            first_offset=self.first_offset,
            count=self.count,
            stream=self.stream,
            origin_node=self.reference.node,
            origin_journal=self.reference.journal,
            origin_index=self.reference.index,
        )


class AppliedPacks(Frozen, frozen=True):
    """The applied packs of one cluster message."""

    batches: tuple[AppliedBatch, ...]
    records: tuple[Record, ...]
    """The batches as readers see them."""


def applied_batches(messages: Sequence[ExecutedIngest]) -> AppliedPacks:
    """The applied part of the batches that `encode_payloads` makes, by the verdicts on their packs."""
    part = FIRST_BATCH_PART
    batches: list[AppliedBatch] = []
    records: list[Record] = []
    for executed in messages:
        for batch in _batches(executed):
            if batch.raws:
                batches.append(batch.applied(part))
                records.append(batch.record())
            part += 1
    return AppliedPacks(tuple(batches), tuple(records))


def _batches(executed: ExecutedIngest) -> list[_Batch]:
    """The batches of one ingest message, as `_lay_out` makes them."""
    if executed.message is None:
        return []
    found: dict[str, _Batch] = {}
    entries, packs = executed.message.entries, executed.verdict.packs
    assert executed.verdict.malformed or len(entries) == len(packs), "a pack has no verdict"
    for number, entry in enumerate(entries):
        if len(entry.raw) < PACK_HEAD_BYTES:
            continue
        batch = found.get(entry.stream)
        if batch is None:
            batch = found[entry.stream] = _Batch(executed.reference, entry.stream)
        pack = None if executed.verdict.malformed else packs[number]
        if pack is not None and pack.reason == Reason.APPLIED:
            batch.add(entry.raw, pack.base_offset, pack.messages)
        else:
            batch.skip(len(entry.raw))
    if len(found) == 1:
        [batch] = found.values()
        stored = memoryview(executed.payload)[len(executed.message.front) :]
        if batch.end == len(stored):  # the message has no loose packs
            batch.stored = stored
    return list(found.values())


def pair_with_verdicts(
    entries: Sequence[DataEntry], payloads: Sequence[bytes], given: Sequence[DataVerdict]
) -> list[ExecutedIngest]:
    """Ingest messages with the verdicts that another node stored. Raises `Malformed` if the verdicts cannot be about
    these messages.
    """
    if not len(entries) == len(payloads) == len(given):
        raise Malformed("verdict: it is about another message")
    return [_pair(*one) for one in zip(entries, payloads, given, strict=True)]


def _pair(entry: DataEntry, payload: bytes, given: DataVerdict) -> ExecutedIngest:
    try:
        message = ingest.decode(payload)
    except Malformed:
        if not given.malformed:
            raise
        return ExecutedIngest(entry.reference, payload, None, given)
    if not given.malformed and len(message.entries) != len(given.packs):
        raise Malformed("verdict: the message has another number of packs")
    return ExecutedIngest(entry.reference, payload, message, given)
