"""What a follower does with a master's proposals and marks.

Decides whether a proposal may be held and acknowledged. Refuses to know how missing messages are fetched: it only
says whether any must be. Under load a majority may be ahead of us while what we lack is here already, and being
checked: so proposals stand in line, and only if the line does not get on is anything fetched, payloads and all.

An index-only serializer holds a message without its payloads, but settles it only with them.

Invariants: nothing is held before its predecessor is agreed and here, nor before all its payloads are, unless we are
index-only; a held message is replaced only under a later regime; under one regime there is one body for an index; the
proposals in line are of one regime, without gaps.
"""

from __future__ import annotations

from collections import deque

from chaplain.errors import Malformed
from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.messages.cluster import Body, chain_hash, decode_body
from chaplain.journal.messages.consensus import AgreedMark, MarkHeard, ProposalAck, Propose
from chaplain.journal.model.log_entry import LogEntry

LINE_MAX = 64
"""Proposals that stand in line; of more, the first are fetched when their turn comes."""


class Diverged(Exception):
    """Two nodes hold different messages as agreed, or one regime has two bodies for an index: stop at once."""


class Follower:
    def __init__(self, bench: ConsensusContext) -> None:
        self._bench = bench
        self._line: deque[tuple[int, Propose]] = deque()
        """Proposals, the first of which came before its predecessors or payloads did."""
        self._read: tuple[bytes, Body] | None = None
        """The body that was read last, and its octets: what waits is looked at again."""
        self.due_ns: int | None = None
        """Until when we wait for what the first in line needs, before it is fetched."""
        self._heard: tuple[int, int, int] = (0, 0, 0)
        """Whom we told last that we heard it: the master, its regime, and when."""
        self.behind = 0
        """Messages up to here are agreed, others say."""

    def proposed(self, now_ns: int, node: int, message: Propose) -> None:
        """A master of our regime proposes, perhaps what it has proposed before: then it stands in line already."""
        line = self._line
        if line and (line[0][1].regime != message.regime or not 0 <= message.index - line[0][1].index <= len(line)):
            line.clear()
        if not line:
            self._wait(now_ns)
        if not line or message.index > line[-1][1].index:
            line.append((node, message))
        if len(line) > LINE_MAX:
            line.popleft()
        self.behind = max(self.behind, message.index - 1)
        self._advance(now_ns)

    def retry(self, now_ns: int) -> None:
        """Something that a waiting proposal needs may have come."""
        if self._line and self._line[0][1].regime != self._bench.keeper.regime:
            self._line.clear()
        self._advance(now_ns)

    def lacks(self, now_ns: int) -> bool:
        """Whether something is agreed that must be fetched: what we wait for does not bring it, or not in time."""
        agreed = self._bench.log.agreed
        if self.behind <= agreed:
            return False
        comes = self.due_ns is not None and now_ns < self.due_ns
        return not (comes and self._line and self._line[0][1].index == agreed + 1)

    def woken(self, now_ns: int) -> None:
        if self.due_ns is not None and now_ns >= self.due_ns:
            self.due_ns = None

    def _wait(self, now_ns: int) -> None:
        self.due_ns = now_ns + self._bench.settings.retry_ns

    def _advance(self, now_ns: int) -> None:
        """Take up what stands first in line, for as long as it can be."""
        while self._line and self._take_up(now_ns, *self._line[0]):
            self._line.popleft()
            self._wait(now_ns)
        if not self._line:
            self.due_ns = None

    def _take_up(self, now_ns: int, node: int, message: Propose) -> bool:
        """Whether this one need not wait any longer."""
        if self._read is None or self._read[0] is not message.body:
            try:
                self._read = (message.body, decode_body(message.body))
            except Malformed as wrong:
                self._bench.report("malformed proposal", node, reason=str(wrong))
                return True
        body = self._read[1]
        if body.regime > message.regime or (body.regime == message.regime and body.master != node):
            self._bench.report("proposal that names another master", node, index=body.index)
            return True
        self._learn(now_ns, node, body.index - 1, body.previous)
        return self._consider(now_ns, node, message, body)

    def marked(self, now_ns: int, node: int, message: AgreedMark) -> None:
        self._learn(now_ns, node, message.index, message.hash)
        bench = self._bench
        regime = bench.keeper.regime
        if self._heard[:2] != (node, regime) or now_ns - self._heard[2] >= bench.settings.heartbeat_ns // 2:
            # Between two heartbeats there may be many marks; one answer is enough.
            self._heard = (node, regime, now_ns)
            bench.quill.tell(node, MarkHeard(regime, bench.log.last()[0], bench.log.agreed))

    def _learn(self, now_ns: int, node: int, index: int, digest: bytes) -> None:
        """The message of this index and hash is agreed, and so is all before it."""
        log = self._bench.log
        if index == log.agreed and digest != log.agreed_hash:
            raise Diverged(f"message {index}: agreed here and by the master, and not the same")
        tail = log.tail
        if tail is not None and tail.index == index == log.agreed + 1 and tail.hash == digest:
            self._bench.settle_tail(now_ns, node)
        self.behind = max(self.behind, index)

    def _consider(self, now_ns: int, node: int, message: Propose, body: Body) -> bool:
        bench, log = self._bench, self._bench.log
        digest = chain_hash(body.previous, message.body)
        if body.index <= log.agreed:
            if body.index == log.agreed and digest == log.agreed_hash:
                self._acknowledge(node, message, digest)
            return True
        if body.index > log.agreed + 1:
            return False
        tail = log.tail
        if tail is not None and (tail.index, tail.hash) == (body.index, digest):
            if tail.ballot < message.regime:
                bench.quill.write(log.restamp(message.regime), bench.written())
            self._acknowledge(node, message, digest)
            return True
        return self._take(now_ns, node, message, body, digest)

    def _take(self, now_ns: int, node: int, message: Propose, body: Body, digest: bytes) -> bool:
        """Hold a message that is new to us, once its payloads are here and the disk has room."""
        bench, log = self._bench, self._bench.log
        reach = log.last()[0]
        bare = log.index_only and reach <= body.index
        payloads = () if bare else bench.gather(body.data_entries, node)
        if payloads is None or not bench.room:
            return False
        held = LogEntry(body, message.body, digest, message.regime, payloads)
        if reach > body.index:
            # We hold, or held, something further on, hence this one is agreed; only its bytes were missing here.
            if log.expected_next_hash() not in (None, digest):
                raise Diverged(f"message {body.index}: the master proposes another than the one we built on")
            bench.quill.write(log.append_agreed(held))
            bench.announce(now_ns, [held, *log.apply_own_copies()])
            bench.quill.write((), bench.written())
        else:
            if log.tail is not None and log.tail.ballot >= message.regime:
                raise Diverged(f"message {body.index}: two bodies under regime {message.regime}")
            bench.mark_due_ns = None
            bench.quill.write(log.store(held), bench.written())
        self._acknowledge(node, message, digest)
        return True

    def _acknowledge(self, node: int, message: Propose, digest: bytes) -> None:
        now = self._bench.keeper.now
        assert now.regime == message.regime, "a proposal of another regime was acknowledged"
        acknowledge = ProposalAck(message.regime, message.index, digest, now.life, now.lives)
        self._bench.quill.promise(node, acknowledge)
