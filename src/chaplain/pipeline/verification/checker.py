"""Verifies consecutive messages: each is intact and continues the one before.

    cluster chain   every message's hash matches its body and the hash before it; regimes do not fall and times rise
    references      the payloads that the message orders are present, octet by octet
    stream chain    the hash in the verdict follows from the hash before it and the digests of the packs
    offsets         every batch begins where the previous batch of its stream ended
    digests         every pack matches its digest; on request, also the signature of the lane's owner
    lanes           every client's requests are numbered without a gap

This module defines what a break is. It reports causes rather than consequences: a statement in a broken message is not
used against its neighbours. It does not know where records come from or who runs the check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chaplain.errors import Malformed
from chaplain.journal.messages.cluster import Body, chain_hash, decode_body
from chaplain.journal.model.results import DataVerdict, ExecutionVerdict
from chaplain.journal.storage import verdict as verdicts
from chaplain.journal.storage.verdict import Reason
from chaplain.pipeline.verification.batches import Batches, Damage, Keys, Part, damage_break, split_first
from chaplain.pipeline.verification.chain_selection import SelectedMessage
from chaplain.pipeline.verification.proof_segments import (
    LOG,
    LaneSeen,
    Point,
    ProofSegment,
    SegmentOpening,
    StreamLink,
    StreamTail,
    continued,
    lane_break,
    linked,
)
from chaplain.pipeline.verification.violations import Break


class RunChecker:
    """Verifies the messages of one task, in order, and collects the result in a `ProofSegment`."""

    def __init__(self, keys: Keys | None = None) -> None:
        self.run = ProofSegment()
        self._keys = keys

    def message(self, held: SelectedMessage, parts: Sequence[Part]) -> None:
        body = self._body(held, parts[0])
        verdict = self._verdict(held, parts[0])
        batches = Batches(held, parts, self.run, self._keys)
        sound = batches.check(body, verdict)
        self._links(held, verdict, batches)
        self._lanes([*batches.ids, *_elsewhere(held, verdict)] if sound else None)

    def _break(self, stream: str, offset: int, kind: str, expected: object, found: object) -> None:
        self.run.breaks.append(Break(stream, offset, kind, str(expected), str(found)))

    def _damaged(self, held: SelectedMessage, stream: str, offset: int, damage: Damage) -> None:
        if not held.told:
            self.run.breaks.append(damage_break(stream, offset, damage))

    # The message itself

    def _body(self, held: SelectedMessage, part: Part) -> Body | None:
        """Return the body if it matches its hash. In any case add the message to the chain."""
        if isinstance(part, Damage):
            self._damaged(held, LOG, held.index, part)
            self._chain(SegmentOpening(held.index, b"", 0, 0), [held.chain], known=False)
            return None
        try:
            raw = split_first(part)[0]
            body = decode_body(raw)
        except Malformed as wrong:
            self._break(LOG, held.index, "malformed", "a message", wrong)
            self._chain(SegmentOpening(held.index, b"", 0, 0), [held.chain], known=False)
            return None
        real = chain_hash(body.previous, raw)
        if real != held.chain or body.index != held.index:
            self._break(LOG, held.index, "cluster chain", held.chain.hex(), real.hex())
            self._chain(SegmentOpening(held.index, b"", 0, 0), [held.chain, real], known=False)
            return None
        if part.previous_hash != body.previous:
            self._break(LOG, held.index, "header", f"previous {body.previous.hex()}", part.previous_hash.hex())
        self._chain(SegmentOpening(held.index, body.previous, body.regime, body.timestamp_ns), [real], known=True)
        if part.timestamp_ns != body.timestamp_ns or part.regime < body.regime:
            expected = f"time {body.timestamp_ns}, regime {body.regime} or later"
            self._break(LOG, held.index, "header", expected, f"time {part.timestamp_ns}, regime {part.regime}")
        return body

    def _chain(self, opening: SegmentOpening, hashes: list[bytes], *, known: bool) -> None:
        """Check that the message continues the one before, and make it the end of the segment.

        Without a readable body (`known` is false) its regime and time are unknown; the next message is then compared
        with those of the message before.
        """
        run, point = self.run, self.run.end.point
        regime, time_ns = (point.regime, point.timestamp_ns) if point else (0, 0)
        if run.opening is None or point is None:
            run.opening = opening
        else:
            run.breaks += continued(point, opening)
            if opening.index != point.index + 1:
                self._forget()
        if known:
            regime, time_ns = max(regime, opening.regime), max(time_ns, opening.timestamp_ns)
        run.end.point = Point(opening.index, hashes, regime, time_ns)

    def _verdict(self, held: SelectedMessage, part: Part) -> ExecutionVerdict | None:
        if isinstance(part, Damage):
            return None
        try:
            return verdicts.decode(split_first(part)[1])
        except Malformed as wrong:
            self._break(LOG, held.index, "verdict", "a verdict", wrong)
            return None

    # Streams and lanes

    def _links(self, held: SelectedMessage, verdict: ExecutionVerdict | None, batches: Batches) -> None:
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
            digests = batches.digests.get(stream) if mine and not held.told else None
            self._link(stream, StreamLink(first, count, digests, chain))

    def _link(self, stream: str, link: StreamLink) -> None:
        run = self.run
        before = run.end.tails.get(stream)
        if before is None:
            run.first_links[stream] = link
            run.end.tails[stream] = StreamTail(link.first_offset + link.count, [link.chain] if link.chain else [])
            return
        found, run.end.tails[stream] = linked(stream, before, link)
        first = run.first_links[stream]
        if found and found[0].kind == "stream chain" and before.next_offset == first.first_offset + first.count:
            run.second_links[stream] = link
        else:
            run.breaks += found

    def _lanes(self, ids: list[tuple[int, int, int, str, int]] | None) -> None:
        """Check the numbers of requests. With None, which means unreadable packs, forget the numbers of all lanes."""
        if ids is None:
            self._forget()
            return
        run = self.run
        for client, first_id, requests, stream, offset in sorted(ids):
            expected = run.end.ids.get(client)
            if expected is None and not run.forgot:
                run.first_ids[client] = LaneSeen(stream, offset, first_id)
            elif expected is not None and expected != first_id:
                run.breaks.append(lane_break(client, expected, first_id, stream, offset))
            run.end.ids[client] = first_id + requests

    def _forget(self) -> None:
        self.run.end.ids, self.run.forgot = {}, True


def _elsewhere(held: SelectedMessage, verdict: ExecutionVerdict | None) -> Iterator[tuple[int, int, int, str, int]]:
    """Yield the request ids of entries that write nothing to streams: staged packs, and commits of staged packs."""
    for entry in verdict.entries if verdict is not None else ():
        for pack in entry.packs if isinstance(entry, DataVerdict) else ():
            if pack.reason in (Reason.STAGED, Reason.COMMITTED):
                yield pack.client_id, pack.first_id, pack.requests, LOG, held.index
