"""The master (leader): proposes one message at a time, counts acknowledgements, and steps down without a quorum.

Decides what is proposed and when a proposal is agreed (committed). Does not know how the node was elected.

A new master sends the signed votes that elected it, then proposes. It sends them again to a node that connects, and
with each heartbeat to a connected node that does not answer.

First it proposes an inherited tail again: the same bytes, under the new regime. Then it proposes one message of its own
regime, which may be empty. Only then it orders new entries. The next proposal states that the one before is agreed. If
there is no next proposal, the master sends an agreed mark.

With index-only serializers, a message with payloads goes to the data holders first. When enough data holders have it on
disk, the master writes it to its own log and proposes it to the serializers.

`reconfiguration` advances changes of the cluster's nodes, after the first message of the regime.

Invariants: one message is in flight. A proposal continues the agreed chain. The message with the Final flag is the last
proposal of a master. A master that has not heard a quorum for `election_ns` steps down (Raft's check-quorum).
"""

from __future__ import annotations

from collections import deque

from chaplain.journal.consensus.acks import PreReplication, ProposalInFlight
from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.consensus.election import LEAP_MAX
from chaplain.journal.consensus.events import ConfigOffered, NeedPayload, OwnProposalSynced
from chaplain.journal.consensus.reconfiguration import Progress, Reconfiguration
from chaplain.journal.messages.cluster import Body, ConfigEntry, DataEntry, Entry, chain_hash, encode_body
from chaplain.journal.messages.consensus import AgreedMark, ElectionProof, Handover, MarkHeard, ProposalAck, Propose
from chaplain.journal.messages.membership import EntryType, Stage, StageStep, encode_step
from chaplain.journal.model.log_entry import LogEntry


class Master:
    """The node as master of one regime. Discarded at the end of it; the tail stays in the log for the next master."""

    def __init__(self, context: ConsensusContext, now_ns: int, proof: ElectionProof) -> None:
        self._context = context
        self._proof = proof
        self._regime = context.hard_state.regime
        self._in_flight: ProposalInFlight | None = None
        """The proposal that waits for a quorum."""
        self._pre_replication: PreReplication | None = None
        """The message that waits for copies on data holders."""
        self._too_few_holders = False
        """True if payloads wait because too few data holders are reachable. Reported once."""
        self._own_proposed = False
        """A message of this regime has been proposed."""
        self._final_proposed = False
        """The message with the Final flag, the last of this regime, has been proposed."""
        self._mark_due_ns: int | None = None
        """When to send the agreed mark for the last message."""
        self._config_entries: deque[ConfigEntry] = deque()
        """Configuration entries that wait to be ordered."""
        self._progress = Progress(now_ns)
        self.reconfiguration = Reconfiguration(context, self._progress)
        self.heartbeat_due_ns = now_ns + context.settings.heartbeat_ns
        """When the next heartbeat is due."""
        self._handover_ns: int | None = None
        """The latest time of the handover; set when the last message is agreed."""
        self.end_reason = ""
        """Why this node stopped being master; empty while it is."""
        context.broadcast(proof)  # first: nodes ignore proposals of a master that has not proved its election
        if context.log.tail is not None:
            self._repropose_tail()
        else:
            self._propose(now_ns, ())

    @property
    def due_ns(self) -> int:
        return self.heartbeat_due_ns if self._mark_due_ns is None else min(self.heartbeat_due_ns, self._mark_due_ns)

    # Proposals.

    def _repropose_tail(self) -> None:
        """Propose the inherited tail again under this regime. Its bytes stay the same, because it may be agreed
        already: a quorum may have stored it without this node's knowledge.
        """
        log = self._context.log
        self._context.barrier.write(log.restamp(self._regime))
        assert log.tail is not None
        self._send_proposal(log.tail)

    def _propose(self, now_ns: int, entries: tuple[Entry, ...], final: bool = False) -> None:
        context, log = self._context, self._context.log
        assert self._in_flight is None, "a message was proposed while another was in flight"
        assert self._pre_replication is None, "a message was proposed while another was being replicated"
        # At most one message behind the agreed prefix: so everything below the last index of any log is agreed, and
        # logs can be compared by their last message alone.
        assert log.tail is None, "a message was proposed before the last one was agreed"
        assert not self._final_proposed, "a message was proposed after the regime's last"
        body = Body(
            regime=self._regime,
            index=log.agreed + 1,
            master=context.settings.node,
            timestamp_ns=max(now_ns, log.agreed_ns + 1),
            previous=log.agreed_hash,
            entries=entries,
            final=final,
        )
        raw = encode_body(body)
        message = LogEntry(
            body, raw, chain_hash(body.previous, raw), self._regime, context.payload_queue.get(body.data_entries)
        )
        self._own_proposed, self._final_proposed = True, final
        self._mark_due_ns = context.mark_due_ns = None
        if log.copies and message.entries:
            self._begin_pre_replication(now_ns, message)
        else:
            self._store_and_send(message)

    def _begin_pre_replication(self, now_ns: int, message: LogEntry) -> None:
        self._pre_replication = PreReplication(now_ns, message, self._context.data_holders, self._context.log.copies)
        for peer in self._pre_replication.missing_nodes:
            self._context.barrier.send_now(peer, Propose(self._regime, message.index, message.raw))

    def _store_and_send(self, message: LogEntry) -> None:
        self._context.barrier.write(self._context.log.store(message))
        self._send_proposal(message)

    def _send_proposal(self, message: LogEntry) -> None:
        """Send a stored message to all members, and count this node's copy once it is on disk."""
        context = self._context
        # The quorum is that of the configuration at the agreed prefix. During a change of serializers it is joint, a
        # majority of the old set and of the new one, so neither set can agree on a message alone.
        self._in_flight = ProposalInFlight(self._regime, message.index, message.hash, context.quorum)
        context.broadcast(Propose(self._regime, message.index, message.raw))
        # The proposal leaves before this node's own write is synced. That is safe, because the master counts its own
        # copy only after the sync, like any other acknowledgement.
        synced = OwnProposalSynced(self._regime, message.index, message.hash)
        context.barrier.write((), synced, context.log_synced_proof())

    def offer_config(self, offered: ConfigOffered) -> bool:
        """Queue a configuration entry; False if the queue is full, the entry is too large, or the regime is ending."""
        settings = self._context.settings
        if len(self._config_entries) >= settings.config_entries_max or len(offered.data) > settings.config_bytes_max:
            return False
        if self._final_proposed:
            return False
        self._config_entries.append(ConfigEntry(offered.entry_type, offered.stage, offered.data))
        return True

    def drained(self, now_ns: int) -> None:
        """At the end of a round: propose the next message, or send the agreed mark if it is due."""
        context = self._context
        if (
            self._in_flight is not None
            or self._pre_replication is not None
            or self.end_reason
            or self._handover_ns is not None
        ):
            return
        may_order = self._own_proposed and not self._final_proposed
        step = self.reconfiguration.next_step(now_ns) if may_order and not context.stopping else None
        if step is not None:
            self._propose_stage(now_ns, step)
            return
        entries = self._choose_entries(now_ns) if may_order else ()
        if not self._own_proposed or entries:
            self._propose(now_ns, entries)
        elif context.stopping and not self._final_proposed:
            self._propose(now_ns, (), final=True)
        elif self._mark_due_ns is not None and now_ns >= self._mark_due_ns:
            self._mark_due_ns = None
            context.broadcast(self._agreed_mark())

    def _propose_stage(self, now_ns: int, step: StageStep) -> None:
        """Propose a stage of a change, alone in its message. The message is the last of this regime if another node is
        to be master after it.
        """
        node, new_set = self._context.settings.node, step.entry_type is EntryType.NEW_SERIALIZER_SET
        passes = new_set and step.stage is Stage.IMPLEMENT and step.nodes[0] != node
        leaves = new_set and step.stage is Stage.CONFIRM and node not in step.nodes
        self._context.report("stage", 0, change=step.entry_type.name.lower(), stage=step.stage.name.lower())
        entry = ConfigEntry(step.entry_type, step.stage, encode_step(step))
        self._propose(now_ns, (entry,), final=passes or leaves)

    def _choose_entries(self, now_ns: int) -> tuple[Entry, ...]:
        settings = self._context.settings
        offers, self._config_entries = self._config_entries, deque()
        if self._context.log.copies and (offers or not self._has_enough_holders(now_ns)):
            # Configuration entries have no payloads. They need no copies, and must not wait for any.
            return tuple(offers)
        return (*offers, *self._context.payload_queue.choose(settings.order_entries_bound, settings.order_bytes_bound))

    def _has_enough_holders(self, now_ns: int) -> bool:
        """True if as many data holders were heard within `election_ns` as there must be copies."""
        context, progress = self._context, self._progress
        lately_ns = now_ns - context.settings.election_ns
        heard = sum(
            progress.has_heard(node) and progress.last_heard_ns(node) > lately_ns for node in context.data_holders
        )
        few = heard < context.log.copies and context.payload_queue.size_bytes > 0
        if few and not self._too_few_holders:
            context.report(
                "too few data holders are reachable: nothing is ordered", 0, here=heard, copies=context.log.copies
            )
        self._too_few_holders = few
        return heard >= context.log.copies

    def _agreed_mark(self) -> AgreedMark:
        return AgreedMark(self._regime, self._context.log.agreed, self._context.log.agreed_hash)

    # Acknowledgements and agreed messages.

    def on_own_proposal_synced(self, now_ns: int, proof: OwnProposalSynced) -> None:
        """The master's own copy is on disk: it counts like an acknowledgement."""
        now = self._context.hard_state.now
        own = ProposalAck(proof.regime, proof.index, proof.hash, now.incarnation, now.incarnations)
        self._count_ack(now_ns, self._context.settings.node, own)

    def on_ack(self, now_ns: int, node: int, message: ProposalAck) -> None:
        if message.regime == self._regime:
            self._progress.record(now_ns, node, message.index)
            self._try_handover(now_ns)
        pre_replication = self._pre_replication
        if pre_replication is not None:
            pre_replication.add_ack(node, message)
            if pre_replication.is_complete:
                self._pre_replication = None
                self._store_and_send(pre_replication.message)
        self._count_ack(now_ns, node, message)

    def _count_ack(self, now_ns: int, node: int, message: ProposalAck) -> None:
        in_flight = self._in_flight
        if in_flight is None:
            return
        in_flight.add_ack(node, message)
        self.apply_if_agreed(now_ns)

    def apply_if_agreed(self, now_ns: int) -> None:
        """If a quorum has acknowledged the message in flight, it is agreed: apply it. An index-only serializer may have
        to wait for the payloads first.
        """
        in_flight = self._in_flight
        if in_flight is None or not in_flight.tally.reached(self._context.hard_state.now.incarnations):
            return
        delay_ns = self._mark_delay_ns()
        if self._apply_tail(now_ns):
            self._in_flight = None
            self._mark_due_ns = now_ns + delay_ns
            if self._final_proposed or self._context.settings.node not in self._context.quorum.voters:
                self._hand_over(now_ns)

    def _mark_delay_ns(self) -> int:
        """The delay before the agreed mark is sent. It is zero if the message contains configuration, or entries of
        another ingest node, whose clients wait for their receipts.
        """
        tail, settings = self._context.log.tail, self._context.settings
        assert tail is not None
        for entry in tail.body.entries:
            if not isinstance(entry, DataEntry) or entry.reference.node != settings.node:
                return 0
        return settings.tell_ns

    def _apply_tail(self, now_ns: int) -> bool:
        context = self._context
        before = context.peers
        if not context.apply_tail(now_ns):
            return False
        after = context.peers
        for node in before if after is not before else ():
            if node not in after:
                # The message removed this node. The mark is the last thing that it receives.
                context.barrier.send_now(node, self._agreed_mark())
        return True

    def _hand_over(self, now_ns: int) -> None:
        """The last message is agreed: let another node become master. A chosen successor gets `handover_ns` to catch
        up.
        """
        self._context.broadcast(self._agreed_mark())
        self._mark_due_ns = None
        self._handover_ns = now_ns + self._context.settings.handover_ns
        self._try_handover(now_ns)

    def _try_handover(self, now_ns: int) -> None:
        """Hand over to the successor once it has all agreed messages, or at the latest after `handover_ns`."""
        if self._handover_ns is None or self.end_reason:
            return
        context = self._context
        successors, first = self._successors()
        last_index, agreed = self._progress.last_index, context.log.agreed
        if first in context.connected and last_index(first) < agreed and now_ns < self._handover_ns:
            self.heartbeat_due_ns = min(self.heartbeat_due_ns, self._handover_ns)
            return
        ready = [peer for peer in successors if peer in context.connected]
        if ready:
            # The chosen successor if it has caught up, otherwise the node with the longest log.
            best = max(ready, key=lambda peer: (peer == first and last_index(peer) >= agreed, last_index(peer), -peer))
            context.barrier.send_now(best, Handover(self._regime, agreed))
        self.end_reason = "handed over"

    def _successors(self) -> tuple[tuple[int, ...], int]:
        """The nodes that may be master next, and the one that was chosen (0 if none was)."""
        context, config = self._context, self._context.log.cluster_config
        change = config.new_set
        if change is not None and change.stage == Stage.IMPLEMENT:
            return change.nodes, change.nodes[0]
        return context.other_voters, config.serializers[0] if context.settings.node not in context.quorum.voters else 0

    # Heartbeats and the end of the mastership.

    def on_connected(self, node: int) -> None:
        """A node connected. It may have restarted, and lack the proof of this election."""
        self._context.barrier.send_now(node, self._proof)

    def on_mark_heard(self, now_ns: int, node: int, message: MarkHeard) -> None:
        """Process the answer to a mark: the follower's last index, or a later regime."""
        if message.regime > self._regime:
            # A member without a vote cannot depose a master: a quorum works without it.
            if node in self._context.other_voters and message.regime - self._regime <= LEAP_MAX:
                self.end_reason = f"node {node} is in regime {message.regime}"
        elif message.regime == self._regime:
            self._progress.record(now_ns, node, message.index)
            self._try_handover(now_ns)

    def woken(self, now_ns: int) -> None:
        if now_ns < self.heartbeat_due_ns:
            self.drained(now_ns)
            return
        settings = self._context.settings
        self.heartbeat_due_ns = now_ns + settings.heartbeat_ns
        self._try_handover(now_ns)
        if self.end_reason:
            return
        context = self._context
        # Check-quorum: a master that is cut off from a majority cannot agree on anything. It steps down, so that its
        # clients look for another node.
        since_ns = now_ns - settings.election_ns
        heard = [node for node in context.other_voters if self._progress.last_heard_ns(node) > since_ns]
        if not context.quorum.reached([*heard, settings.node]):
            self.end_reason = "no quorum was heard for the election timeout"
            return
        if self._pre_replication is not None and now_ns - self._pre_replication.since_ns >= settings.patience_ns:
            self.end_reason = "too few data holders acknowledged a message in time"
            return
        self.apply_if_agreed(now_ns)
        self._send_heartbeat(now_ns)

    def _send_heartbeat(self, now_ns: int) -> None:
        """Send the mark to all members, and repeat messages that may have been lost."""
        context, in_flight = self._context, self._in_flight
        for peer in context.peers:
            # A follower answers marks. A connected node that does not answer may lack the proof of this election.
            silent = now_ns - self._progress.last_heard_ns(peer) > 2 * context.settings.heartbeat_ns
            if peer in context.connected and (silent or not self._progress.has_heard(peer)):
                context.barrier.send_now(peer, self._proof)
        context.broadcast(self._agreed_mark())
        for reference in context.payload_queue.gaps(context.settings.gaps_max):
            context.barrier.emit(NeedPayload(reference, b"", 0))
        if self._pre_replication is not None:
            for peer in self._pre_replication.missing_nodes:
                message = self._pre_replication.message
                context.barrier.send_now(peer, Propose(self._regime, message.index, message.raw))
        tail = context.log.tail
        if in_flight is None or tail is None:
            return
        voters = context.other_voters
        for peer in context.peers:
            # Voters must acknowledge this proposal. Other members only need the message.
            lacks = peer not in in_flight.tally if peer in voters else self._progress.last_index(peer) < tail.index
            if lacks:
                context.barrier.send_now(peer, Propose(self._regime, tail.index, tail.raw))
