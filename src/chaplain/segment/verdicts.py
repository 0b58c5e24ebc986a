"""VERDICT records: what the state machine of a log decided about a message, for readers of its batches.

A node writes a message when it receives it, before it knows which of its packs will be applied and at which offsets. So
the BATCH records of such a message have no offsets. The last part of the message is a VERDICT record, which the node
writes after the message was agreed and executed. It says which octets of each batch were applied, and their offsets.

    body = batches 4 | batch … | the verdict of the layer
    batch = part 4 | ranges 4 | messages 4 | zeros 4 | first offset 8 | (start 4 | end 4) …

A batch without ranges was applied whole. A batch that is not listed was not applied at all, and readers do not show it.
If the message has one batch and it was applied whole, the head of the VERDICT record has its first offset and count:
a reader of heads does not need the body.

Decides how readers join batches with verdicts. Does not interpret the layer's verdict.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.segment.layout import NO_OFFSET
from chaplain.segment.record import Kind, Record

_COUNT = struct.Struct("<I")
_BATCH = struct.Struct("<IIIIQ")
_RANGE = struct.Struct("<II")
ONLY_BATCH_PARTS = 3
"""The parts of a message with one batch: the message itself, the batch and the verdict."""


class AppliedBatch(Frozen, frozen=True):
    """The applied part of one BATCH record."""

    part: int
    first_offset: int
    count: int
    """Messages that were applied. Their offsets are consecutive, even if other octets lie between their packs."""
    ranges: tuple[tuple[int, int], ...] = ()
    """The octets of the body that were applied, as start and end; empty: all of them."""


def encode_verdict(batches: Sequence[AppliedBatch], verdict: bytes) -> bytes:
    """The body of a VERDICT record."""
    pieces = [_COUNT.pack(len(batches))]
    for batch in batches:
        pieces.append(_BATCH.pack(batch.part, len(batch.ranges), batch.count, 0, batch.first_offset))
        for one in batch.ranges:
            pieces.append(_RANGE.pack(*one))
    pieces.append(verdict)
    return b"".join(pieces)


def decode_verdict(body: bytes | memoryview) -> tuple[tuple[AppliedBatch, ...], bytes]:
    """The batches, and the verdict of the layer."""
    data = bytes(body)
    batches: list[AppliedBatch] = []
    try:
        (count,) = _COUNT.unpack_from(data)
        at = _COUNT.size
        for _ in range(count):
            part, ranges, messages, zeros, first_offset = _BATCH.unpack_from(data, at)
            at += _BATCH.size
            end = at + ranges * _RANGE.size
            if zeros or not part or end > len(data):
                raise Malformed("verdict: an applied batch is not one")
            batches.append(
                AppliedBatch(part, first_offset, messages, tuple(_RANGE.iter_unpack(data[at:end])) if ranges else ())
            )
            at = end
    except struct.error:
        raise Malformed("verdict: it ends within its batches") from None
    return tuple(batches), data[at:]


def batches_of(verdict: Record) -> tuple[AppliedBatch, ...]:
    """The applied batches of a VERDICT record."""
    known = only_batch(verdict)
    return decode_verdict(verdict.body)[0] if known is None else (known,)


def only_batch(head: Record) -> AppliedBatch | None:
    """The one batch of the message if the head of the VERDICT record describes it; None if only the body does."""
    if head.first_offset == NO_OFFSET:
        return None
    return AppliedBatch(1, head.first_offset, head.count)


def applied_part(batch: Record, applied: AppliedBatch) -> Record:
    """The BATCH record as readers see it: with its offsets, and without the octets that were not applied."""
    body = batch.body
    if applied.ranges:
        if any(not start <= end <= len(body) for start, end in applied.ranges):
            raise Malformed("verdict: it names octets that the batch does not have")
        view = memoryview(body)
        body = b"".join([view[start:end] for start, end in applied.ranges])
    return msgspec.structs.replace(batch, body=body, first_offset=applied.first_offset, count=applied.count)


def join_parts(parts: Sequence[Record]) -> list[Record]:
    """The records of one message as readers see them: batches that were applied, with offsets, and the other records.

    `parts` are all parts of the message, in order. A message without a VERDICT record stays as it is.
    """
    if not parts or parts[-1].kind != Kind.VERDICT:
        return list(parts)
    applied = {batch.part: batch for batch in batches_of(parts[-1])}
    joined: list[Record] = []
    for record in parts:
        if record.kind != Kind.BATCH:
            joined.append(record)
        elif (batch := applied.pop(record.part, None)) is not None:
            joined.append(applied_part(record, batch))
    if applied:
        raise Malformed("verdict: it names a batch that the message does not have")
    return joined


class Joiner:
    """Joins batches with verdicts in a stream of visible records. The parts of a message follow one another."""

    def __init__(self) -> None:
        self._parts: list[Record] = []

    def feed(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            if record.parts == 1:
                yield record
                continue
            if record.part == 0:
                self._parts = []
            self._parts.append(record)
            if record.part + 1 == record.parts:
                parts, self._parts = self._parts, []
                yield from join_parts(parts)
