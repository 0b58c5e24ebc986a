"""Read repair: replaces agreed messages whose records turn out to be damaged while the node runs.

    record damaged ──▶ hashes of the message and its verdict, from the next message of this log
                   ──▶ Recall to a peer ──▶ Recalled ──▶ checked against the hashes ──▶ written at the log's end

Decides what may replace a damaged message: only the message and the verdict with exactly these two hashes. The next
message of this log contains both; for the last message, the state does. So a peer cannot supply another message or
another verdict. If a peer tries this, it is reported by its node id, and the next peer is asked. Does not touch
messages that are not agreed: damage there makes the node doubtful, which `vote_recovery` resolves.

Invariants: a replacement has the expected hashes, and its payloads match their digests. The agreed prefix and the state
do not change. The old position is forgotten only after the new record is on disk.

Bounds: `REPAIRS_MAX` messages at a time. Each is retried with a growing pause.
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

REPAIRS_MAX = 64
"""Messages that are repaired at a time. Further damaged messages are found again by the next read."""
BACKOFF_MAX = 60
"""The pause between two attempts grows up to this multiple of `retry_ns`."""


class ReplacementHashes(NamedTuple):
    """Hashes of the message and the verdict that a peer has to supply."""

    message: bytes
    """Hash of the message."""
    verdict: bytes
    """Hash of its verdict. Empty on index-only serializers, which store no verdicts."""


class _Repairing(msgspec.Struct):
    """A damaged message that is being repaired."""

    due_ns: int
    """When the next attempt is due."""
    pin: ReplacementHashes | None = None
    """Hashes of the replacement, once they are known."""
    tries: int = 0
    position: tuple[int, int] | None = None
    """Start and end of the replacement in the log, once it is written."""


class Repair:
    """Damaged messages by index."""

    def __init__(self, context: ConsensusContext) -> None:
        self._context = context
        self._repairing: dict[int, _Repairing] = {}
        self._reads: dict[int, int] = {}
        """Reads of the message after a damaged one, by token: the damaged index."""

    @property
    def due_ns(self) -> int | None:
        if not self._repairing:  # the common case, checked after every step
            return None
        return min((one.due_ns for one in self._repairing.values() if one.position is None), default=None)

    def on_damaged(self, now_ns: int, index: int) -> None:
        """The records of this message cannot be read. Index 0 means that none is damaged."""
        log = self._context.log
        stored = log.segment_index.first <= index <= min(log.agreed, log.durable)
        if not stored or index in self._repairing or len(self._repairing) >= REPAIRS_MAX:
            return
        self._context.report("damaged: an agreed message cannot be read; fetching it from other nodes", 0, index=index)
        self._repairing[index] = _Repairing(now_ns)
        self._request(now_ns, index)

    def woken(self, now_ns: int) -> None:
        open_repairs = [(index, one) for index, one in self._repairing.items() if one.position is None]
        for index, repairing in open_repairs:
            if now_ns >= repairing.due_ns:
                self._request(now_ns, index)

    def _request(self, now_ns: int, index: int) -> None:
        """Ask a peer for the message, or first read the next message, which contains its hashes."""
        repairing, log = self._repairing[index], self._context.log
        repairing.tries += 1
        repairing.due_ns = now_ns + self._context.settings.retry_ns * min(repairing.tries, BACKOFF_MAX)
        if index == log.agreed:
            repairing.pin = ReplacementHashes(log.agreed_hash, log.execution.verdict_hash)
        if repairing.pin is not None:
            self._ask(index)
        elif (span := log.span(index + 1, 1)) is not None:
            token = self._context.next_read_token()
            self._reads[token] = index
            self._context.barrier.emit(ReadLog(token, *span))

    def on_log_read(self, now_ns: int, event: LogRead) -> None:
        """The message after a damaged one was read, or is damaged as well."""
        index = self._reads.pop(event.token, 0)
        repairing = self._repairing.get(index)
        if repairing is None:
            return
        following = self._context.log.read_backward(event.records, index + 1)
        if not following:
            # The message with the hashes is damaged as well: repair it first. The next attempt finds the hashes.
            self.on_damaged(now_ns, index + 1)
        else:
            message, verdict = following[0]
            repairing.pin = ReplacementHashes(
                message.body.previous, b"" if self._context.log.index_only else previous_of(verdict)
            )
            self._ask(index)

    def _ask(self, index: int) -> None:
        peers = self._context.connected
        if peers and self._context.has_space:
            self._context.barrier.send_now(peers[self._repairing[index].tries % len(peers)], Recall(index))

    def on_recalled(self, node: int, given: Recalled) -> None:
        """A peer sent a message: write it if it has the expected hashes."""
        repairing = self._repairing.get(given.index)
        if repairing is None or repairing.pin is None or repairing.position is not None or not given.messages:
            return
        context, recalled = self._context, given.messages[0]
        try:
            message = check_pinned(context, recalled, repairing.pin.message)
            operations, repairing.position = context.log.append_repaired(
                message, recalled.verdict, repairing.pin.verdict
            )
        except Malformed as wrong:
            context.report("recalled message does not fit", node, index=given.index, reason=str(wrong))
            return
        context.barrier.write(operations, context.log_synced_proof())

    def on_log_synced(self, position: int) -> None:
        """The log is on disk up to this position: replaced messages before it can be read again."""
        for index, repairing in list(self._repairing.items()):
            if repairing.position is not None and repairing.position[1] <= position:
                self._context.log.relocate(index, *repairing.position)
                self._context.report("repaired: a damaged message can be read again", 0, index=index)
                del self._repairing[index]


def check_pinned(context: ConsensusContext, given: RecalledMessage, pin: bytes) -> LogEntry:
    """Return the recalled message as a log entry. Raise Malformed if its hash is not `pin` or its payloads do not
    match.
    """
    body = decode_body(given.body)
    whole = context.log.index_only or payloads_match(body, given.payloads)
    if chain_hash(body.previous, given.body) != pin or not whole:
        raise Malformed("not the message that is missing here")
    return LogEntry(body, given.body, pin, context.hard_state.regime, given.payloads)
