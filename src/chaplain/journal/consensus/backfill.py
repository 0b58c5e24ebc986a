"""Backfill: fetches messages from before the first one in this log, if other nodes still keep them.

    a peer's log begins earlier ──▶ Recall of the message before the first one here ──▶ Recalled, and some before it
    ──▶ a batch, written at the log's end in order ──▶ on disk: the log begins with it ──▶ the next batch

A node that installed a snapshot has no messages from before it, although retention has not released them. If every node
installed a snapshot once, the messages would be gone from the cluster.

Decides which messages are fetched, from the newest one down. The hashes of a message and of its verdict are in the
message after it, as in `repair`; for the message before an installed snapshot, they are in the state. A peer that
supplies another message or verdict is reported by its node id, and the next peer is asked. Does not know the retention
rules (`snapshots.retention`).

Invariants: a message before the log's first index that was not backfilled never counts as stored here. A batch counts
when all of it is on disk. After a restart `storage.recovery` finds backfilled messages by the same hashes, and backfill
goes on from there.

Bounds: one request under way. A batch has at most `supply_messages_max` messages, and is complete at `supply_bytes_max`
bytes. If a peer does not answer, or sends another message, backfill asks the next one, with a growing pause.
"""

from __future__ import annotations

from chaplain.errors import Malformed
from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.consensus.events import Backfilled
from chaplain.journal.consensus.repair import BACKOFF_MAX, ReplacementHashes, check_pinned
from chaplain.journal.messages.consensus import Recall, Recalled, RecalledMessage
from chaplain.journal.model.verdict_chain import previous_of
from chaplain.journal.storage.records import verdict_of
from chaplain.segment.record import Record

BACKFILLED = "backfill finished"


class Backfill:
    """State of the current batch."""

    def __init__(self, context: ConsensusContext) -> None:
        self._context = context
        self._batch: list[list[Record]] = []
        """Fetched messages as records, the newest first."""
        self._batch_bytes = 0
        self._writing: list[tuple[int, int]] = []
        """Positions at which the batch is being written, its oldest message first."""
        self._turn = self._tries = 0
        """Selects the next peer, and counts failed attempts."""
        self._retention_reached = False
        """Retention would drop the messages further down, so backfill is complete."""
        self._reported = False
        """True if the missing range has been reported."""
        self.due_ns: int | None = None
        """When to ask the next peer; None if no request is under way."""

    @property
    def missing(self) -> range:
        """Indexes directly before the first one of this log that a connected peer has."""
        log = self._context.log
        if not log.hash_before_first or self._retention_reached or log.index_only:
            return range(0)
        first = log.segment_index.first
        ranges = self._context.peer_log_ranges
        return range(min((ranges[node][0] for node in self._peers_with(first - 1)), default=first), first)

    def is_incomplete(self) -> bool:
        """True if messages are missing that peers still have."""
        return bool(self.missing)

    def _peers_with(self, index: int) -> list[int]:
        """Connected peers that have this message with its payloads."""
        context = self._context
        ranges = context.peer_log_ranges
        known = [node for node in context.connected if node in ranges]
        if context.log.copies:
            known = [node for node in known if node in context.data_holders]
        return [node for node in known if ranges[node][0] <= index <= ranges[node][1]]

    def start_if_needed(self, now_ns: int) -> None:
        """Start a batch if messages are missing and none is under way."""
        if self.due_ns is not None or self._writing or not self._context.has_space or not (missing := self.missing):
            return
        if not self._reported:
            self._reported = True
            self._context.report(
                "backfill started: other nodes have messages that are missing here", 0, range=_range(missing)
            )
        self._ask(now_ns)

    def woken(self, now_ns: int) -> None:
        if self.due_ns is None or now_ns < self.due_ns:
            return
        self._turn += 1
        self._tries += 1
        self._ask(now_ns)

    def _ask(self, now_ns: int) -> None:
        """Request the messages before the batch, or write the batch if it is complete."""
        context = self._context
        if not context.log.hash_before_first:  # retention has dropped the message after it meanwhile
            self._reset()
            return
        candidates = self._peers_with(self._next_index)
        if not candidates or not context.has_space or not self._fits_batch(now_ns):
            self._write_batch()
            return
        self.due_ns = now_ns + context.settings.retry_ns * min(self._tries + 1, BACKOFF_MAX)
        count = context.settings.supply_messages_max - len(self._batch)
        context.barrier.send_now(candidates[self._turn % len(candidates)], Recall(self._next_index, count))

    @property
    def _next_index(self) -> int:
        """The index of the next message to fetch: the one below the batch."""
        return self._context.log.segment_index.first - 1 - len(self._batch)

    def _fits_batch(self, now_ns: int) -> bool:
        """True if the next message belongs to this batch."""
        newer_ns = self._batch[-1][0].timestamp_ns if self._batch else now_ns
        self._retention_reached = not self._context.is_retained(now_ns, self._next_index, newer_ns)
        settings = self._context.settings
        full = len(self._batch) >= settings.supply_messages_max or self._batch_bytes >= settings.supply_bytes_max
        return not self._retention_reached and not full

    def on_recalled(self, now_ns: int, node: int, given: Recalled) -> None:
        if self.due_ns is None or given.index != self._next_index or not self._context.log.hash_before_first:
            return
        for recalled in given.messages:
            if not self._fits_batch(now_ns):
                break
            try:
                self._add(recalled)
            except Malformed as wrong:
                self._context.report("recalled message does not fit", node, index=self._next_index, reason=str(wrong))
                return
        if given.messages:
            self._tries = 0
            self._ask(now_ns)

    def _add(self, recalled: RecalledMessage) -> None:
        log, pin = self._context.log, self._pin
        message = check_pinned(self._context, recalled, pin.message)
        self._batch.append(log.rebuild_records(message, recalled.verdict, pin.verdict))
        self._batch_bytes += message.size_bytes

    @property
    def _pin(self) -> ReplacementHashes:
        """The expected hashes of the next message to fetch (the one below the batch) and of its verdict."""
        if not self._batch:
            return ReplacementHashes(self._context.log.hash_before_first, self._context.log.verdict_before_first)
        oldest = self._batch[-1][0]
        return ReplacementHashes(oldest.previous_hash, previous_of(verdict_of(self._batch[-1][-1])))

    def _write_batch(self) -> None:
        self.due_ns = None
        if self._batch:
            self._batch.reverse()
            operations, self._writing = self._context.log.append_copies(self._batch)
            self._context.barrier.write(operations, self._context.log_synced_proof())

    def on_log_synced(self, position: int) -> None:
        """The log is on disk up to this position."""
        if not self._writing or self._writing[-1][1] > position:
            return
        log = self._context.log
        if (
            self._batch[-1][0].index == log.segment_index.first - 1
        ):  # otherwise retention has dropped the message after it
            log.backfill(self._batch, self._writing)
            self._context.barrier.emit(Backfilled(tuple(self._batch)))
        self._reset()
        if not self.missing:
            self._reported = False
            self._context.report(BACKFILLED, 0, first=log.segment_index.first)

    def _reset(self) -> None:
        self._batch, self._batch_bytes, self._writing, self.due_ns = [], 0, [], None


def _range(missing: range) -> str:
    return f"{missing[0]}..{missing[-1]}"
