"""Puts back what others keep of the log from before our first message.

    others begin earlier ──▶ Recall of the message before our first ──▶ Recalled, with some before it ──▶ the next …
    ──▶ a piece, written at the log's end, in order ──▶ on disk: the log begins with it ──▶ the next piece

Whoever took a checkpoint from others has nothing from before it, though nobody released that. If each node came
through this once, the messages would be gone everywhere.

Decides what is put back: from the newest message down, each message and its verdict by the hashes that the message
behind it contains, as in `mending`. Below an adopted checkpoint the state contains both hashes. A peer that supplies
another message or another verdict is reported by its node id, and the next peer is asked. Refuses to know what is
kept here and why (`retention`).

Invariants: what is before our first message and was not put back is never called ours; a piece is ours when all of it
is on disk. A start finds what was put back by the same hashes (`log_recovery`), and goes on from there.

Bounds: one answer under way; a piece has `supply_messages_max` messages, and no answer is asked for beyond
`supply_bytes_max` octets. Who does not answer, or gives something else, is followed by the next, ever more slowly.
"""

from __future__ import annotations

from chaplain.errors import Malformed
from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.consensus.repair import PATIENCE_MAX, Pin, pinned
from chaplain.journal.messages.consensus import Recall, Recalled, RecalledMessage
from chaplain.journal.model.verdict_chain import previous_of
from chaplain.journal.storage.records import verdict_of
from chaplain.segment.record import Record

RESTOCKED = "messages that others keep are here again"


class Backfill:
    def __init__(self, bench: ConsensusContext) -> None:
        self._bench = bench
        self._piece: list[list[Record]] = []
        """Messages that came, by their records, the newest first."""
        self._piece_bytes = 0
        self._writing: list[tuple[int, int]] = []
        """Where the piece is being written, its oldest message first."""
        self._turn = self._tries = 0
        """Whom to ask, and how often that was in vain."""
        self._enough = False
        """What is further down would not be kept here."""
        self._told = False
        self.due_ns: int | None = None

    @property
    def lacking(self) -> range:
        """What others have right before our first message, and we have not."""
        log = self._bench.log
        if not log.hash_before_first or self._enough or log.index_only:
            return range(0)
        first = log.segment_index.first
        return range(min((self._bench.firsts[node][0] for node in self._able(first - 1)), default=first), first)

    def lacks(self) -> bool:
        return bool(self.lacking)

    def _able(self, index: int) -> list[int]:
        """Who has this message, with its payloads."""
        bench = self._bench
        told = [node for node in bench.up if node in bench.firsts and (not bench.log.copies or node in bench.holders)]
        return [node for node in told if bench.firsts[node][0] <= index <= bench.firsts[node][1]]

    def look(self, now_ns: int) -> None:
        """Begin, if there is something to fetch and nothing under way."""
        if self.due_ns is not None or self._writing or not self._bench.room or not (lacking := self.lacking):
            return
        if not self._told:
            self._told = True
            self._bench.report(
                "messages that others keep are missing here, and asked of them", 0, range=_range(lacking)
            )
        self._ask(now_ns)

    def woken(self, now_ns: int) -> None:
        if self.due_ns is None or now_ns < self.due_ns:
            return
        self._turn += 1
        self._tries += 1
        self._ask(now_ns)

    def _ask(self, now_ns: int) -> None:
        """Ask for what is next further down; if nothing is wanted, what came is a piece."""
        bench = self._bench
        if not bench.log.hash_before_first:  # we dropped what is behind it meanwhile
            self._forget()
            return
        able = self._able(self._next)
        if not able or not bench.room or not self._wants(now_ns):
            self._write()
            return
        self.due_ns = now_ns + bench.settings.retry_ns * min(self._tries + 1, PATIENCE_MAX)
        count = bench.settings.supply_messages_max - len(self._piece)
        bench.quill.tell(able[self._turn % len(able)], Recall(self._next, count))

    @property
    def _next(self) -> int:
        return self._bench.log.segment_index.first - 1 - len(self._piece)

    def _wants(self, now_ns: int) -> bool:
        """Whether the next message belongs to this piece."""
        newer_ns = self._piece[-1][0].timestamp_ns if self._piece else now_ns
        self._enough = not self._bench.keeps(now_ns, self._next, newer_ns)
        settings = self._bench.settings
        full = len(self._piece) >= settings.supply_messages_max or self._piece_bytes >= settings.supply_bytes_max
        return not self._enough and not full

    def recalled(self, now_ns: int, node: int, given: Recalled) -> None:
        if self.due_ns is None or given.index != self._next or not self._bench.log.hash_before_first:
            return
        for kept in given.messages:
            if not self._wants(now_ns):
                break
            try:
                self._take(kept)
            except Malformed as wrong:
                self._bench.report("recalled message does not fit", node, index=self._next, reason=str(wrong))
                return
        if given.messages:
            self._tries = 0
            self._ask(now_ns)

    def _take(self, kept: RecalledMessage) -> None:
        log, pin = self._bench.log, self._pin
        message = pinned(self._bench, kept, pin.message)
        self._piece.append(log.rebuild_records(message, kept.verdict, pin.verdict))
        self._piece_bytes += message.size_bytes

    @property
    def _pin(self) -> Pin:
        """The message and verdict that have to come next, further down."""
        if not self._piece:
            return Pin(self._bench.log.hash_before_first, self._bench.log.verdict_before_first)
        oldest = self._piece[-1][0]
        return Pin(oldest.previous_hash, previous_of(verdict_of(oldest)))

    def _write(self) -> None:
        self.due_ns = None
        if self._piece:
            self._piece.reverse()
            operations, self._writing = self._bench.log.append_copies(self._piece)
            self._bench.quill.write(operations, self._bench.written())

    def written(self, position: int) -> None:
        """The log is on disk up to here."""
        if not self._writing or self._writing[-1][1] > position:
            return
        log = self._bench.log
        if self._piece[-1][0].index == log.segment_index.first - 1:  # else we dropped what is behind it meanwhile
            log.backfill(self._piece, self._writing)
        self._forget()
        if not self.lacking:
            self._told = False
            self._bench.report(RESTOCKED, 0, first=log.segment_index.first)

    def _forget(self) -> None:
        self._piece, self._piece_bytes, self._writing, self.due_ns = [], 0, [], None


def _range(lacking: range) -> str:
    return f"{lacking[0]}..{lacking[-1]}"
