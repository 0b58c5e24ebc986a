"""Puts back agreed messages whose records are found damaged while the node runs.

    damaged ──▶ pinned, by the hashes that the next message of our log contains ──▶ Recall ──▶ Recalled ──▶ on disk

Decides what may replace a damaged message: the message and the verdict that our own log pins. Both are pinned by a
hash in the next message of our log, or by the state if there is no next message, so a peer cannot supply another
message or another verdict. A peer that does is reported by its node id, and the next peer is asked. Refuses to touch
anything that is not agreed; damage there is doubt, which `catchup` resolves.

Invariants: the written message and its verdict have the pinned hashes, and its payloads have their digests; the agreed
prefix and the state do not change; the old place is forgotten only when the new one is on disk.

Bounds: `MENDS_MAX` messages at a time; each is tried again ever more slowly.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from chaplain.errors import Malformed
from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.consensus.events import LogRead, ReadLog
from chaplain.journal.messages.cluster import chain_hash, decode_body, payloads_match
from chaplain.journal.messages.consensus import Recall, Recalled, RecalledMessage
from chaplain.journal.model.log_entry import LogEntry
from chaplain.journal.model.verdict_chain import previous_of

MENDS_MAX = 64
PATIENCE_MAX = 60
"""A message that nobody can give is asked for at last after so many times the usual pause."""


class Pin(NamedTuple):
    """The message and verdict that a peer has to supply."""

    message: bytes
    """Hash of the message."""
    verdict: bytes
    """Hash of its verdict; empty on index-only serializers, which store no verdicts."""


class _Mend(msgspec.Struct):
    due_ns: int
    pin: Pin | None = None
    tries: int = 0
    place: tuple[int, int] | None = None
    """Where it is written, once it is."""


class Repair:
    def __init__(self, bench: ConsensusContext) -> None:
        self._bench = bench
        self._mends: dict[int, _Mend] = {}
        self._reads: dict[int, int] = {}

    @property
    def due_ns(self) -> int | None:
        if not self._mends:  # asked at every step, and seldom so
            return None
        return min((mend.due_ns for mend in self._mends.values() if mend.place is None), default=None)

    def damaged(self, now_ns: int, index: int) -> None:
        """The records of this message could not be read."""
        log = self._bench.log
        kept = log.segment_index.first <= index <= min(log.agreed, log.durable)
        if not kept or index in self._mends or len(self._mends) >= MENDS_MAX:
            return
        self._bench.report("damaged: an agreed message cannot be read, and is asked of others", 0, index=index)
        self._mends[index] = _Mend(now_ns)
        self._pursue(now_ns, index)

    def woken(self, now_ns: int) -> None:
        for index in [index for index, mend in self._mends.items() if mend.place is None and now_ns >= mend.due_ns]:
            self._pursue(now_ns, index)

    def _pursue(self, now_ns: int, index: int) -> None:
        mend, log = self._mends[index], self._bench.log
        mend.tries += 1
        mend.due_ns = now_ns + self._bench.settings.retry_ns * min(mend.tries, PATIENCE_MAX)
        if index == log.agreed:
            mend.pin = Pin(log.agreed_hash, log.execution.verdict_hash)
        if mend.pin is not None:
            self._ask(index)
        elif (span := log.span(index + 1, 1)) is not None:
            token = self._bench.next_token()
            self._reads[token] = index
            self._bench.quill.say(ReadLog(token, *span))

    def read(self, now_ns: int, event: LogRead) -> None:
        """The message behind a damaged one was read: it names what is missing, or is missing, too."""
        index = self._reads.pop(event.token, 0)
        mend = self._mends.get(index)
        if mend is None:
            return
        following = self._bench.log.read_backward(event.records, index + 1)
        if not following:
            self.damaged(now_ns, index + 1)
        else:
            message, verdict = following[0]
            mend.pin = Pin(message.body.previous, b"" if self._bench.log.index_only else previous_of(verdict))
            self._ask(index)

    def _ask(self, index: int) -> None:
        up = self._bench.up
        if up and self._bench.room:
            self._bench.quill.tell(up[self._mends[index].tries % len(up)], Recall(index))

    def recalled(self, node: int, given: Recalled) -> None:
        mend = self._mends.get(given.index)
        if mend is None or mend.pin is None or mend.place is not None or not given.messages:
            return
        bench, kept = self._bench, given.messages[0]
        try:
            message = pinned(bench, kept, mend.pin.message)
            operations, mend.place = bench.log.append_repaired(message, kept.verdict, mend.pin.verdict)
        except Malformed as wrong:
            bench.report("recalled message does not fit", node, index=given.index, reason=str(wrong))
            return
        bench.quill.write(operations, bench.written())

    def written(self, position: int) -> None:
        """The log is on disk up to here: what was put back is now where it can be read."""
        for index, mend in list(self._mends.items()):
            if mend.place is not None and mend.place[1] <= position:
                self._bench.log.relocate(index, *mend.place)
                self._bench.report("mended: a damaged message is whole again", 0, index=index)
                del self._mends[index]


def pinned(bench: ConsensusContext, given: RecalledMessage, pin: bytes) -> LogEntry:
    """What another node gave, if it is the very message that has this hash, and is whole."""
    body = decode_body(given.body)
    whole = bench.log.index_only or payloads_match(body, given.payloads)
    if chain_hash(body.previous, given.body) != pin or not whole:
        raise Malformed("not the message that is missing here")
    return LogEntry(body, given.body, pin, bench.keeper.regime, given.payloads)
