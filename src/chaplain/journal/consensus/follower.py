"""The follower: stores and acknowledges proposals of the master, and applies messages that are agreed.

Decides whether a proposal may be stored and acknowledged. Does not fetch missing messages: it only reports whether a
fetch is necessary.

Under load a majority may be ahead of this node while the payloads that it lacks have already arrived and are being
verified. So proposals wait in a queue. This node fetches messages with their payloads only if the first waiting
proposal makes no progress for `retry_ns`.

An index-only serializer stores a message without its payloads, and executes it after it has received them.

Invariants: a node stores a message only after its predecessor is agreed and stored here. All payloads of the message
must be here, too, unless this node is index-only. A stored tail is replaced only under a later regime. A regime has one
body for an index. The waiting proposals are of one regime, without gaps.
"""

from __future__ import annotations

from collections import deque

from chaplain.errors import Malformed
from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.messages.cluster import Body, chain_hash, decode_body
from chaplain.journal.messages.consensus import AgreedMark, MarkHeard, ProposalAck, Propose
from chaplain.journal.model.log_entry import LogEntry

WAITING_MAX = 64
"""Proposals that wait. If there are more, the first one is dropped, and fetched later."""


class Diverged(Exception):
    """Two nodes have different agreed messages at one index, or a regime has two bodies for an index. The node must
    halt.
    """


class Follower:
    """Proposals and marks, as a follower handles them."""

    def __init__(self, context: ConsensusContext) -> None:
        self._context = context
        self._waiting: deque[tuple[int, Propose]] = deque()
        """Proposals with the node that sent each. The first waits for its predecessor or its payloads."""
        self._decoded: tuple[bytes, Body] | None = None
        """The last decoded body and its bytes: a waiting proposal is examined repeatedly."""
        self.due_ns: int | None = None
        """Until when the first waiting proposal waits before its messages are fetched."""
        self._last_mark_answer: tuple[int, int, int] = (0, 0, 0)
        """The last answered mark: master, regime and time."""
        self.agreed_elsewhere = 0
        """The highest index that other nodes reported as agreed."""

    def on_proposal(self, now_ns: int, node: int, message: Propose) -> None:
        """Queue a proposal of the master. A repeated proposal is in the queue already."""
        waiting = self._waiting
        if waiting and (
            waiting[0][1].regime != message.regime or not 0 <= message.index - waiting[0][1].index <= len(waiting)
        ):
            waiting.clear()
        if not waiting:
            self._restart_wait(now_ns)
        if not waiting or message.index > waiting[-1][1].index:
            waiting.append((node, message))
        if len(waiting) > WAITING_MAX:
            waiting.popleft()
        self.agreed_elsewhere = max(self.agreed_elsewhere, message.index - 1)
        self._advance(now_ns)

    def retry_waiting(self, now_ns: int) -> None:
        """Try the waiting proposals again: a payload or predecessor may have arrived."""
        if self._waiting and self._waiting[0][1].regime != self._context.hard_state.regime:
            self._waiting.clear()
        self._advance(now_ns)

    def must_fetch(self, now_ns: int) -> bool:
        """True if the waiting proposals do not bring the next agreed message in time."""
        in_time = self.due_ns is not None and now_ns < self.due_ns
        return not (in_time and self._waiting and self._waiting[0][1].index == self._context.log.agreed + 1)

    def woken(self, now_ns: int) -> None:
        if self.due_ns is not None and now_ns >= self.due_ns:
            self.due_ns = None

    def _restart_wait(self, now_ns: int) -> None:
        self.due_ns = now_ns + self._context.settings.retry_ns

    def _advance(self, now_ns: int) -> None:
        """Process the waiting proposals in order, as far as possible."""
        while self._waiting and self._process(now_ns, *self._waiting[0]):
            self._waiting.popleft()
            self._restart_wait(now_ns)
        if not self._waiting:
            self.due_ns = None

    def _process(self, now_ns: int, node: int, message: Propose) -> bool:
        """Return True if this proposal is finished: acknowledged, superfluous or invalid."""
        if self._decoded is None or self._decoded[0] is not message.body:
            try:
                self._decoded = (message.body, decode_body(message.body))
            except Malformed as wrong:
                self._context.report("malformed proposal", node, reason=str(wrong))
                return True
        body = self._decoded[1]
        if body.regime > message.regime or (body.regime == message.regime and body.master != node):
            self._context.report("proposal that names another master", node, index=body.index)
            return True
        self._note_agreed(now_ns, node, body.index - 1, body.previous)
        return self._accept(now_ns, node, message, body)

    def on_mark(self, now_ns: int, node: int, message: AgreedMark) -> None:
        """The master reports its agreed mark (commit index); a heartbeat has the same form."""
        self._note_agreed(now_ns, node, message.index, message.hash)
        context = self._context
        regime = context.hard_state.regime
        if (
            self._last_mark_answer[:2] != (node, regime)
            or now_ns - self._last_mark_answer[2] >= context.settings.heartbeat_ns // 2
        ):
            # There may be many marks between two heartbeats; one answer is enough.
            self._last_mark_answer = (node, regime, now_ns)
            context.barrier.send_now(node, MarkHeard(regime, context.log.last()[0], context.log.agreed))

    def _note_agreed(self, now_ns: int, node: int, index: int, digest: bytes) -> None:
        """The message with this index and hash is agreed, and with it all messages before it."""
        log = self._context.log
        if index == log.agreed and digest != log.agreed_hash:
            raise Diverged(f"message {index}: agreed here and by the master, and not the same")
        tail = log.tail
        if tail is not None and tail.index == index == log.agreed + 1 and tail.hash == digest:
            self._context.apply_tail(now_ns, node)
        self.agreed_elsewhere = max(self.agreed_elsewhere, index)

    def _accept(self, now_ns: int, node: int, message: Propose, body: Body) -> bool:
        """Acknowledge a proposal that is stored already, or store it. Return False if it has to wait."""
        context, log = self._context, self._context.log
        digest = chain_hash(body.previous, message.body)
        if body.index <= log.agreed:
            if body.index == log.agreed and digest == log.agreed_hash:
                self._acknowledge(node, message, digest)
            return True
        if body.index > log.agreed + 1:
            # The predecessor is not agreed here yet. A log has at most one message that is not known to be agreed.
            return False
        tail = log.tail
        if tail is not None and (tail.index, tail.hash) == (body.index, digest):
            if tail.ballot < message.regime:
                # The same bytes under a later regime: write the new ballot only. Elections compare logs by it.
                context.barrier.write(log.restamp(message.regime), context.log_synced_proof())
            self._acknowledge(node, message, digest)
            return True
        return self._store(now_ns, node, message, body, digest)

    def _store(self, now_ns: int, node: int, message: Propose, body: Body, digest: bytes) -> bool:
        """Store and acknowledge a message that is new here. Return False while payloads or disk space are missing."""
        context, log = self._context, self._context.log
        last_index = log.last()[0]
        without_payloads = log.index_only and last_index <= body.index
        payloads = () if without_payloads else context.gather_payloads(body.data_entries, node)
        if payloads is None or not context.has_space:
            return False
        entry = LogEntry(body, message.body, digest, message.regime, payloads)
        if last_index > body.index:
            # This log has, or had, a later message. So this one is agreed; only its bytes were missing here.
            if log.expected_next_hash() not in (None, digest):
                raise Diverged(
                    f"message {body.index}: the master proposes another message than the one that this log continues"
                )
            context.barrier.write(log.append_agreed(entry))
            context.emit_agreed(now_ns, [entry, *log.apply_own_copies()])
            context.barrier.write((), context.log_synced_proof())
        else:
            if log.tail is not None and log.tail.ballot >= message.regime:
                # A tail may be replaced only under a later regime. Had a quorum acknowledged it, the master of that
                # regime would have it, because its log was not behind those of the quorum that elected it.
                raise Diverged(f"message {body.index}: two bodies under regime {message.regime}")
            context.mark_due_ns = None
            context.barrier.write(log.store(entry), context.log_synced_proof())
        self._acknowledge(node, message, digest)
        return True

    def _acknowledge(self, node: int, message: Propose, digest: bytes) -> None:
        now = self._context.hard_state.now
        # After a vote in a later regime this node must not help an earlier master to agree on anything.
        assert now.regime == message.regime, "a proposal of another regime was acknowledged"
        acknowledge = ProposalAck(message.regime, message.index, digest, now.incarnation, now.incarnations)
        # The acknowledgement counts towards a quorum, so the message must survive a crash of this node. It leaves after
        # the sync.
        self._context.barrier.send_after_sync(node, acknowledge)
