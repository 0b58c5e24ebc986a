"""Verifies the batches of packs of one message against the message and its verdict.

This module decides whether packs are intact, have the offsets that the verdict assigned and, on request, the signature
of their writer. It reports causes rather than consequences. It does not know the messages before.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import NamedTuple

import msgspec
import numpy as np

from chaplain.errors import Malformed
from chaplain.journal.execution.two_phase import STAGED
from chaplain.journal.messages.cluster import Body, Reference
from chaplain.journal.messages.ingest import digest_of as payload_digest
from chaplain.journal.messages.signing import SignatureType
from chaplain.journal.messages.write_request import REQUEST_LABEL, signed_octets
from chaplain.journal.model.results import DataVerdict, ExecutionVerdict
from chaplain.journal.storage.record_layout import FIRST_BATCH_PART, batch_layout, decode_payloads
from chaplain.journal.storage.verdict import Reason
from chaplain.link.auth.identity import verify
from chaplain.segment.layout import Octets, octets
from chaplain.segment.pack import (
    NOTHING,
    PACK_HEAD_BYTES,
    PackHead,
    column_count,
    digest_of,
    heads_of,
    stated_digest,
)
from chaplain.segment.record import Kind, Record
from chaplain.segment.verdicts import AppliedBatch, applied_part, batches_of
from chaplain.verification.chain_selection import SelectedMessage
from chaplain.verification.proof_segments import LOG, ProofSegment
from chaplain.verification.tree_check import LeafChecker
from chaplain.verification.violations import Break

_SIZE = struct.Struct("<I")
MESSAGES_NAMED_MAX = 64
"""Up to this number, damaged messages of a record are reported one by one; beyond it, whole packs are reported."""


class Keys(NamedTuple):
    """The signature type and the key of each lane's owner."""

    cluster: str
    lanes: Mapping[int, tuple[int, bytes]]


class Damage(NamedTuple):
    """A part that cannot be read. `body` contains its octets if the header is valid and only they are damaged."""

    reason: str
    head: Record | None = None
    body: bytes = b""
    file: str = ""
    peer_body: bytes = b""
    """The body of another node's copy, if there is one."""


MessagePart = Record | Damage


def damage_break(stream: str, offset: int, damage: Damage, last: int = -1) -> Break:
    expected = "a record that can be read"
    if last > offset:
        expected = f"a record that can be read, with offsets {offset} to {last}"
    return Break(stream, offset, "damaged", expected, damage.reason, file=damage.file, last=last)


class ExpectedBatch(NamedTuple):
    """A batch that should exist according to the verdict."""

    stream: str
    first_offset: int
    rows: int
    reference: Reference


class Batches:
    """Verifies the batches of one message. Counts and breaks go to the proof segment."""

    def __init__(
        self,
        message: SelectedMessage,
        parts: Sequence[MessagePart],
        segment: ProofSegment,
        keys: Keys | None,
        leaves: LeafChecker | None = None,
    ) -> None:
        self._message = message
        self._parts = parts
        self._segment = segment
        self._keys = keys
        self._leaves = leaves
        self.found: list[Record] = []
        """The batches, with stream, offset and count as the message states them."""
        self.digests: dict[str, list[bytes] | None] = {}
        """The digests of each stream's packs; None if one is unknown or wrong."""
        self.ids: list[tuple[int, int, int, str, int]] = []
        """Client, first request id, number of requests, stream and offset of each pack, except packs that were staged
        by an earlier message."""

    def check(self, body: Body | None, verdict: ExecutionVerdict | None) -> bool:
        """Verify all batches. Return whether everything is present and correct."""
        before = len(self._segment.breaks)
        applied = self._applied()
        shown = self._as_shown(applied)
        planned = None if body is None or verdict is None else self._expected(body, verdict, shown)
        expected = planned or {}
        if planned is not None and planned.keys() != shown.keys():
            parts, found = ([*map(str, sorted(one))] for one in (expected, shown))
            self._break(LOG, self._message.index, "verdict", f"parts {', '.join(parts)}", f"parts {', '.join(found)}")
        for number, part in shown.items():
            self._batch(part, expected.get(number), body)
        if self._message.reported or len(self._segment.breaks) > before or body is None:
            return False
        return self._references(body, [*expected.values()])

    def _applied(self) -> tuple[AppliedBatch, ...]:
        """The verdict on each batch by the VERDICT record. If it cannot be read, assume that all packs were applied at
        the next offsets. The later messages are then not reported for the same cause.
        """
        last = self._parts[-1]
        if isinstance(last, Record):
            try:
                return batches_of(last) if last.kind == Kind.VERDICT else ()
            except Malformed:
                return ()  # `SegmentChecker` reports it
        tails = self._segment.end.tails
        following = {stream: tail.next_offset for stream, tail in tails.items()}
        applied: list[AppliedBatch] = []
        for number, part in enumerate(self._parts[FIRST_BATCH_PART:-1], FIRST_BATCH_PART):
            if isinstance(part, Record) and part.stream in following:
                with suppress(Malformed):
                    count = sum(head.count for head in heads_of(octets(part.body)))
                    applied.append(AppliedBatch(number, following[part.stream], count))
                    following[part.stream] += count
        return tuple(applied)

    def _as_shown(self, applied: Sequence[AppliedBatch]) -> dict[int, MessagePart]:
        """The batches with applied packs, by part, as readers see them."""
        shown: dict[int, MessagePart] = {}
        for batch in applied:
            if not FIRST_BATCH_PART <= batch.part < len(self._parts) - 1:
                self._break(LOG, self._message.index, "verdict", f"{len(self._parts)} parts", f"part {batch.part}")
                continue
            part = self._parts[batch.part]
            try:
                shown[batch.part] = (
                    _damage_as_shown(part, batch) if isinstance(part, Damage) else applied_part(part, batch)
                )
            except Malformed as error:
                self._break(LOG, self._message.index, "verdict", "octets of the batch", error)
        return shown

    def _expected(
        self, body: Body, verdict: ExecutionVerdict, shown: Mapping[int, MessagePart]
    ) -> dict[int, ExpectedBatch] | None:
        """The batches with applied packs, by part, from the message and its verdict. None if the message does not state
        which packs its batches contain.
        """
        first = self._parts[0]
        assert isinstance(first, Record), "a body was decoded from the first part"
        try:
            layout = batch_layout(split_first(first)[1])
        except Malformed:
            return None  # `_references` reports it
        return _expected_batches(body, verdict, layout, shown)

    def _break(self, stream: str, offset: int, kind: str, expected: object, found: object) -> None:
        self._segment.breaks.append(Break(stream, offset, kind, str(expected), str(found)))

    def _damaged(self, stream: str, offset: int, damage: Damage, last: int = -1) -> None:
        if not self._message.reported:
            self._segment.breaks.append(damage_break(stream, offset, damage, last))

    def _batch(self, part: MessagePart, plan: ExpectedBatch | None, body: Body | None) -> None:
        if isinstance(part, Damage):
            self._damaged_batch(part, plan)
            return
        record = part if plan is None else self._compare_header(part, plan)
        if body is not None:
            self._check_header(record, body)
        try:
            digests = self._packs(record)
        except Malformed as error:
            self._break(record.stream, record.first_offset, "malformed", "packs", error)
            digests = None
        self.found.append(record)
        self._add(record.stream, digests)

    def _damaged_batch(self, part: Damage, plan: ExpectedBatch | None) -> None:
        head = part.head
        if plan is None and head is not None:
            plan = ExpectedBatch(head.stream, head.first_offset, head.count, Reference(0, 0, 0))
        if plan is None:
            self._damaged(LOG, self._message.index, part)
            return
        whole = [(plan.first_offset, plan.first_offset + plan.rows - 1)]
        for first, last in _bad_messages(part, plan.first_offset) or _bad_packs(part, plan.first_offset) or whole:
            self._damaged(plan.stream, first, part, last)
        self.found.append(Record(Kind.BATCH, stream=plan.stream, first_offset=plan.first_offset, count=plan.rows))
        self._add(plan.stream, None)

    def _compare_header(self, part: Record, plan: ExpectedBatch) -> Record:
        """Compare a batch's header with the verdict. Return the record with the values of the verdict."""
        origin = Reference(part.origin_node, part.origin_journal, part.origin_index)
        stated = {"stream": part.stream, "offset": part.first_offset, "count": part.count, "origin": _shown(origin)}
        planned = {"stream": plan.stream, "offset": plan.first_offset, "count": plan.rows}
        planned["origin"] = _shown(plan.reference)
        differ = [name for name in stated if stated[name] != planned[name]]
        if differ:
            expected = ", ".join(f"{name} {planned[name]}" for name in differ)
            found = ", ".join(f"{name} {stated[name]}" for name in differ)
            self._break(plan.stream, plan.first_offset, "header", expected, found)
        return msgspec.structs.replace(part, stream=plan.stream, first_offset=plan.first_offset, count=plan.rows)

    def _check_header(self, record: Record, body: Body) -> None:
        first = self._parts[0]
        assert isinstance(first, Record), "a body was decoded from the first part"
        stated = (record.timestamp_ns, record.regime, record.previous_hash)
        planned = (body.timestamp_ns, body.regime, first.previous_hash)
        if stated != planned:
            found = f"time {stated[0]}, regime {stated[1]}, previous {stated[2].hex()}"
            expected = f"time {planned[0]}, regime {planned[1]}, previous {planned[2].hex()}"
            self._break(record.stream, record.first_offset, "header", expected, found)

    def _packs(self, batch: Record) -> list[bytes] | None:
        """Verify a batch's packs. Return their digests, or None if one is wrong."""
        view = octets(batch.body)
        offset, sound = batch.first_offset, True
        found: list[bytes] = []
        for head in heads_of(view):
            raw = view[head.start : head.end]
            stated, real = stated_digest(raw), _found_digest(raw)
            if stated.hex() != real:
                sound = False
                last = offset + head.count - 1
                self._segment.breaks.append(Break(batch.stream, offset, "digest", stated.hex(), real, last=last))
            elif self._keys is not None:
                self._signature(self._keys, batch.stream, offset, head, bytes(raw[: head.tables_at - head.start]))
            if self._leaves is not None:
                shape = (head.count, head.client_id, head.first_id, stated)
                self._leaves.add_pack(batch.stream, offset, shape)
            found.append(stated)
            if head.message_type != STAGED:  # a staged pack used its request ids when it was staged
                self.ids.append((head.client_id, head.first_id, head.requests, batch.stream, offset))
            offset += head.count
        if offset - batch.first_offset != batch.count:
            sound = False
            self._break(batch.stream, batch.first_offset, "count", batch.count, offset - batch.first_offset)
        self._segment.rows += offset - batch.first_offset
        self._segment.packs += len(found)
        return found if sound else None

    def _signature(self, keys: Keys, stream: str, offset: int, head: PackHead, front: bytes) -> None:
        signature_type, key = keys.lanes.get(head.client_id, (0, b""))
        if signature_type == SignatureType.HMAC_SHA256 == head.signature_type:
            self._segment.unchecked += 1
            return
        signature = front[PACK_HEAD_BYTES : PACK_HEAD_BYTES + head.signature_bytes]
        covered = signed_octets(keys.cluster, stream, stated_digest(front))
        known = signature_type == SignatureType.ED25519 == head.signature_type
        if not known or not verify(key, REQUEST_LABEL, covered, signature):
            owner = (
                f"of the owner of lane {head.client_id}" if key else f"of a lane that was leased, not {head.client_id}"
            )
            self._break(stream, offset, "signature", f"a signature {owner}", signature.hex())

    def _references(self, body: Body, batches: list[ExpectedBatch]) -> bool:
        """Verify that the ingest messages that the message orders are present, octet by octet."""
        try:
            first, *others = [part for part in self._parts if isinstance(part, Record)]
            batches_stored = [part for part in others if part.kind == Kind.BATCH]
            payloads = decode_payloads(split_first(first)[1], batches_stored) if others else ()
            if len(payloads) != len(body.data_entries):
                raise Malformed(f"{len(payloads)} ingest messages")
        except Malformed as error:
            self._break(LOG, self._message.index, "incomplete", f"{len(body.data_entries)} ingest messages", error)
            return False
        sound = True
        for entry, payload in zip(body.data_entries, payloads, strict=True):
            real = payload_digest(payload)
            if real != entry.digest:
                sound = False
                mine = [plan for plan in batches if plan.reference == entry.reference]
                stream, offset = (mine[0].stream, mine[0].first_offset) if mine else (LOG, self._message.index)
                self._break(stream, offset, "digest", f"ingest message {entry.digest.hex()}", real.hex())
                self.digests.update({plan.stream: None for plan in mine})
        return sound

    def _add(self, stream: str, found: list[bytes] | None) -> None:
        """Append digests of a stream. Once a digest is unknown, all digests of the stream count as unknown."""
        known = self.digests.setdefault(stream, [])
        self.digests[stream] = None if known is None or found is None else [*known, *found]


def split_first(part: Record) -> tuple[bytes, bytes]:
    """Split a message's first record into body and skeleton."""
    data = bytes(part.body)
    if len(data) < _SIZE.size:
        raise Malformed("log: the first record of a message is too short")
    end = _SIZE.size + _SIZE.unpack_from(data)[0]
    if end > len(data):
        raise Malformed("log: the first record of a message is too short")
    return data[_SIZE.size : end], data[end:]


def _damage_as_shown(part: Damage, batch: AppliedBatch) -> Damage:
    """A damaged batch with the offsets of the verdict. Octets of refused packs are not shown to anybody."""
    head = part.head
    if head is not None:
        head = msgspec.structs.replace(head, first_offset=batch.first_offset, count=batch.count)
    body, peer_body = (
        b"".join([octets_[start:end] for start, end in batch.ranges]) if batch.ranges else octets_
        for octets_ in (part.body, part.peer_body)
    )
    return part._replace(head=head, body=body, peer_body=peer_body)


def _expected_batches(
    body: Body, verdict: ExecutionVerdict, layout: Sequence[tuple[int, str]], shown: Mapping[int, MessagePart]
) -> dict[int, ExpectedBatch]:
    """Return the batches of which packs were applied, by part. `layout` has the ingest message and the stream of each
    batch.
    """
    stated = [entry for entry in verdict.entries if isinstance(entry, DataVerdict)]
    firsts = _first_offsets(verdict, stated, [*shown.values()])
    counts: dict[tuple[int, str], int] = {}
    for number, decided in enumerate(stated):
        for pack in decided.packs:
            if pack.reason == Reason.APPLIED:
                counts[number, pack.stream] = counts.get((number, pack.stream), 0) + pack.messages
    batches: dict[int, ExpectedBatch] = {}
    for part, (number, stream) in enumerate(layout, FIRST_BATCH_PART):
        count = counts.get((number, stream), 0)
        if count and number < len(body.data_entries):
            batches[part] = ExpectedBatch(stream, firsts[stream], count, body.data_entries[number].reference)
            firsts[stream] += count
    return batches


def _first_offsets(
    verdict: ExecutionVerdict, stated: list[DataVerdict], parts: Sequence[MessagePart]
) -> dict[str, int]:
    """Return the first offset of the message in each stream. It is stated in three places; the majority counts."""
    packs = [pack for entry in reversed(stated) for pack in reversed(entry.packs) if pack.reason == Reason.APPLIED]
    of_packs = {pack.stream: pack.base_offset for pack in packs}
    of_streams = {one.stream: one.first_offset for one in verdict.streams}
    of_heads = {part.stream: part.first_offset for part in reversed(parts) if isinstance(part, Record)}
    return {
        stream: of_streams[stream] if of_streams.get(stream) == of_heads.get(stream) else first
        for stream, first in of_packs.items()
    }


def _bad_messages(damage: Damage, offset: int) -> list[tuple[int, int]]:
    """Return the offsets of the messages that differ from another node's copy.

    Return an empty list if a differing octet cannot be attributed to a message, because it lies in a pack's header or
    padding, or if there is no copy.
    """
    ours, theirs = octets(damage.body), octets(damage.peer_body)
    if len(ours) != len(theirs):
        return []
    differing = np.flatnonzero(ours != theirs)
    found: dict[int, None] = {}
    for head in heads_of(theirs):
        for at in differing[(differing >= head.start) & (differing < head.end)].tolist():
            row = row_at(theirs, head, at)
            if row is None or len(found) > MESSAGES_NAMED_MAX:
                return []
            found[offset + row] = None
        offset += head.count
    return [(at, at) for at in found]


def row_at(view: Octets, head: PackHead, at: int) -> int | None:
    """Return the number of the message within a pack to which an octet belongs; None if it belongs to no message."""
    words = view[head.tables_at : head.data_at].view("<u4")
    sizes = words[head.tabled_requests :][: head.count * column_count(head.columns)].astype(np.int64)
    if at < head.data_at:
        cell = (at - head.tables_at) // 4 - head.tabled_requests
    else:
        ends = head.data_at + np.cumsum(np.where(sizes == NOTHING, 0, sizes))
        cell = int(np.searchsorted(ends, at, side="right"))
    return cell % head.count if at >= head.tables_at and 0 <= cell < len(sizes) else None


def _bad_packs(damage: Damage, offset: int) -> list[tuple[int, int]]:
    """Return the first and last offsets of packs that do not match their digests; empty if packs cannot be
    separated.
    """
    try:
        heads = heads_of(octets(damage.body))
    except Malformed:
        return []
    view = octets(damage.body)
    starts = accumulate((head.count for head in heads), initial=offset)
    raws = [view[head.start : head.end] for head in heads]
    return [
        (at, at + head.count - 1)
        for at, head, raw in zip(starts, heads, raws, strict=False)
        if stated_digest(raw).hex() != _found_digest(raw)
    ]


def _found_digest(raw: Octets) -> str:
    """Return the digest of a pack in hex, or the reason why it has none."""
    try:
        return digest_of(raw).hex()
    except Malformed as error:
        return str(error)


def _shown(reference: Reference) -> str:
    return f"{reference.node}/{reference.journal}/{reference.index}"
