"""Layout of the ingest messages of one cluster message in the log: applied packs by stream, everything else beside
them.

    skeleton   META   what remains of each ingest message without the packs that were applied
    batch      BATCH  the applied packs that one ingest message contains for one stream, in order
    …

    skeleton = messages 4 | message …
    message  = malformed 1 | front size 4 | front | packs 4 | reason 1 … | refused pack …

The batches follow the skeleton in the order of their ingest messages. The batches of one message are in the order in
which its streams first appear.

Decides where octets are stored, and restores the original octets. Refuses to judge packs.

Invariant: `decode_records(encode_records(messages))` returns the same messages, octet by octet, whatever they contain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct

from chaplain.errors import Malformed
from chaplain.journal.messages import ingest
from chaplain.journal.messages.cluster import DataEntry, Reference
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.model.results import DataVerdict, DecodedIngest, ExecutedIngest, PackVerdict
from chaplain.journal.storage.verdict import Reason, take_reason
from chaplain.segment.record import Kind, Record
from chaplain.wire.primitives import Cursor

_FRONT = Struct(">?I")


def encode_records(messages: Sequence[ExecutedIngest]) -> tuple[Record, ...]:
    """The skeleton and the batches; no records for a message without data."""
    if not messages:
        return ()
    pieces: list[bytes | memoryview] = [len(messages).to_bytes(4, "big")]
    batches: list[Record] = []
    for executed in messages:
        applied = _lay_out(executed, pieces)
        batches += [_batch(executed.reference, stream, group) for stream, group in applied.items()]
    return (Record(Kind.META, b"".join(pieces)), *batches)


def _lay_out(
    executed: ExecutedIngest, skeleton: list[bytes | memoryview]
) -> dict[str, list[tuple[IngestEntry, PackVerdict]]]:
    """Append to the skeleton everything that belongs to no batch. Returns the applied packs by stream."""
    packs, message = executed.verdict.packs, executed.message
    front = executed.payload if message is None else message.front
    skeleton += (_FRONT.pack(message is None, len(front)), front, len(packs).to_bytes(4, "big"))
    skeleton.append(bytes([pack.reason for pack in packs]))
    applied: dict[str, list[tuple[IngestEntry, PackVerdict]]] = {}
    for entry, pack in zip(() if message is None else message.entries, packs, strict=True):
        if pack.reason == Reason.APPLIED:
            applied.setdefault(entry.stream, []).append((entry, pack))
        else:
            skeleton.append(entry.raw)
    return applied


def _batch(reference: Reference, stream: str, group: list[tuple[IngestEntry, PackVerdict]]) -> Record:
    return Record(
        Kind.BATCH,
        b"".join([entry.raw for entry, _ in group]),
        first_offset=group[0][1].base_offset,
        count=sum([pack.messages for _, pack in group]),
        stream=stream,
        origin_node=reference.node,
        origin_journal=reference.journal,
        origin_index=reference.index,
    )


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
    if given.malformed:
        return ExecutedIngest(entry.reference, payload, None, given)
    message = ingest.decode(payload)
    if len(message.entries) != len(given.packs):
        raise Malformed("verdict: the message has another number of packs")
    return ExecutedIngest(entry.reference, payload, message, given)


def decode_records(parts: Sequence[Record]) -> list[DecodedIngest]:
    """The original ingest messages."""
    if not parts:
        return []
    if parts[0].kind != Kind.META:
        raise Malformed("records: the skeleton is missing")
    cursor = Cursor(bytes(parts[0].body))
    batches = iter(parts[1:])
    messages = [_decode_message(cursor, batches) for _ in range(cursor.number(4, "messages"))]
    cursor.end("skeleton")
    if next(batches, None) is not None:
        raise Malformed("records: a batch too many")
    return messages


def _decode_message(cursor: Cursor, batches: Iterator[Record]) -> DecodedIngest:
    malformed = cursor.number(1, "malformed")
    front = cursor.take(cursor.number(4, "front size"), "front")
    reasons = tuple(take_reason(cursor) for _ in range(cursor.number(4, "packs")))
    if malformed:
        return DecodedIngest(front, reasons)
    heads = ingest.heads_of(front)
    if len(heads) != len(reasons):
        raise Malformed("records: packs and reasons differ in number")
    applied = [stream for (stream, _), reason in zip(heads, reasons, strict=True) if reason == Reason.APPLIED]
    cursors = _batch_cursors(applied, batches)
    pieces = [front]
    for (stream, size), reason in zip(heads, reasons, strict=True):
        source = cursors[stream] if reason == Reason.APPLIED else cursor
        pieces.append(source.take(size, "pack"))
    return DecodedIngest(b"".join(pieces), reasons)


def _batch_cursors(streams: list[str], batches: Iterator[Record]) -> dict[str, Cursor]:
    """The next batches, which must be those of these streams."""
    cursors: dict[str, Cursor] = {}
    for stream in dict.fromkeys(streams):
        batch = next(batches, None)
        if batch is None or batch.kind != Kind.BATCH or batch.stream != stream:
            raise Malformed(f"records: the batch of {stream!r} is missing")
        cursors[stream] = Cursor(bytes(batch.body))
    return cursors
