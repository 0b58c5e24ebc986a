"""The verdict on each message: what execution decided about each entry, for readers of log files.

It is stored in the VERDICT record of the message, behind the list of applied batches (`segment.verdicts`).

    verdict = protocol 1 | previous 32 | entries 3 | entry verdict … | streams 3 | stream verdict …

Decides how verdicts are encoded, but not their content. Byte tables and hex example: docs/protocol/journal-requests.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from chaplain.errors import Malformed
from chaplain.journal.messages.cluster import DATA_ENTRY
from chaplain.journal.messages.config import ACL_BYTES
from chaplain.journal.messages.write_request import Heading
from chaplain.journal.model.reason import Reason as Reason  # noqa: PLC0414  exported for readers of verdicts
from chaplain.journal.model.records import AppliedRequest, LaneState, LogPosition
from chaplain.journal.model.results import (
    AppliedMessage,
    ConfigVerdict,
    DataVerdict,
    EntryVerdict,
    ExecutionVerdict,
    PackVerdict,
    StreamVerdict,
)
from chaplain.journal.model.verdict_chain import VERDICT_PROTOCOL, put_head
from chaplain.journal.storage.records import body_of, verdict_of
from chaplain.segment.layout import HASH_BYTES
from chaplain.segment.record import Kind, Record
from chaplain.wire.primitives import ByteReader, put_number, put_string

UNCHECKED = (Reason.UNKNOWN_LANE, Reason.REMOVED, Reason.COMPROMISED)
"""Reasons that say nothing about the signature: execution found them before it verified the signature, or after it was
valid.
"""
INVALID = (Reason.MALFORMED, Reason.SIGNATURE)
"""The pack is damaged, or its signature is not valid."""


_COUNT = struct.Struct(">BH")
_DATA = struct.Struct(">BBI")
_PACK = struct.Struct(">BIIIIQ")
_STREAM = struct.Struct(">QQ")


def encode(verdict: ExecutionVerdict) -> bytes:
    pieces = [put_head(verdict.previous), _put_count(len(verdict.entries))]
    try:
        for entry in verdict.entries:
            if isinstance(entry, DataVerdict):
                pieces.append(_DATA.pack(DATA_ENTRY, Reason.MALFORMED if entry.malformed else 0, len(entry.packs)))
                for pack in entry.packs:
                    numbers = (pack.reason, pack.client_id, pack.first_id, pack.requests, pack.messages)
                    pieces += (_PACK.pack(*numbers, pack.base_offset), put_string(pack.stream))
            else:
                pieces.append(_encode_config(entry))
        pieces.append(_put_count(len(verdict.streams)))
        for stream in verdict.streams:
            pieces += (put_string(stream.stream), _STREAM.pack(stream.first_offset, stream.count), stream.chain)
    except struct.error as error:
        raise ValueError(f"verdict: {error}") from None
    return b"".join(pieces)


def _put_count(count: int) -> bytes:
    return _COUNT.pack(count >> 16, count & 0xFFFF)


def _encode_config(config: ConfigVerdict) -> bytes:
    head = put_number(config.entry_type, 1) + put_number(config.reason, 1)
    return head + put_number(config.client_id, 4) + config.acl + put_number(config.last_id, 4)


def decode(data: bytes) -> ExecutionVerdict:
    cursor = ByteReader(data)
    if cursor.number(1, "protocol") != VERDICT_PROTOCOL:
        raise Malformed(f"verdict: this program reads and writes protocol {VERDICT_PROTOCOL}")
    previous = cursor.take(HASH_BYTES, "previous")
    entries = tuple(_entry(cursor) for _ in range(cursor.number(3, "entries")))
    streams = tuple(_stream(cursor) for _ in range(cursor.number(3, "streams")))
    cursor.end("verdict")
    return ExecutionVerdict(entries, streams, previous)


def _entry(cursor: ByteReader) -> EntryVerdict:
    entry_type, reason = cursor.number(1, "entry type"), take_reason(cursor)
    if entry_type == DATA_ENTRY:
        if reason not in (Reason.APPLIED, Reason.MALFORMED):
            raise Malformed("verdict: a data entry is malformed or not")
        packs = tuple(_pack(cursor) for _ in range(cursor.number(4, "packs")))
        return DataVerdict(packs, reason == Reason.MALFORMED)
    client_id, acl = cursor.number(4, "client id"), cursor.take(ACL_BYTES, "ACL id")
    return ConfigVerdict(entry_type, reason, client_id, acl, cursor.number(4, "last id"))


def _pack(cursor: ByteReader) -> PackVerdict:
    reason, client_id, first_id = take_reason(cursor), cursor.number(4, "client id"), cursor.number(4, "first id")
    requests, messages = cursor.number(4, "requests"), cursor.number(4, "messages")
    base_offset, stream = cursor.number(8, "base offset"), cursor.string("stream")
    return PackVerdict(client_id, first_id, requests, messages, stream, reason, base_offset)


def _stream(cursor: ByteReader) -> StreamVerdict:
    name, first_offset = cursor.string("stream"), cursor.number(8, "first offset")
    return StreamVerdict(name, first_offset, cursor.number(8, "count"), cursor.take(HASH_BYTES, "chain"))


def take_reason(cursor: ByteReader) -> Reason:
    number = cursor.number(1, "reason")
    try:
        return Reason(number)
    except ValueError:
        raise Malformed(f"verdict: reason {number} is not known") from None


# Verdicts that execution creates.


def refused_pack(
    heading: Heading, stream: str, reason: Reason, lane: LaneState | None = None, original: AppliedRequest | None = None
) -> PackVerdict:
    """The verdict on a pack that is not applied, with the reason."""
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


def accepted_pack(heading: Heading, stream: str, reason: Reason, base_offset: int, expected_id: int = 0) -> PackVerdict:
    """The verdict on a pack that is applied, staged, or committed as a transaction."""
    ids = (heading.client_id, heading.first_id, heading.requests, heading.messages)
    return PackVerdict(*ids, stream, reason, base_offset, None, expected_id)


def read_applied(records: Sequence[Record]) -> AppliedMessage:
    """The result of an agreed message, decoded from its records in the log, joined with its verdict."""
    if records[-1].kind != Kind.VERDICT:
        raise Malformed("log: the message has no verdict")
    body, _ = body_of(records[0])
    position = LogPosition(body.index, body.regime, body.timestamp_ns, records[0].chain_hash)
    batches = tuple(record for record in records if record.kind == Kind.BATCH)
    return AppliedMessage(position, decode(verdict_of(records[-1])), batches, clients_changed=False)
