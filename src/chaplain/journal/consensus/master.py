"""What a master does: propose one message at a time, count, and make sure that it still is master.

Decides what is proposed and when a proposal is agreed. Refuses to know how it was elected.

On taking office a master shows the votes that elected it, then proposes. It shows them again to a node that connects,
and with every heartbeat to one that does not answer. An inherited tail is proposed again, the same bytes under the new
regime; then one message of the regime's own, perhaps empty; only then anything else. The next message says that the one
before is agreed; if there is none, a mark does.

Where serializers are index-only, a message that refers to payloads goes first to the nodes that hold data; when so many
as there must be copies have it on disk, and not before, it is proposed to the serializers and written down here.

A change of the cluster's nodes goes on stage by stage (`stages`), after the regime's own first message.

Invariants: one message in flight; what is proposed continues the agreed chain; nothing is proposed after Final; a
master that has not heard a quorum for the election time-out steps down.
"""

from __future__ import annotations

from collections import deque

from chaplain.journal.consensus.acks import InFlight, PreReplication
from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.consensus.election import LEAP_MAX
from chaplain.journal.consensus.events import ConfigOffered, NeedPayload, ProposalHeld
from chaplain.journal.consensus.reconfiguration import Progress, Reconfiguration
from chaplain.journal.messages.cluster import Body, ConfigEntry, DataEntry, Entry, chain_hash, encode_body
from chaplain.journal.messages.consensus import AgreedMark, ElectionProof, Handover, MarkHeard, ProposalAck, Propose
from chaplain.journal.messages.membership import EntryType, Stage, StageStep, encode_step
from chaplain.journal.model.log_entry import LogEntry


class Master:
    """One tenure. Thrown away when it ends; the tail stays in the log, for the next master."""

    def __init__(self, bench: ConsensusContext, now_ns: int, proof: ElectionProof) -> None:
        self._bench = bench
        self._proof = proof
        self._regime = bench.keeper.regime
        self._flight: InFlight | None = None
        self._spreading: PreReplication | None = None
        self._few = False
        """Payloads wait, and too few nodes that hold data are here."""
        self._opened = False
        """A message of this regime has been proposed."""
        self._closed = False
        """Final has been proposed."""
        self._mark_due_ns: int | None = None
        """When the others are to be told that the last message is agreed."""
        self._offers: deque[ConfigEntry] = deque()
        self._watch = Progress(now_ns)
        self.stages = Reconfiguration(bench, self._watch)
        self.beat_ns = now_ns + bench.settings.heartbeat_ns
        self._leave_ns: int | None = None
        """When we hand over at the latest, once our last message is agreed."""
        self.over = ""
        """Why the tenure has ended, once it has."""
        bench.tell_all(proof)  # nobody heeds a proposal before it
        if bench.log.tail is not None:
            self._propose_again()
        else:
            self._propose(now_ns, ())

    @property
    def due_ns(self) -> int:
        return self.beat_ns if self._mark_due_ns is None else min(self.beat_ns, self._mark_due_ns)

    # Proposing.

    def _propose_again(self) -> None:
        log = self._bench.log
        self._bench.quill.write(log.restamp(self._regime))
        assert log.tail is not None
        self._fly(log.tail)

    def _propose(self, now_ns: int, entries: tuple[Entry, ...], final: bool = False) -> None:
        bench, log = self._bench, self._bench.log
        assert self._flight is None, "a message was proposed while another was in flight"
        assert self._spreading is None, "a message was proposed while another was on its way"
        assert log.tail is None, "a message was proposed before the last one was agreed"
        assert not self._closed, "a message was proposed after the regime's last"
        body = Body(
            regime=self._regime,
            index=log.agreed + 1,
            master=bench.settings.node,
            timestamp_ns=max(now_ns, log.agreed_ns + 1),
            previous=log.agreed_hash,
            entries=entries,
            final=final,
        )
        raw = encode_body(body)
        message = LogEntry(body, raw, chain_hash(body.previous, raw), self._regime, bench.shelf.get(body.data_entries))
        self._opened, self._closed = True, final
        self._mark_due_ns = bench.mark_due_ns = None
        if log.copies and message.entries:
            self._spread(now_ns, message)
        else:
            self._put_forward(message)

    def _spread(self, now_ns: int, message: LogEntry) -> None:
        self._spreading = PreReplication(now_ns, message, self._bench.holders, self._bench.log.copies)
        for peer in self._spreading.lacking:
            self._bench.quill.tell(peer, Propose(self._regime, message.index, message.raw))

    def _put_forward(self, message: LogEntry) -> None:
        self._bench.quill.write(self._bench.log.store(message))
        self._fly(message)

    def _fly(self, message: LogEntry) -> None:
        bench = self._bench
        self._flight = InFlight(self._regime, message.index, message.hash, bench.quorum)
        bench.tell_all(Propose(self._regime, message.index, message.raw))
        bench.quill.write((), ProposalHeld(self._regime, message.index, message.hash), bench.written())

    def offer(self, offered: ConfigOffered) -> bool:
        settings = self._bench.settings
        if len(self._offers) >= settings.config_entries_max or len(offered.data) > settings.config_bytes_max:
            return False
        if self._closed:
            return False
        self._offers.append(ConfigEntry(offered.entry_type, offered.stage, offered.data))
        return True

    def drained(self, now_ns: int) -> None:
        """Form the next message of whatever is there; if nothing is, say that the last one is agreed."""
        bench = self._bench
        if self._flight is not None or self._spreading is not None or self.over or self._leave_ns is not None:
            return
        step = self.stages.due(now_ns) if self._opened and not self._closed and not bench.leaving else None
        if step is not None:
            self._advance(now_ns, step)
            return
        entries = self._choose(now_ns) if self._opened and not self._closed else ()
        if not self._opened or entries:
            self._propose(now_ns, entries)
        elif bench.leaving and not self._closed:
            self._propose(now_ns, (), final=True)
        elif self._mark_due_ns is not None and now_ns >= self._mark_due_ns:
            self._mark_due_ns = None
            bench.tell_all(self._mark())

    def _advance(self, now_ns: int, step: StageStep) -> None:
        """Order a stage, alone in its message. With it our regime ends, if somebody else is to be master then."""
        node, new_set = self._bench.settings.node, step.entry_type is EntryType.NEW_SERIALIZER_SET
        passes = new_set and step.stage is Stage.IMPLEMENT and step.nodes[0] != node
        leaves = new_set and step.stage is Stage.CONFIRM and node not in step.nodes
        self._bench.report("stage", 0, change=step.entry_type.name.lower(), stage=step.stage.name.lower())
        entry = ConfigEntry(step.entry_type, step.stage, encode_step(step))
        self._propose(now_ns, (entry,), final=passes or leaves)

    def _choose(self, now_ns: int) -> tuple[Entry, ...]:
        settings = self._bench.settings
        offers, self._offers = self._offers, deque()
        if self._bench.log.copies and (offers or not self._may_spread(now_ns)):
            return tuple(offers)  # configuration needs no copies, and must not wait for any
        return (*offers, *self._bench.shelf.choose(settings.order_entries_bound, settings.order_bytes_bound))

    def _may_spread(self, now_ns: int) -> bool:
        """Whether so many nodes that hold data were heard lately as there must be copies."""
        bench, watch = self._bench, self._watch
        lately_ns = now_ns - bench.settings.election_ns
        near = sum(watch.spoke(node) and watch.heard_ns(node) > lately_ns for node in bench.holders)
        few = near < bench.log.copies and bench.shelf.size_bytes > 0
        if few and not self._few:
            bench.report("too few nodes that hold data: nothing is ordered", 0, here=near, copies=bench.log.copies)
        self._few = few
        return near >= bench.log.copies

    def _mark(self) -> AgreedMark:
        return AgreedMark(self._regime, self._bench.log.agreed, self._bench.log.agreed_hash)

    # Counting.

    def held(self, now_ns: int, proof: ProposalHeld) -> None:
        """Our own copy is on disk: it counts like any other."""
        now = self._bench.keeper.now
        own = ProposalAck(proof.regime, proof.index, proof.hash, now.life, now.lives)
        self._count(now_ns, self._bench.settings.node, own)

    def acknowledged(self, now_ns: int, node: int, message: ProposalAck) -> None:
        if message.regime == self._regime:
            self._watch.hear(now_ns, node, message.index)
            self._pass_on(now_ns)
        spreading = self._spreading
        if spreading is not None:
            spreading.acknowledged(node, message)
            if spreading.enough:
                self._spreading = None
                self._put_forward(spreading.message)
        self._count(now_ns, node, message)

    def _count(self, now_ns: int, node: int, message: ProposalAck) -> None:
        flight = self._flight
        if flight is None:
            return
        flight.acknowledged(node, message)
        self.retry(now_ns)

    def retry(self, now_ns: int) -> None:
        """The message in flight is agreed, if it is: then it is settled, once its payloads are here."""
        flight = self._flight
        if flight is None or not flight.tally.reached(self._bench.keeper.now.lives):
            return
        calm_ns = self._calm_ns()
        if self._settle(now_ns):
            self._flight = None
            self._mark_due_ns = now_ns + calm_ns
            if self._closed or self._bench.settings.node not in self._bench.quorum.voters:
                self._hand_over(now_ns)

    def _calm_ns(self) -> int:
        """How long the others may do without knowing: not at all, if one of their clients waits for it."""
        tail, settings = self._bench.log.tail, self._bench.settings
        assert tail is not None
        for entry in tail.body.entries:
            if not isinstance(entry, DataEntry) or entry.reference.node != settings.node:
                return 0
        return settings.tell_ns

    def _settle(self, now_ns: int) -> bool:
        bench = self._bench
        before = bench.peers
        if not bench.settle_tail(now_ns):
            return False
        after = bench.peers
        for node in before if after is not before else ():
            if node not in after:
                bench.quill.tell(node, self._mark())  # the last it hears of us: it is removed
        return True

    def _hand_over(self, now_ns: int) -> None:
        """Our last message is agreed: let another go on; one who was chosen is given a moment to get there."""
        self._bench.tell_all(self._mark())
        self._mark_due_ns = None
        self._leave_ns = now_ns + self._bench.settings.handover_ns
        self._pass_on(now_ns)

    def _pass_on(self, now_ns: int) -> None:
        if self._leave_ns is None or self.over:
            return
        bench = self._bench
        heirs, first = self._heirs()
        if first in bench.up and self._reach(first) < bench.log.agreed and now_ns < self._leave_ns:
            self.beat_ns = min(self.beat_ns, self._leave_ns)
            return
        ready = [peer for peer in heirs if peer in bench.up]
        if ready:
            there = bench.log.agreed
            best = max(ready, key=lambda peer: (peer == first and self._reach(peer) >= there, self._reach(peer), -peer))
            bench.quill.tell(best, Handover(self._regime, there))
        self.over = "handed over"

    def _heirs(self) -> tuple[tuple[int, ...], int]:
        """Who may be master after us, and who was chosen to be."""
        bench, assembly = self._bench, self._bench.log.cluster_config
        change = assembly.new_set
        if change is not None and change.stage == Stage.IMPLEMENT:
            return change.nodes, change.nodes[0]
        return bench.voters, assembly.serializers[0] if bench.settings.node not in bench.quorum.voters else 0

    def _reach(self, node: int) -> int:
        return self._watch.reach(node)

    # Staying.

    def met(self, node: int) -> None:
        """A node connected: it may have been started anew, and lack the proof of our election."""
        self._bench.quill.tell(node, self._proof)

    def heard(self, now_ns: int, node: int, message: MarkHeard) -> None:
        if message.regime > self._regime:
            # A member without a vote cannot depose us: a quorum goes on without it.
            if node in self._bench.voters and message.regime - self._regime <= LEAP_MAX:
                self.over = f"node {node} is in regime {message.regime}"
        elif message.regime == self._regime:
            self._watch.hear(now_ns, node, message.index)
            self._pass_on(now_ns)

    def woken(self, now_ns: int) -> None:
        if now_ns < self.beat_ns:
            self.drained(now_ns)
            return
        settings = self._bench.settings
        self.beat_ns = now_ns + settings.heartbeat_ns
        self._pass_on(now_ns)
        if self.over:
            return
        bench = self._bench
        near = [node for node in bench.voters if now_ns - self._watch.heard_ns(node) < settings.election_ns]
        if not bench.quorum.reached([*near, settings.node]):
            self.over = "no quorum was heard for the election time-out"
            return
        if self._spreading is not None and now_ns - self._spreading.since_ns >= settings.patience_ns:
            self.over = "too few nodes that hold data have taken a message"
            return
        self.retry(now_ns)
        self._beat(now_ns)

    def _beat(self, now_ns: int) -> None:
        """Tell everybody that we are here, and tell again what may have been lost."""
        bench, flight = self._bench, self._flight
        for peer in bench.peers:
            # A node that follows us answers every mark. One that is connected and does not answer may lack the proof.
            silent = now_ns - self._watch.heard_ns(peer) > 2 * bench.settings.heartbeat_ns
            if peer in bench.up and (silent or not self._watch.spoke(peer)):
                bench.quill.tell(peer, self._proof)
        bench.tell_all(self._mark())
        for reference in bench.shelf.gaps(bench.settings.gaps_max):
            bench.quill.say(NeedPayload(reference, b"", 0))
        if self._spreading is not None:
            for peer in self._spreading.lacking:
                bench.quill.tell(
                    peer, Propose(self._regime, self._spreading.message.index, self._spreading.message.raw)
                )
        tail = bench.log.tail
        if flight is None or tail is None:
            return
        voters = bench.voters
        for peer in bench.peers:
            lacks = peer not in flight.tally if peer in voters else self._reach(peer) < tail.index
            if lacks:
                bench.quill.tell(peer, Propose(self._regime, tail.index, tail.raw))
