"""Verifies consecutive messages: each is intact and continues the one before.

    cluster chain   every message's hash matches its body and the hash before it; regimes do not fall and times rise
    references      the payloads that the message orders are present, octet by octet
    stream chain    the hash in the verdict follows from the hash before it and the digests of the packs
    offsets         every batch begins where the previous batch of its stream ended
    digests         every pack matches its digest; on request, also the signature of the lane's owner
    lanes           every client's requests are numbered without a gap
    tree            with a signed checkpoint: every pack is the one in the tree over the log (`tree_check`)

This module defines breaks. It reports causes and not consequences: a statement in a broken message is not compared with
the neighbours of that message. It does not know the source of records, or the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chaplain.errors import Malformed
from chaplain.journal.messages.cluster import Body, chain_hash, decode_body
from chaplain.journal.model.reason import CONDITIONAL
from chaplain.journal.model.results import DataVerdict, ExecutionVerdict
from chaplain.journal.storage import verdict as verdicts
from chaplain.journal.storage.records import verdict_of
from chaplain.journal.storage.verdict import Reason
from chaplain.verification.batches import Batches, Damage, Keys, MessagePart, damage_break, split_first
from chaplain.verification.chain_selection import SelectedMessage
from chaplain.verification.proof_segments import (
    LOG,
    LaneSeen,
    MessageLink,
    Point,
    ProofSegment,
    StreamLink,
    StreamTail,
    continued,
    lane_break,
    linked,
)
from chaplain.verification.tree_check import LeafChecker
from chaplain.verification.violations import Break


class SegmentChecker:
    """Verifies the messages of one task, in order, and collects the result in a `ProofSegment`."""

    def __init__(self, keys: Keys | None = None, leaves: LeafChecker | None = None) -> None:
        self.segment = ProofSegment()
        self._keys = keys
        self._leaves = leaves

    def check(self, message: SelectedMessage, parts: Sequence[MessagePart]) -> None:
        body = self._check_body(message, parts[0])
        verdict = self._decode_verdict(message, parts[-1]) if len(parts) > 1 else None
        if body is None:
            verdict = None  # which batches it is about cannot be known
        batches = Batches(message, parts, self.segment, self._keys, self._leaves)
        sound = batches.check(body, verdict)
        if self._leaves is not None:
            self.segment.breaks += self._leaves.check(message.index, body if sound else None)
        self._check_streams(message, verdict, batches)
        self._check_lanes([*batches.ids, *_staged_ids(message, verdict)] if sound else None)

    def _break(self, stream: str, offset: int, kind: str, expected: object, found: object) -> None:
        self.segment.breaks.append(Break(stream, offset, kind, str(expected), str(found)))

    def _damaged(self, message: SelectedMessage, stream: str, offset: int, damage: Damage) -> None:
        if not message.reported:
            self.segment.breaks.append(damage_break(stream, offset, damage))

    # The message itself

    def _check_body(self, message: SelectedMessage, part: MessagePart) -> Body | None:
        """Return the body if it matches its hash. In any case add the message to the chain."""
        if isinstance(part, Damage):
            self._damaged(message, LOG, message.index, part)
            self._check_chain(MessageLink(message.index, b"", 0, 0), [message.chain], known=False)
            return None
        try:
            raw = split_first(part)[0]
            body = decode_body(raw)
        except Malformed as error:
            self._break(LOG, message.index, "malformed", "a message", error)
            self._check_chain(MessageLink(message.index, b"", 0, 0), [message.chain], known=False)
            return None
        real = chain_hash(body.previous, raw)
        if real != message.chain or body.index != message.index:
            self._break(LOG, message.index, "cluster chain", message.chain.hex(), real.hex())
            self._check_chain(MessageLink(message.index, b"", 0, 0), [message.chain, real], known=False)
            return None
        if part.previous_hash != body.previous:
            self._break(LOG, message.index, "header", f"previous {body.previous.hex()}", part.previous_hash.hex())
        self._check_chain(MessageLink(message.index, body.previous, body.regime, body.timestamp_ns), [real], known=True)
        if part.timestamp_ns != body.timestamp_ns or part.regime < body.regime:
            expected = f"time {body.timestamp_ns}, regime {body.regime} or later"
            self._break(LOG, message.index, "header", expected, f"time {part.timestamp_ns}, regime {part.regime}")
        return body

    def _check_chain(self, link: MessageLink, hashes: list[bytes], *, known: bool) -> None:
        """Check that the message continues the one before, and make it the end of the segment.

        Without a readable body (`known` is false) its regime and time are unknown; the next message is then compared
        with those of the message before.
        """
        segment, point = self.segment, self.segment.end.point
        regime, time_ns = (point.regime, point.timestamp_ns) if point else (0, 0)
        if segment.first_message is None or point is None:
            segment.first_message = link
        else:
            segment.breaks += continued(point, link)
            if link.index != point.index + 1:
                self._forget()
        if known:
            regime, time_ns = max(regime, link.regime), max(time_ns, link.timestamp_ns)
        segment.end.point = Point(link.index, hashes, regime, time_ns)

    def _decode_verdict(self, message: SelectedMessage, part: MessagePart) -> ExecutionVerdict | None:
        if isinstance(part, Damage):
            self._damaged(message, LOG, message.index, part)
            return None
        try:
            return verdicts.decode(verdict_of(part))
        except Malformed as error:
            self._break(LOG, message.index, "verdict", "a verdict", error)
            return None

    # Streams and lanes

    def _check_streams(self, message: SelectedMessage, verdict: ExecutionVerdict | None, batches: Batches) -> None:
        stated = {one.stream: one for one in verdict.streams} if verdict else {}
        for stream in dict.fromkeys([*stated, *[batch.stream for batch in batches.found]]):
            mine = [batch for batch in batches.found if batch.stream == stream]
            one = stated.get(stream)
            first, count, chain = (one.first_offset, one.count, one.chain) if one else (0, 0, b"")
            held_rows = sum(batch.count for batch in mine)
            if mine and (mine[0].first_offset, held_rows) != (first, count):
                if one is not None:
                    found = f"{count} messages from {first}"
                    expected = f"{held_rows} messages from {mine[0].first_offset}"
                    self._break(stream, mine[0].first_offset, "verdict", expected, found)
                first, count = mine[0].first_offset, held_rows
            digests = batches.digests.get(stream) if mine and not message.reported else None
            self._link(stream, StreamLink(first, count, digests, chain))

    def _link(self, stream: str, link: StreamLink) -> None:
        segment = self.segment
        before = segment.end.tails.get(stream)
        if before is None:
            segment.first_links[stream] = link
            segment.end.tails[stream] = StreamTail(link.first_offset + link.count, [link.chain] if link.chain else [])
            return
        found, segment.end.tails[stream] = linked(stream, before, link)
        first = segment.first_links[stream]
        if found and found[0].kind == "stream chain" and before.next_offset == first.first_offset + first.count:
            segment.second_links[stream] = link
        else:
            segment.breaks += found

    def _check_lanes(self, ids: list[tuple[int, int, int, str, int]] | None) -> None:
        """Check the numbers of requests. With None, which means unreadable packs, forget the numbers of all lanes."""
        if ids is None:
            self._forget()
            return
        segment = self.segment
        for client, first_id, requests, stream, offset in sorted(ids):
            expected = segment.end.ids.get(client)
            if expected is None and not segment.forgot:
                segment.first_ids[client] = LaneSeen(stream, offset, first_id)
            elif expected is not None and expected != first_id:
                segment.breaks.append(lane_break(client, expected, first_id, stream, offset))
            segment.end.ids[client] = first_id + requests

    def _forget(self) -> None:
        self.segment.end.ids, self.segment.forgot = {}, True


def _staged_ids(message: SelectedMessage, verdict: ExecutionVerdict | None) -> Iterator[tuple[int, int, int, str, int]]:
    """Yield the request ids of entries that write nothing to streams: staged packs, and commits of staged packs;
    and conditional writes that were refused.
    """
    for entry in verdict.entries if verdict is not None else ():
        for pack in entry.packs if isinstance(entry, DataVerdict) else ():
            if pack.reason in (Reason.STAGED, Reason.COMMITTED, *CONDITIONAL):
                yield pack.client_id, pack.first_id, pack.requests, LOG, message.index
