"""The verdict that is stored next to a message for readers of files: what execution decided about each entry.

    verdict = protocol 1 | entries 3 | entry verdict … | streams 3 | stream verdict …

Decides how verdicts are written down, not what they are. Byte tables and hex example: docs/protocol/journal-
requests.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chaplain.errors import Malformed
from chaplain.journal.cluster_message import DATA_ENTRY, PROTOCOL
from chaplain.journal.config_message import ACL_BYTES
from chaplain.journal.decided import (
    ConfigVerdict,
    DataVerdict,
    EntryVerdict,
    Executed,
    PackVerdict,
    StreamVerdict,
    Verdict,
)
from chaplain.journal.facts import Lane, Moment, Remembered
from chaplain.journal.log_records import body_of, verdict_of
from chaplain.journal.reason import Reason as Reason  # noqa: PLC0414  named here for those who read verdicts
from chaplain.journal.request import Heading
from chaplain.journal.state import Draft
from chaplain.segment.layout import HASH_BYTES
from chaplain.segment.record import Kind, Record
from chaplain.wire.primitives import Cursor, put_number, put_string

UNCHECKED = (Reason.UNKNOWN_LANE, Reason.REMOVED, Reason.COMPROMISED)
"""Decided without looking at the signature, or after it held: they say nothing about it."""
FALSE = (Reason.MALFORMED, Reason.SIGNATURE)
"""Decided because the pack is not whole or not signed by whom it should be."""


def encode(verdict: Verdict) -> bytes:
    pieces = [put_number(PROTOCOL, 1), put_number(len(verdict.entries), 3)]
    for entry in verdict.entries:
        pieces.append(_encode_data(entry) if isinstance(entry, DataVerdict) else _encode_config(entry))
    pieces.append(put_number(len(verdict.streams), 3))
    for stream in verdict.streams:
        pieces += (put_string(stream.stream), put_number(stream.first_offset, 8), put_number(stream.count, 8))
        pieces.append(stream.chain)
    return b"".join(pieces)


def _encode_data(data: DataVerdict) -> bytes:
    head = put_number(DATA_ENTRY, 1) + put_number(Reason.MALFORMED if data.malformed else 0, 1)
    return b"".join((head, put_number(len(data.packs), 4), *map(_encode_pack, data.packs)))


def _encode_pack(pack: PackVerdict) -> bytes:
    numbers = ((pack.reason, 1), (pack.client_id, 4), (pack.first_id, 4), (pack.requests, 4), (pack.messages, 4))
    fields = b"".join(put_number(value, size) for value, size in numbers)
    return fields + put_number(pack.base_offset, 8) + put_string(pack.stream)


def _encode_config(config: ConfigVerdict) -> bytes:
    head = put_number(config.entry_type, 1) + put_number(config.reason, 1)
    return head + put_number(config.client_id, 4) + config.acl + put_number(config.last_id, 4)


def decode(data: bytes) -> Verdict:
    cursor = Cursor(data)
    if cursor.number(1, "protocol") != PROTOCOL:
        raise Malformed("verdict: another protocol")
    entries = tuple(_entry(cursor) for _ in range(cursor.number(3, "entries")))
    streams = tuple(_stream(cursor) for _ in range(cursor.number(3, "streams")))
    cursor.end("verdict")
    return Verdict(entries, streams)


def _entry(cursor: Cursor) -> EntryVerdict:
    entry_type, reason = cursor.number(1, "entry type"), take_reason(cursor)
    if entry_type == DATA_ENTRY:
        if reason not in (Reason.APPLIED, Reason.MALFORMED):
            raise Malformed("verdict: a data entry is malformed or not")
        packs = tuple(_pack(cursor) for _ in range(cursor.number(4, "packs")))
        return DataVerdict(packs, reason == Reason.MALFORMED)
    client_id, acl = cursor.number(4, "client id"), cursor.take(ACL_BYTES, "ACL id")
    return ConfigVerdict(entry_type, reason, client_id, acl, cursor.number(4, "last id"))


def _pack(cursor: Cursor) -> PackVerdict:
    reason, client_id, first_id = take_reason(cursor), cursor.number(4, "client id"), cursor.number(4, "first id")
    requests, messages = cursor.number(4, "requests"), cursor.number(4, "messages")
    base_offset, stream = cursor.number(8, "base offset"), cursor.string("stream")
    return PackVerdict(client_id, first_id, requests, messages, stream, reason, base_offset)


def _stream(cursor: Cursor) -> StreamVerdict:
    name, first_offset = cursor.string("stream"), cursor.number(8, "first offset")
    return StreamVerdict(name, first_offset, cursor.number(8, "count"), cursor.take(HASH_BYTES, "chain"))


def take_reason(cursor: Cursor) -> Reason:
    number = cursor.number(1, "reason")
    try:
        return Reason(number)
    except ValueError:
        raise Malformed(f"verdict: reason {number} is not known") from None


# Of what is being executed.


def void(
    heading: Heading, stream: str, reason: Reason, lane: Lane | None = None, original: Remembered | None = None
) -> PackVerdict:
    """A pack that gets nothing, and why."""
    return PackVerdict(
        heading.client_id,
        heading.first_id,
        heading.requests,
        heading.messages,
        stream,
        reason,
        original=original,
        expected_id=lane.last_id + 1 if lane is not None else 0,
    )


def streams_of(draft: Draft) -> Iterator[StreamVerdict]:
    for stream, tail in draft.tails().items():
        writing = draft.writings[stream]
        yield StreamVerdict(stream, writing.first_offset, writing.count, tail.chain)


def read_executed(records: Sequence[Record]) -> Executed:
    """What was made of an agreed message, again, from its records in the log."""
    body, _ = body_of(records[0])
    moment = Moment(body.index, body.regime, body.timestamp_ns, records[0].chain_hash)
    batches = tuple(record for record in records if record.kind == Kind.BATCH)
    return Executed(moment, decode(verdict_of(records[0])), batches, clients_changed=False)
