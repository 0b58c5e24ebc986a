"""The serializer: one agreed order of cluster messages, on disk at a quorum before anybody is told.

Ties together who is master (`election`), what a master does (`office`), what a follower does (`following`), and how
what is missing is got (`catchup`, `supplying`). Decides only which of them an input is for.

What it refuses to know: what payloads mean, how peers are reached, what time it really is.

Invariants, beside those of its parts: one master a regime, which proved its election before it is heeded; after the
disk has failed nothing is promised any more; a node that is not sound answers questions and learns, and does nothing
else.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from typing import assert_never

from chaplain.core import Drained, Halt, Persisted, PersistFailed, Stopping, Woken, soonest
from chaplain.errors import Malformed
from chaplain.journal.consensus.backfill import Backfill
from chaplain.journal.consensus.catch_up import Fetcher, VoteRecovery
from chaplain.journal.consensus.catch_up_server import CatchUpServer
from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.consensus.election import Election
from chaplain.journal.consensus.events import (
    ConfigOffered,
    ConsensusStarted,
    IngestDrained,
    LogRead,
    LogWritten,
    OrderEffect,
    OrderInput,
    PayloadArrived,
    PeerDown,
    PeerUp,
    ProposalHeld,
    Received,
    RecordDamaged,
    Regained,
    Resumed,
    Role,
    SpaceTold,
    Stood,
    SyncProof,
)
from chaplain.journal.consensus.follower import Diverged, Follower
from chaplain.journal.consensus.hard_state import NOBODY, HardStateStore, found_standing
from chaplain.journal.consensus.master import Master
from chaplain.journal.consensus.persist_barrier import PersistBarrier
from chaplain.journal.consensus.repair import Repair
from chaplain.journal.consensus.vote_recovery import judge
from chaplain.journal.messages.consensus import (
    AgreedMark,
    AskVote,
    Canvass,
    Canvassed,
    ElectionProof,
    Fetch,
    Handover,
    MarkHeard,
    OrderMessage,
    ProposalAck,
    Propose,
    Recall,
    Recalled,
    RecoveryAnswer,
    RecoveryQuestion,
    Supply,
    Vote,
    decode,
)
from chaplain.journal.model.log_entry import Execution
from chaplain.journal.model.records import LogPosition
from chaplain.journal.settings import ConsensusSettings
from chaplain.journal.storage.log import ReplicatedLog, hard_state_name
from chaplain.journal.storage.records import body_of
from chaplain.journal.storage.recovery import Recovered, recover
from chaplain.link.auth.identity import Identity
from chaplain.segment.layout import Bytes


class SerializerCore:
    def __init__(
        self,
        settings: ConsensusSettings,
        identity: Identity,
        chance: random.Random,
        execution: Execution,
        *,
        segments: Iterable[tuple[int, Bytes]] = (),
        jot: bytes | None = None,
        standing: bytes | None = None,
        base: LogPosition | None = None,
        first: int = 1,
    ) -> None:
        """Begin from what the disk holds: the log's segments by sequence, the small files next to them, and the message
        that a checkpoint covers, with where the log began then. Votes are signed with the identity, whose public key
        the assembly must have for this node.
        """
        base = base or LogPosition(0, 0, 0, settings.genesis)
        recovered = recover(settings.log, segments, jot, settings.boot, base, first=first)
        found = found_standing(standing, settings.disk, settings.founding_disk, recovered.empty)
        quill = PersistBarrier(settings.node)
        keeper = HardStateStore(found, hard_state_name(settings), quill)
        log = ReplicatedLog(settings, chance, recovered, execution)
        self._recovered: Recovered | None = recovered
        self.bench = self._bench = ConsensusContext(settings, chance, quill, keeper, log)
        self._election = Election(self._bench, identity)
        self._following = Follower(self._bench)
        self._fetcher = Fetcher(self._bench, self._election)
        self._supplying = CatchUpServer(self._bench)
        self._mending = Repair(self._bench)
        self.restocking = Backfill(self._bench)
        self._doubt: VoteRecovery | None = None
        self._office: Master | None = None
        self._dead = False

    # What others may look at.

    @property
    def role(self) -> Role:
        return self._election.role

    @property
    def presides(self) -> bool:
        """It is master: the end of a round is when it proposes."""
        return self._office is not None

    @property
    def standing(self) -> str:
        """What we may claim about our own past, and what is missing here."""
        state = self._bench.keeper.now.state.name.lower()
        if not self.whole or self._bench.missing:
            return f"{state}, messages from {self._bench.log.agreed + 1} on are missing"
        lacking = self.restocking.lacking
        return f"{state}, messages {lacking[0]} to {lacking[-1]} are on their way from others" if lacking else state

    @property
    def regime(self) -> int:
        return self._bench.keeper.regime

    @property
    def agreed(self) -> tuple[int, bytes]:
        """The last agreed index and the chain's hash there."""
        return self._bench.log.agreed, self._bench.log.agreed_hash

    @property
    def reach(self) -> int | None:
        """The furthest index held here, agreed or not; None if we cannot say what we held."""
        sound = self._bench.keeper.sound and self.whole
        return self._bench.log.last()[0] if sound else None

    @property
    def whole(self) -> bool:
        """Nothing that we once held is missing here."""
        return self._bench.log.has_no_gap

    @property
    def full(self) -> bool:
        """The disk has no room: nothing new is held."""
        return not self._bench.room

    def confirms(self, nodes: Collection[int]) -> bool:
        """Whether messages that these nodes call agreed are taken here."""
        return self._fetcher.confirms(nodes)

    def span(self, index: int, bytes_max: int) -> tuple[int, int] | None:
        """Positions of the log that hold agreed messages from this index on; None if the first is not there whole."""
        return None if self._bench.log.index_only else self._bench.log.span(index, bytes_max)

    def deadline(self) -> int | None:
        if self._dead:
            return None
        if self._doubt is not None:
            return soonest((self._bench.mark_due_ns, self._doubt.due_ns))
        seat_ns = None
        if self._office is not None:
            seat_ns = self._office.due_ns
        elif self._election.role is not Role.OUT:
            seat_ns = self._election.due_ns
        others_ns = (self._fetcher.due_ns, self._mending.due_ns, self.restocking.due_ns, self._following.due_ns)
        return soonest((self._bench.mark_due_ns, *others_ns, seat_ns))

    def step(self, now_ns: int, event: OrderInput) -> list[OrderEffect]:
        if self._dead:
            return []
        try:
            self._take(now_ns, event)
            self._tidy(now_ns)
        except Diverged as error:
            self._die(str(error))
        return self._bench.quill.finish()

    def _take(self, now_ns: int, event: OrderInput) -> None:
        bench = self._bench
        match event:
            case Received():
                self._receive(now_ns, event)
            case PayloadArrived():
                self._shelve(now_ns, event)
            case Persisted():
                for proof in bench.quill.persisted(event.ticket):
                    self._prove(now_ns, proof)
            case Drained():
                if self._office is not None:
                    self._office.drained(now_ns)
            case Woken():
                self._wake(now_ns)
            case PeerUp():
                if event.node != bench.settings.node and event.node not in bench.up:
                    bench.up.append(event.node)
                if self._office is not None:
                    self._office.met(event.node)
            case PeerDown():
                if event.node in bench.up:
                    bench.up.remove(event.node)
                self._election.lost(now_ns, event.node)
            case ConfigOffered():
                if self._office is None or not self._office.offer(event):
                    bench.report("configuration entry refused", self._election.master, entry_type=event.entry_type)
            case IngestDrained():
                if self._office is not None:
                    self._office.stages.drained(event.node)
            case LogRead():
                self._mending.damaged(now_ns, self._supplying.read(event))
                self._mending.read(now_ns, event)
            case RecordDamaged():
                self._mending.damaged(now_ns, event.index)
            case SpaceTold():
                self._measure(event)
            case PersistFailed():
                self._die(f"the disk failed: {event.reason}")
            case Stopping():
                bench.leaving = True
                if bench.mark_due_ns is not None:
                    bench.write_mark()  # a node that was removed is to know it when it is started again
            case ConsensusStarted():
                self._start(now_ns)
            case _:
                assert_never(event)

    # Beginning and ending.

    def _start(self, now_ns: int) -> None:
        bench, found = self._bench, self._recovered
        assert found is not None, "started twice"
        self._recovered = None
        bench.quill.say(Resumed(bench.log.agreed, bench.log.agreed_hash))
        if found.regime > bench.keeper.regime:
            bench.keeper.enter(found.regime, NOBODY)
        for index in sorted(found.groups):
            if index <= bench.log.agreed:
                bench.shelf.ordered(body_of(found.groups[index].first)[0].data_entries)
        if found.missing:
            bench.report("damaged: messages are missing and will be fetched", 0, range=found.missing)
        # After a failed sync the page cache holds records that the disk lacks, and the next sync does not write them.
        # So what no sync is known to have confirmed is written again before anything is promised that rests on it.
        bench.quill.write(bench.log.rewrite(found.unproven))
        judge(bench, found)
        if bench.keeper.sound:
            if not found.empty:
                bench.write_mark()  # what was found may not have been synced before: now it will be
            self._election.rest(now_ns)
        else:
            self._election.leave()
            self._doubt = VoteRecovery(bench, self._fetcher, now_ns)

    def _die(self, reason: str) -> None:
        """Nothing that we were about to promise may leave."""
        self._office = None
        self._dead = True
        self._bench.quill.abandon()
        self._election.leave()
        self._bench.report("stopped", 0, reason=reason)
        self._bench.quill.say(Halt(reason))

    def _tidy(self, now_ns: int) -> None:
        """What may follow from any input: an election won, a tenure over, something missing."""
        bench, election = self._bench, self._election
        if bench.log.hash_before_first and self._doubt is None:
            self.restocking.look(now_ns)
        if election.won():
            election.take_office()
            self._office = Master(bench, now_ns, election.proof())
            self._fetcher.stop()
        if self._office is not None:
            if not self._office.over:
                return
            bench.report("tenure over", 0, regime=bench.keeper.regime, reason=self._office.over)
            self._office = None
            election.rest(now_ns)
        if bench.leaving and election.role is not Role.OUT:
            election.leave()
        if self._doubt is None:
            if self._following.lacks(now_ns) or not bench.log.has_no_gap:
                self._fetcher.want(now_ns, election.master)
            elif self._fetcher.due_ns is not None:
                self._fetcher.stop()

    def _wake(self, now_ns: int) -> None:
        self._bench.woken(now_ns)
        self._mending.woken(now_ns)
        self.restocking.woken(now_ns)
        self._following.woken(now_ns)
        if self._doubt is not None:
            self._doubt.woken(now_ns)
        elif self._office is not None:
            self._office.woken(now_ns)
        else:
            self._election.woken(now_ns)

    def _prove(self, now_ns: int, proof: SyncProof) -> None:
        match proof:
            case Stood():
                self._election.stood(proof)
            case ProposalHeld():
                if self._office is not None:
                    self._office.held(now_ns, proof)
            case LogWritten():
                self._bench.log.synced(proof.position, proof.index)
                self._bench.keeper.begin_log()
                self._mending.written(proof.position)
                self.restocking.written(proof.position)
                if self._doubt is not None:
                    self._doubt.durable(now_ns)
            case Regained():
                self._doubt, self._fetcher.tail = None, False
                self._bench.report("sound again", 0, life=proof.life)
                self._election.rest(now_ns)
            case _:
                assert_never(proof)

    # What comes in.

    def _measure(self, event: SpaceTold) -> None:
        bench = self._bench
        room = event.free_bytes >= bench.settings.room_bytes_min
        if room != bench.room:
            bench.report("the disk has room again" if room else "the disk is full", 0, free_bytes=event.free_bytes)
        bench.room = room
        if not room and self._office is not None:
            self._office.over = "the disk is full"

    def _shelve(self, now_ns: int, event: PayloadArrived) -> None:
        if len(event.payload) > self._bench.settings.payload_bytes_max:
            self._bench.report("payload refused: too large", event.reference.node, size_bytes=len(event.payload))
        elif not self._bench.shelf.put(now_ns, event.reference, event.digest, event.payload):
            self._bench.report("payload dropped: the shelf is full", event.reference.node)
        elif self._office is not None:
            self._office.retry(now_ns)
        elif self.role is Role.FOLLOWER:
            self._following.retry(now_ns)

    def _receive(self, now_ns: int, event: Received) -> None:
        try:
            message = decode(event.message)
        except Malformed as wrong:
            self._bench.report("malformed order message", event.node, reason=str(wrong))
            return
        if self._doubt is not None:
            self._learn(now_ns, event.node, message)
        else:
            self._heed(now_ns, event.node, message)

    def _learn(self, now_ns: int, node: int, message: OrderMessage) -> None:
        """Without standing we promise nothing: whatever else is said to us goes by."""
        assert self._doubt is not None
        match message:
            case RecoveryQuestion() | Fetch() | Recall():
                self._supplying.asked(node, message)
            case RecoveryAnswer():
                self._doubt.answered(now_ns, node, message)
            case Supply():
                self._doubt.supplied(now_ns, node, message)
            case _:
                pass

    def _heed(self, now_ns: int, node: int, message: OrderMessage) -> None:
        match message:
            case Propose():
                if self._follow(now_ns, node, message.regime):
                    self._following.proposed(now_ns, node, message)
            case AgreedMark():
                if self._follow(now_ns, node, message.regime):
                    self._following.marked(now_ns, node, message)
                    if message.index > self._bench.log.agreed:
                        self._fetcher.mark(message.index, message.hash)
            case ProposalAck():
                if self._office is not None:
                    self._office.acknowledged(now_ns, node, message)
            case MarkHeard():
                self._election.hear_of(node, message.regime)
                if self._office is not None:
                    self._office.heard(now_ns, node, message)
                else:
                    self._hint(now_ns, node, message.agreed)
            case ElectionProof():
                self._election.shown(node, message)
            case Canvass():
                self._election.asked_canvass(now_ns, node, message)
            case Canvassed():
                self._election.canvassed(now_ns, node, message)
            case AskVote():
                self._election.asked_vote(now_ns, node, message)
                self._unseat()
            case Vote():
                self._election.voted(now_ns, node, message)
            case Fetch() | RecoveryQuestion() | Recall():
                self._supplying.asked(node, message)
            case Supply():
                self._supplied(now_ns, node, message)
            case Recalled():
                self._mending.recalled(node, message)
                self.restocking.recalled(now_ns, node, message)
            case RecoveryAnswer():
                pass
            case Handover():
                if message.regime == self.regime and node == self._election.master:
                    self._election.called(now_ns)
            case _:
                assert_never(message)

    def _follow(self, now_ns: int, node: int, regime: int) -> bool:
        """Whether what a master says is for us to heed. One whose regime is over is told so.

        A node that has not proven its election changes nothing here. It may be master all the same, elected by
        serializers that we do not know yet: so those that we know are asked whether we are behind.
        """
        bench = self._bench
        if regime < bench.keeper.regime:
            bench.quill.tell(node, MarkHeard(bench.keeper.regime, bench.log.last()[0], bench.log.agreed))
            if self._office is None:
                self._fetcher.probe(now_ns)
            return False
        if (regime, node) != self._election.proven and not self._election.is_proven(node, regime):
            if self._office is None:
                self._fetcher.probe(now_ns)
            return False
        if regime == bench.keeper.regime and self._office is not None:
            raise Diverged(f"node {node} and we are both master in regime {regime}")
        if bench.leaving:
            return False
        if node != self._election.master:
            self._fetcher.stop()  # whom we asked may be dead, or had nothing yet: the new master is asked
        self._election.follow(now_ns, node, regime)
        self._unseat()
        return True

    def _unseat(self) -> None:
        """A tenure ends with its regime, whatever ended that."""
        if self._office is not None and self.role is not Role.MASTER:
            self._office = None

    def _supplied(self, now_ns: int, node: int, supply: Supply) -> None:
        if self._office is not None or not self._bench.room:
            return
        self._hint(now_ns, node, supply.agreed)
        self._fetcher.supplied(now_ns, node, supply)
        self._following.retry(now_ns)

    def _hint(self, now_ns: int, node: int, agreed: int) -> None:
        """A node says that messages up to this one are agreed. A serializer is believed so far that we ask others."""
        if self._bench.may_be_master(node):
            self._following.behind = max(self._following.behind, agreed)
        elif agreed > self._bench.log.agreed:
            self._fetcher.probe(now_ns)
