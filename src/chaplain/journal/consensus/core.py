"""The serializer as one state machine: serializers agree on one order of cluster messages.

The core passes each input to the part that it concerns:

    election          which node is master (leader), and in which regime (term)
    master            what the master proposes, and when a proposal is agreed (committed)
    follower          which proposals this node stores and acknowledges
    catch_up          fetches agreed messages that this node lacks
    vote_recovery     whether this node may vote after a restart
    catch_up_server   answers the fetches of other nodes
    repair, backfill  replace damaged records, and fetch the part of the log that a snapshot install skipped

The words of the protocol, for readers of the Raft paper:

    master, regime    leader, term
    Canvass           pre-vote
    Propose           AppendEntries with one entry
    agreed, mark      committed; the commit index, and the heartbeat that carries it
    tail              the one message after the agreed prefix that a log may contain
    ballot            the regime under which a log contains its tail; logs compare by (last index, ballot)
    hard state        the regime and the vote in it, on disk

The core does not know what payloads mean, how peers are reached, or the real time. docs/protocol/journal-order.md has
the protocol and the argument for its safety.

Invariants, besides those of the parts:
- A regime has one master. A node obeys a master only after the master proved its election.
- After the disk has failed, no message that depends on a write leaves this node.
- A node that is not sound only answers recovery questions and fetches.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator
from typing import assert_never

from chaplain.core import Drained, Halt, Persisted, PersistFailed, Stopping, Woken, soonest
from chaplain.errors import Malformed
from chaplain.journal.consensus.backfill import Backfill
from chaplain.journal.consensus.catch_up import Fetcher
from chaplain.journal.consensus.catch_up_server import CatchUpServer
from chaplain.journal.consensus.context import ConsensusContext, Retains
from chaplain.journal.consensus.election import Election
from chaplain.journal.consensus.events import (
    ConfigOffered,
    ConsensusEffect,
    ConsensusInput,
    ConsensusStarted,
    DiskSpace,
    IngestDrained,
    LogRead,
    LogSynced,
    OwnProposalSynced,
    OwnVoteSynced,
    PayloadArrived,
    PeerDown,
    PeerLogRange,
    PeerUp,
    Received,
    RecordDamaged,
    Resumed,
    Role,
    SyncProof,
    VoteRegained,
)
from chaplain.journal.consensus.follower import Diverged, Follower
from chaplain.journal.consensus.hard_state import VOTE_USED, HardStateStore, load_hard_state
from chaplain.journal.consensus.master import Master
from chaplain.journal.consensus.persist_barrier import PersistBarrier
from chaplain.journal.consensus.repair import Repair
from chaplain.journal.consensus.vote_recovery import VoteRecovery, check_recovered_log
from chaplain.journal.messages.cluster import DataEntry
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
from chaplain.journal.storage.last_known_members import LastKnownMembers
from chaplain.journal.storage.log import ReplicatedLog, hard_state_name
from chaplain.journal.storage.records import body_of
from chaplain.journal.storage.recovery import Recovered, recover
from chaplain.link.auth.identity import Identity
from chaplain.segment.layout import Bytes


class SerializerCore:
    """The consensus state machine of one node. Only `step` changes its state."""

    def __init__(
        self,
        settings: ConsensusSettings,
        identity: Identity,
        chance: random.Random,
        execution: Execution,
        *,
        segments: Iterable[tuple[int, Bytes]] = (),
        sync_hint: bytes | None = None,
        hard_state: bytes | None = None,
        base: LogPosition | None = None,
        first: int = 1,
        ordered: Iterable[DataEntry] = (),
        last_known_members: LastKnownMembers | None = None,
        retains: Retains | None = None,
        tokens: Iterator[int] | None = None,
    ) -> None:
        """Start from the contents of the disk. `segments` are the log's files by sequence number. `base` is the last
        message that the checkpoint covers, and `first` the index at which the log began when the checkpoint was taken.
        `ordered` are the last entries of each ingest journal that the checkpoint covers. `tokens` numbers reads of
        the log.

        `identity` signs this node's votes. The cluster configuration must contain its public key for this node.
        """
        base = base or LogPosition(0, 0, 0, settings.genesis)
        recovered = recover(settings.log, segments, sync_hint, settings.boot, base, first=first)
        found = load_hard_state(hard_state, settings.disk, settings.founding_disk, recovered.empty)
        barrier = PersistBarrier(settings.node)
        store = HardStateStore(found, hard_state_name(settings), barrier)
        log = ReplicatedLog(settings, chance, recovered, execution)
        self._recovered: Recovered | None = recovered
        self.context = self._context = ConsensusContext(
            settings, chance, barrier, store, log, last_known_members=last_known_members, retains=retains, tokens=tokens
        )
        self._context.payload_queue.mark_ordered(ordered)
        self._election = Election(self._context, identity)
        self._follower = Follower(self._context)
        self._fetcher = Fetcher(self._context, self._election)
        self._catch_up_server = CatchUpServer(self._context)
        self._repair = Repair(self._context)
        self.backfill = Backfill(self._context)
        self._vote_recovery: VoteRecovery | None = None
        self._master: Master | None = None
        self._stopped = False
        self._prepare_ns: int | None = None
        """When to have the tail prepared; None if there is nothing to prepare."""

    # State for readers outside the core.

    @property
    def role(self) -> Role:
        return self._election.role

    @property
    def is_master(self) -> bool:
        """True while this node is master. A master proposes at the end of a round of inputs (`Drained`)."""
        return self._master is not None

    @property
    def may_propose(self) -> bool:
        """True if this node is master, and no proposal of it is under way."""
        return self._master is not None and not self._master.is_waiting

    @property
    def voting_status(self) -> str:
        """The voting state of this node and the messages that it lacks, for the status page."""
        state = self._context.hard_state.now.state.name.lower()
        if not self.has_no_gap or self._context.missing_payloads:
            return f"{state}, messages from {self._context.log.agreed + 1} on are missing"
        missing = self.backfill.missing
        return f"{state}, messages {missing[0]} to {missing[-1]} are on their way from others" if missing else state

    @property
    def regime(self) -> int:
        return self._context.hard_state.regime

    @property
    def agreed(self) -> tuple[int, bytes]:
        """The agreed mark (commit index): the index of the last agreed message, and the chain hash there."""
        return self._context.log.agreed, self._context.log.agreed_hash

    @property
    def last_index(self) -> int | None:
        """The last index in this log, agreed or not; None if this node may have lost messages that it acknowledged."""
        sound = self._context.hard_state.sound and self.has_no_gap
        return self._context.log.last()[0] if sound else None

    @property
    def has_no_gap(self) -> bool:
        """True if no message is missing before the last one that this log has had."""
        return self._context.log.has_no_gap

    @property
    def disk_full(self) -> bool:
        """True if the disk has less than `room_bytes_min` free. Then this node stores no new message."""
        return not self._context.has_space

    @property
    def has_tail_to_prepare(self) -> bool:
        """True if the tail is on disk and was not prepared yet. The next `Woken` does so, and nothing else."""
        return self._prepare_ns is not None

    def is_confirmed_by(self, nodes: Collection[int]) -> bool:
        """True if the statements of these nodes are enough for this node to accept a message as agreed."""
        return self._fetcher.is_confirmed_by(nodes)

    def span(self, index: int, bytes_max: int) -> tuple[int, int] | None:
        """Positions of the log that contain agreed messages from this index on. None if the first of these messages is
        not on disk with its payloads.
        """
        return None if self._context.log.index_only else self._context.log.span(index, bytes_max)

    def deadline(self) -> int | None:
        if self._stopped:
            return None
        if self._vote_recovery is not None:
            return soonest((self._context.mark_due_ns, self._vote_recovery.due_ns))
        if self._master is not None:
            earliest: int | None = self._master.due_ns
        elif self._election.role is not Role.OUT:
            earliest = self._election.due_ns
        else:
            earliest = None
        others_ns = (self._fetcher.due_ns, self._repair.due_ns, self.backfill.due_ns, self._follower.due_ns)
        for due_ns in (self._context.mark_due_ns, self._prepare_ns, *others_ns):
            if due_ns is not None and (earliest is None or due_ns < earliest):
                earliest = due_ns
        return earliest

    def step(self, now_ns: int, event: ConsensusInput) -> list[ConsensusEffect]:
        if self._stopped:
            return []
        try:
            self._handle(now_ns, event)
            self._after_step(now_ns)
        except Diverged as error:
            self._stop(str(error))
        return self._context.barrier.finish()

    def _handle(self, now_ns: int, event: ConsensusInput) -> None:
        context = self._context
        match event:
            case Received():
                self._receive(now_ns, event)
            case PayloadArrived():
                self._queue_payload(now_ns, event)
            case Persisted():
                for proof in context.barrier.persisted(event.ticket):
                    self._on_synced(now_ns, proof)
            case Drained():
                if self._master is not None:
                    self._master.drained(now_ns)
            case Woken():
                self._wake(now_ns)
            case PeerUp():
                if event.node != context.settings.node and event.node not in context.connected:
                    context.connected.append(event.node)
                if self._master is not None:
                    self._master.on_connected(event.node)
            case PeerDown():
                if event.node in context.connected:
                    context.connected.remove(event.node)
                context.peer_log_ranges.pop(event.node, None)
                self._election.peer_disconnected(now_ns, event.node)
            case PeerLogRange():
                context.peer_log_ranges[event.node] = (event.first, event.last)
            case ConfigOffered():
                if self._master is None or not self._master.offer_config(event):
                    context.report("configuration entry refused", self._election.master, entry_type=event.entry_type)
            case IngestDrained():
                if self._master is not None:
                    self._master.reconfiguration.ingest_drained(event.node)
            case LogRead():
                self._repair.on_damaged(now_ns, self._catch_up_server.on_log_read(event))
                self._repair.on_log_read(now_ns, event)
            case RecordDamaged():
                self._repair.on_damaged(now_ns, event.index)
            case DiskSpace():
                self._on_disk_space(event)
            case PersistFailed():
                self._stop(f"the disk failed: {event.reason}")
            case Stopping():
                context.stopping = True
                if context.mark_due_ns is not None:
                    context.write_mark()  # a removed node must find its removal in the log when it starts again
            case ConsensusStarted():
                self._start(now_ns)
            case _:
                assert_never(event)

    # Start, stop and what follows a step.

    def _start(self, now_ns: int) -> None:
        context, found = self._context, self._recovered
        assert found is not None, "started twice"
        self._recovered = None
        context.barrier.emit(Resumed(context.log.agreed, context.log.agreed_hash))
        if found.regime > context.hard_state.regime:
            # The log contains a later regime than the hard state file. This node may have voted in it, so its vote
            # there counts as used.
            context.hard_state.enter_regime(found.regime, VOTE_USED)
        for index in sorted(found.groups):
            if index <= context.log.agreed:
                context.payload_queue.mark_ordered(body_of(found.groups[index].first)[0].data_entries)
        if found.missing:
            context.report("damaged: messages are missing and will be fetched", 0, range=found.missing)
        # After a failed sync the page cache may hold records that the disk lacks, and a later sync does not write them.
        # So before it votes or acknowledges, the node writes every record again that no sync is known to cover.
        context.barrier.write(context.log.rewrite(found.unproven))
        check_recovered_log(context, found)
        if context.hard_state.sound:
            if not found.empty:
                context.write_mark()  # its sync also covers the records that were found in the log
            self._election.become_follower(now_ns)
        else:
            self._election.stop_voting()
            self._vote_recovery = VoteRecovery(context, self._fetcher, now_ns)

    def _stop(self, reason: str) -> None:
        """Halt for good: discard every message that waits for the disk, because its claim may be false."""
        self._master = None
        self._stopped = True
        self._context.barrier.abandon()
        self._election.stop_voting()
        self._context.report("stopped", 0, reason=reason)
        self._context.barrier.emit(Halt(reason))

    def _after_step(self, now_ns: int) -> None:
        """Handle what any input may cause: a won election, the end of this node's mastership, missing messages."""
        context, election = self._context, self._election
        if context.log.hash_before_first and self._vote_recovery is None:
            self.backfill.start_if_needed(now_ns)
        if election.role is Role.CANDIDATE and election.won():
            election.become_master()
            self._master = Master(context, now_ns, election.proof())
            self._fetcher.stop()
        if self._master is not None:
            if not self._master.end_reason:
                return
            context.report("no longer master", 0, regime=context.hard_state.regime, reason=self._master.end_reason)
            self._master = None
            election.become_follower(now_ns)
        if context.stopping and election.role is not Role.OUT:
            election.stop_voting()
        if self._vote_recovery is None:
            behind = self._follower.agreed_elsewhere > context.log.agreed
            if (behind and self._follower.must_fetch(now_ns)) or not context.log.has_no_gap:
                self._fetcher.fetch(now_ns, election.master)
            elif self._fetcher.due_ns is not None:
                self._fetcher.stop()

    def _wake(self, now_ns: int) -> None:
        if self._prepare_ns is not None:
            self._prepare_ns = None
            self._context.log.prepare_tail()
            return
        self._context.woken(now_ns)
        self._repair.woken(now_ns)
        self.backfill.woken(now_ns)
        self._follower.woken(now_ns)
        if self._vote_recovery is not None:
            self._vote_recovery.woken(now_ns)
        elif self._master is not None:
            self._master.woken(now_ns)
        else:
            self._election.woken(now_ns)

    def _on_synced(self, now_ns: int, proof: SyncProof) -> None:
        """The disk has synced a write: act on what is durable now."""
        match proof:
            case OwnVoteSynced():
                self._election.on_own_vote_synced(proof)
            case OwnProposalSynced():
                if self._master is not None:
                    self._master.on_own_proposal_synced(now_ns, proof)
            case LogSynced():
                self._context.log.synced(proof.position, proof.index)
                self._prepare_tail(now_ns)
                self._context.hard_state.note_log_begun()
                self._repair.on_log_synced(proof.position)
                self.backfill.on_log_synced(proof.position)
                if self._vote_recovery is not None:
                    self._vote_recovery.on_log_synced(now_ns)
            case VoteRegained():
                # The hard state that says "sound" is on disk, so a crash from here on does not need another recovery.
                self._vote_recovery, self._fetcher.include_tail = None, False
                self._context.report("vote recovered", 0, incarnation=proof.incarnation)
                self._election.become_follower(now_ns)
            case _:
                assert_never(proof)

    def _prepare_tail(self, now_ns: int) -> None:
        """The tail is on disk: prepare it while this node waits for others.

        A follower does so in the next step, because its acknowledgement leaves with the effects of this step. A master
        does so in this step, because its proposal has left before its own write.
        """
        if self._master is not None:
            self._context.log.prepare_tail()
        elif self._vote_recovery is None and self._context.log.tail is not None:
            self._prepare_ns = now_ns

    # Payloads, messages and disk space.

    def _on_disk_space(self, event: DiskSpace) -> None:
        context = self._context
        room = event.free_bytes >= context.settings.room_bytes_min
        if room != context.has_space:
            context.report("the disk has room again" if room else "the disk is full", 0, free_bytes=event.free_bytes)
        context.has_space = room
        if not room and self._master is not None:
            self._master.end_reason = "the disk is full"

    def _queue_payload(self, now_ns: int, event: PayloadArrived) -> None:
        if len(event.payload) > self._context.settings.payload_bytes_max:
            self._context.report("payload refused: too large", event.reference.node, size_bytes=len(event.payload))
        elif not self._context.payload_queue.put(now_ns, event.reference, event.digest, event.payload):
            self._context.report("payload dropped: the queue is full", event.reference.node)
        elif self._master is not None:
            self._master.apply_if_agreed(now_ns)
        elif self.role is Role.FOLLOWER:
            self._follower.retry_waiting(now_ns)

    def _receive(self, now_ns: int, event: Received) -> None:
        try:
            message = decode(event.message)
        except Malformed as wrong:
            self._context.report("malformed consensus message", event.node, reason=str(wrong))
            return
        if self._vote_recovery is not None:
            self._dispatch_recovering(now_ns, event.node, message)
        else:
            self._dispatch(now_ns, event.node, message)

    def _dispatch_recovering(self, now_ns: int, node: int, message: OrderMessage) -> None:
        """Handle a message while this node may not vote. Votes and acknowledgements are not possible, so proposals,
        marks and elections are ignored.
        """
        assert self._vote_recovery is not None
        match message:
            case RecoveryQuestion() | Fetch() | Recall():
                self._catch_up_server.on_request(node, message)
            case RecoveryAnswer():
                self._vote_recovery.on_answer(now_ns, node, message)
            case Supply():
                self._vote_recovery.on_supply(now_ns, node, message)
            case _:
                pass

    def _dispatch(self, now_ns: int, node: int, message: OrderMessage) -> None:
        """Handle a message while this node is sound."""
        match message:
            case Propose():
                if self._accept_master(now_ns, node, message.regime):
                    self._follower.on_proposal(now_ns, node, message)
            case AgreedMark():
                if self._accept_master(now_ns, node, message.regime):
                    self._follower.on_mark(now_ns, node, message)
                    if message.index > self._context.log.agreed:
                        self._fetcher.note_mark(message.index, message.hash)
            case ProposalAck():
                if self._master is not None:
                    self._master.on_ack(now_ns, node, message)
            case MarkHeard():
                self._election.note_regime(node, message.regime)
                if self._master is not None:
                    self._master.on_mark_heard(now_ns, node, message)
                else:
                    self._note_agreed_elsewhere(now_ns, node, message.agreed)
            case ElectionProof():
                self._election.check_proof(node, message)
            case Canvass():
                self._election.on_canvass(now_ns, node, message)
            case Canvassed():
                self._election.on_canvassed(now_ns, node, message)
            case AskVote():
                self._election.on_ask_vote(now_ns, node, message)
                self._step_down()
            case Vote():
                self._election.on_vote(now_ns, node, message)
            case Fetch() | RecoveryQuestion() | Recall():
                self._catch_up_server.on_request(node, message)
            case Supply():
                self._on_supply(now_ns, node, message)
            case Recalled():
                self._repair.on_recalled(node, message)
                self.backfill.on_recalled(now_ns, node, message)
            case RecoveryAnswer():
                pass
            case Handover():
                if message.regime == self.regime and node == self._election.master:
                    self._election.on_handover(now_ns)
            case _:
                assert_never(message)

    def _accept_master(self, now_ns: int, node: int, regime: int) -> bool:
        """Return True if this node obeys the sender as master of `regime`; become its follower then.

        A sender of an earlier regime receives this node's regime, so that it steps down. A sender that has not proved
        its election changes nothing here. It may be the master nevertheless, elected by serializers that this node does
        not know yet. This node therefore asks a serializer that it knows for more agreed messages.
        """
        context = self._context
        current = context.hard_state.now.regime
        if regime < current:
            context.barrier.send_now(node, MarkHeard(current, context.log.last()[0], context.log.agreed))
            if self._master is None:
                self._fetcher.probe(now_ns)
            return False
        if (regime, node) != self._election.proven and not self._election.is_proven(node, regime):
            if self._master is None:
                self._fetcher.probe(now_ns)
            return False
        if regime == current and self._master is not None:
            # Two proven masters in one regime need two quorums that share a voter. That voter signed twice, or a disk
            # lost a vote.
            raise Diverged(f"node {node} and this node are both master in regime {regime}")
        if context.stopping:
            return False
        if node != self._election.master:
            self._fetcher.stop()  # the peer asked last may be gone or behind: ask the new master next
        # The regime is written to disk with the next sync, before any acknowledgement in it leaves.
        self._election.follow(now_ns, node, regime)
        self._master = None
        return True

    def _step_down(self) -> None:
        """Stop being master after the election moved this node to another role or regime."""
        if self._master is not None and self.role is not Role.MASTER:
            self._master = None

    def _on_supply(self, now_ns: int, node: int, supply: Supply) -> None:
        if self._master is not None or not self._context.has_space:
            return
        self._note_agreed_elsewhere(now_ns, node, supply.agreed)
        self._fetcher.on_supply(now_ns, node, supply)
        self._follower.retry_waiting(now_ns)

    def _note_agreed_elsewhere(self, now_ns: int, node: int, agreed: int) -> None:
        """A peer reports that messages up to `agreed` are agreed. If the peer is a serializer, this node fetches them.
        After the report of any other member, this node only probes a serializer, because the reported messages may not
        exist.
        """
        if self._context.may_be_master(node):
            self._follower.agreed_elsewhere = max(self._follower.agreed_elsewhere, agreed)
        elif agreed > self._context.log.agreed:
            self._fetcher.probe(now_ns)
