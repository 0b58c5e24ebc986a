"""How the ingest messages of one cluster message lie in the log: what readers want by stream, the rest beside it.

    skeleton   META   what is left of each ingest message when the packs that were applied are taken out
    batch      BATCH  the packs that one ingest message brought for one stream and that were applied, in order
    …

    skeleton = messages 4 | message …
    message  = malformed 1 | front size 4 | front | packs 4 | reason 1 … | void pack …

The batches follow in the order of their messages, and within one in the order in which its streams first appear.

Decides where octets lie, and puts them together again exactly as they came. Refuses to judge.

Invariant: `unfile(file(messages)) == messages`, octet by octet, whatever they are.
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
    """The skeleton and the batches; nothing at all for a message without data."""
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
    """Add to the skeleton what is no batch's; gives what is, by stream."""
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
    """Ingest messages that were judged before, and their verdicts, if the ones can be about the others."""
    if not len(entries) == len(payloads) == len(given):
        raise Malformed("verdict: on another message than this")
    return [_pair(*one) for one in zip(entries, payloads, given, strict=True)]


def _pair(entry: DataEntry, payload: bytes, given: DataVerdict) -> ExecutedIngest:
    if given.malformed:
        return ExecutedIngest(entry.reference, payload, None, given)
    message = ingest.decode(payload)
    if len(message.entries) != len(given.packs):
        raise Malformed("verdict: packs differ in number")
    return ExecutedIngest(entry.reference, payload, message, given)


def decode_records(parts: Sequence[Record]) -> list[DecodedIngest]:
    """The ingest messages again."""
    if not parts:
        return []
    if parts[0].kind != Kind.META:
        raise Malformed("filed: the skeleton is missing")
    cursor = Cursor(bytes(parts[0].body))
    batches = iter(parts[1:])
    messages = [_decode_message(cursor, batches) for _ in range(cursor.number(4, "messages"))]
    cursor.end("skeleton")
    if next(batches, None) is not None:
        raise Malformed("filed: a batch too many")
    return messages


def _decode_message(cursor: Cursor, batches: Iterator[Record]) -> DecodedIngest:
    malformed = cursor.number(1, "malformed")
    front = cursor.take(cursor.number(4, "front size"), "front")
    reasons = tuple(take_reason(cursor) for _ in range(cursor.number(4, "packs")))
    if malformed:
        return DecodedIngest(front, reasons)
    heads = ingest.heads_of(front)
    if len(heads) != len(reasons):
        raise Malformed("filed: packs and reasons differ in number")
    executed = _opened([stream for (stream, _), reason in zip(heads, reasons, strict=True) if not reason], batches)
    pieces = [front]
    for (stream, size), reason in zip(heads, reasons, strict=True):
        source = executed[stream] if reason == Reason.APPLIED else cursor
        pieces.append(source.take(size, "pack"))
    return DecodedIngest(b"".join(pieces), reasons)


def _opened(streams: list[str], batches: Iterator[Record]) -> dict[str, Cursor]:
    """The next batches, which must be those of these streams."""
    opened: dict[str, Cursor] = {}
    for stream in dict.fromkeys(streams):
        batch = next(batches, None)
        if batch is None or batch.kind != Kind.BATCH or batch.stream != stream:
            raise Malformed(f"filed: the batch of {stream!r} is missing")
        opened[stream] = Cursor(bytes(batch.body))
    return opened
