"""The journal of one node: ingest, serializer, execution and what clients ask, as one core.

Decides who gets what: each effect of a part is either the node's, or an input of another part. Knows sessions: which
instance is which founding node, and which client has which identity. All else is decided in the parts.

Invariants: a receipt leaves only after its message was agreed and executed here; tickets and tokens of the parts never
meet; the first input is `ConsensusStarted`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import assert_never

from chaplain.core import Drained, Halt, Persist, Persisted, PersistFailed, Report, Stopping, Woken, soonest
from chaplain.errors import Malformed
from chaplain.journal.clients.sessions import ClienteleEffect, make_clientele
from chaplain.journal.consensus.core import SerializerCore
from chaplain.journal.consensus.events import (
    Agreed,
    ConfigOffered,
    ConsensusStarted,
    IngestDrained,
    LogRead,
    NeedPayload,
    OrderEffect,
    OrderInput,
    PayloadArrived,
    PeerDown,
    PeerUp,
    ReadLog,
    Received,
    RecordDamaged,
    Resumed,
    Role,
    RoleChanged,
    SpaceTold,
    Tell,
)
from chaplain.journal.events import (
    AckCame,
    IngestDropped,
    IngestEffect,
    IngestInput,
    JournalEffect,
    JournalInput,
    JournalParcel,
    Ordered,
    PacksPromoted,
    PackWritten,
    PayloadCame,
    PayloadWanted,
    Rehearse,
    Rehearsed,
    SessionClosed,
    SessionOpened,
    ToClient,
    ToPeer,
    Verified,
    Verify,
)
from chaplain.journal.execution.local_roles import LocalRoles
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.ingest.core import IngestCore
from chaplain.journal.messages import client
from chaplain.journal.messages import peer as peer_messages
from chaplain.journal.messages.signing import Wrapping, holds
from chaplain.journal.model.bootstrap import ClusterBootstrap
from chaplain.journal.model.results import AppliedMessage
from chaplain.journal.outbound import JournalOutbound
from chaplain.journal.peers import PeerTable, whereabouts
from chaplain.journal.settings import JournalSettings
from chaplain.journal.snapshots.fingerprints import Fingerprints
from chaplain.journal.snapshots.service import SnapshotService, base_of, found_checkpoint
from chaplain.journal.storage.last_known_members import LastKnownMembersStore, read_last_known_members
from chaplain.journal.storage.offset_index import StreamIndex
from chaplain.journal.ticket_numbers import TicketNumbers
from chaplain.link.auth.identity import Identity
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered, Exited, Expel
from chaplain.segment.layout import Bytes
from chaplain.wire.parcel import Parcel


class JournalCore:
    def __init__(
        self,
        settings: JournalSettings,
        founding: ClusterBootstrap,
        chance: random.Random,
        *,
        identity: Identity,
        identifier: int,
        segments: Iterable[tuple[int, Bytes]] = (),
        jot: bytes | None = None,
        standing: bytes | None = None,
        ingest: bytes | None = None,
        checkpoint: bytes | None = None,
        roster: bytes | None = None,
        wrapping: Wrapping | None = None,
        watch: Callable[[AppliedMessage], None] | None = None,
    ) -> None:
        """Begin from what the disk holds, which `watch` is told first. `identity` signs this node's votes; `identifier`
        is its name in parcels.
        """
        self.settings = settings
        self._streams = StreamIndex()
        self._news: deque[AppliedMessage] = deque()
        self._started = False
        self.removed = False
        self._watcher = watch
        found = found_checkpoint(founding, checkpoint)
        snapshot, first = (None, 1) if found is None else (found.state, found.first)
        self.execution = JournalExecution(founding, wrapping=wrapping, snapshot=snapshot, on_applied=self._watch)
        self.milestones = Fingerprints(self.execution.fingerprint)
        state = self.execution.state
        self.base = base_of(state)
        self._streams.load_heads({name: tail.next_offset for name, tail in state.streams.items()})
        self.covering = SnapshotService(settings, self.execution, self._streams)
        self.serializer = SerializerCore(
            settings.order,
            identity,
            chance,
            self.execution,
            segments=segments,
            jot=jot,
            standing=standing,
            base=state.position,
            first=first,
        )
        self._roster = LastKnownMembersStore(read_last_known_members(roster), founding.cluster_config())
        self.serializer.bench.roster = self._roster.latest
        self.covering.attach(self.serializer.bench, found, self.serializer.confirms)
        self.ingest = IngestCore(settings, chance, self.execution, ingest)
        self._clientele = make_clientele(
            settings,
            self.execution,
            self.ingest,
            streams=self._streams,
            locate=self.serializer.span,
            chance=chance,
            wrapping=wrapping,
        )
        self._petitions = self._clientele.petitions
        self._reading = self._clientele.reading
        self._reading.lacks = self.serializer.restocking.lacks
        self.covering.checkpointer.first_needed_by.append(self._reading.first_needed)
        self._promotion = self._clientele.promotion
        self._nodes = PeerTable(self.execution.cluster_config, self._roster.latest.nodes)
        self._seat = LocalRoles(settings, self.execution)
        self._slips = TicketNumbers()
        self._out: list[JournalEffect] = []
        self._mail = JournalOutbound(self._out, identifier, self._nodes, self._clientele)

    def _watch(self, executed: AppliedMessage) -> None:
        self._streams.add(executed)
        self.covering.on_applied(executed)
        if self._started:
            self._news.append(executed)
            self.milestones.on_applied(executed.position.index)
        if self._watcher is not None:
            self._watcher(executed)

    @property
    def streams(self) -> StreamIndex:
        """Which streams there are, and how long they are."""
        return self._streams

    def first_offset(self, stream: str) -> int:
        """The first of a stream that is kept here."""
        return self._streams.first_offset(stream)

    def deadline(self) -> int | None:
        parts = (self._clientele, self.covering, self._seat)
        return soonest((self.serializer.deadline(), self.ingest.deadline(), *(part.due_ns for part in parts)))

    def step(self, now_ns: int, event: JournalInput) -> list[JournalEffect]:
        match event:
            case JournalParcel():
                self._told(now_ns, event)
            case Drained():
                self._drained(now_ns)
            case Persisted():
                self._persisted(now_ns, event)
                self._reading.resume()
                self._promotion.pump()
            case Verified():
                part, ticket = self._slips.checked(event.ticket)
                self._verified(now_ns, part, Verified(ticket, event.results))
            case Rehearsed():
                self._to_ingest(now_ns, event)
                self._drained(now_ns)  # it may come after the round's end, and nothing else may come for long
            case Woken():
                self._to_ingest(now_ns, event)
                self._out += [*self._clientele.woken(now_ns), *self._seat.on_timer(now_ns)]
                self.covering.on_timer(now_ns)
                self._to_order(now_ns, event)
            case Entered():
                self._entered(now_ns, event.peer)
            case Exited():
                self._exited(now_ns, event.peer)
            case LogRead():
                self._read(now_ns, event)
            case ConsensusStarted():
                self._start(now_ns)
            case Stopping() | SpaceTold():
                if isinstance(event, SpaceTold):
                    self._petitions.full = event.free_bytes < self.settings.order.room_bytes_min
                self._to_both(now_ns, event)
            case PersistFailed():
                self._to_order(now_ns, event)
            case _:
                assert_never(event)
        self._flush(now_ns)
        effects = list(self._out)
        self._out.clear()
        return effects

    def _start(self, now_ns: int) -> None:
        assert not self._started, "started twice"
        self._started = True
        self._to_both(now_ns, ConsensusStarted())
        self.covering.start()
        self._out.append(self._clientele.admitted(now_ns))
        self._assembled(now_ns)
        if self.removed:
            self._seat.schedule_stop(now_ns, 0)

    def _drained(self, now_ns: int) -> None:
        """What was checked at once goes into the batch that is formed now."""
        if self._petitions.restless:
            self._petitions.drained()
            self._flush(now_ns)  # those that are checked at once are ordered now: nothing else may come for long
        if self.ingest.restless and self._to_ingest(now_ns, Drained()):
            self._to_ingest(now_ns, Drained())
        if self.serializer.presides:
            self._to_order(now_ns, Drained())
        if not self._seat.blocked:
            return
        master = self._seat.drained_notice_to(now_ns, self._petitions.master, self.ingest.idle)
        if master == self.settings.node:
            self._to_order(now_ns, IngestDrained(master))
        elif master:
            self._mail.to_peer(ToPeer(master, peer_messages.IngestDrainedNotice()))

    # Between the parts.

    def _to_ingest(self, now_ns: int, event: IngestInput) -> bool:
        """Step ingest; says whether something was checked at once."""
        checked = False
        for effect in self.ingest.step(now_ns, event):
            checked |= self._of_ingest(now_ns, effect)
        return checked

    def _of_ingest(self, now_ns: int, effect: IngestEffect) -> bool:
        match effect:
            case PayloadArrived():
                self._to_order(now_ns, effect)
            case ToPeer():
                self._mail.to_peer(effect)
            case ToClient():
                self._mail.to_client(effect)
            case Persist():
                self._out.append(self._slips.write("ingest", effect))
            case Report() | Rehearse():
                self._out.append(effect)
            case Verify():
                return self._check(now_ns, "ingest", effect)
            case _:
                assert_never(effect)
        return False

    def _check(self, now_ns: int, part: str, effect: Verify) -> bool:
        """Have signatures checked elsewhere; says whether they were so few that it was done at once."""
        if len(effect.items) > self.settings.checks_inline_max:
            self._out.append(self._slips.check(part, effect))
            return False
        self._verified(now_ns, part, Verified(effect.ticket, tuple(map(holds, effect.items))))
        return True

    def _verified(self, now_ns: int, part: str, event: Verified) -> None:
        if part == "ingest":
            self._to_ingest(now_ns, event)
        else:
            self._petitions.verified(now_ns, event)

    def _to_both(self, now_ns: int, event: ConsensusStarted | Stopping | SpaceTold | PeerUp | PeerDown) -> None:
        self._to_ingest(now_ns, event)
        self._to_order(now_ns, event)

    def _to_order(self, now_ns: int, event: OrderInput) -> None:
        for effect in self.serializer.step(now_ns, event):
            self._of_order(now_ns, effect)

    def _of_order(self, now_ns: int, effect: OrderEffect) -> None:
        match effect:
            case Tell():
                self._mail.order(effect)
            case Persist():
                self._out.append(self._slips.write("order", effect))
            case Agreed():
                self._agreed(now_ns, effect)
            case NeedPayload():
                self._to_ingest(now_ns, effect)
            case RoleChanged():
                self._role_changed(now_ns, effect)
            case ReadLog():
                self._out.append(self._slips.read("order", effect))
            case Report() | Halt():
                self._out.append(effect)
            case Resumed():
                assert effect.index == self.execution.applied_index
            case _:
                assert_never(effect)

    def _role_changed(self, now_ns: int, changed: RoleChanged) -> None:
        self._petitions.role(now_ns, changed)
        self._promotion.role(now_ns, changed)
        self._out.append(changed)
        self._mail.to_clients(self._clientele.led(changed.regime if changed.role is Role.MASTER else 0))

    def _agreed(self, now_ns: int, agreed: Agreed) -> None:
        executed = self._news.popleft()
        assert executed.position.index == agreed.body.index, "answered for another message than was agreed"
        references = tuple([entry.reference for entry in agreed.body.data_entries])
        self._to_ingest(now_ns, Ordered(references, executed))
        self._mail.to_clients(self._clientele.executed(executed))
        if executed.clients_changed:
            self._out.append(self._clientele.admitted(now_ns))
        if executed.nodes_changed:
            self._assembled(now_ns)

    def _flush(self, now_ns: int) -> None:
        """Perform what the parts without a `step` of their own want; that may make them want more."""
        while wanted := self._clientele.wanted():
            for part, effect in wanted:
                self._of_clientele(now_ns, part, effect)
        if self.covering.has_work:
            self._out += self.covering.take_effects(self._mail, self._slips)

    def _of_clientele(self, now_ns: int, part: str, effect: ClienteleEffect) -> None:
        match effect:
            case ConfigOffered() | RecordDamaged():
                self._to_order(now_ns, effect)
            case PacksPromoted():
                self._to_ingest(now_ns, effect)
            case ToPeer():
                self._mail.to_peer(effect)
            case ToClient():
                self._mail.to_client(effect)
            case ReadLog():
                self._out.append(self._slips.read(part, effect))
            case Verify():
                self._check(now_ns, part, effect)
            case Report():
                self._out.append(effect)

    # The host.

    def _persisted(self, now_ns: int, event: Persisted) -> None:
        for part, ticket in self._slips.written(event.ticket):
            if part in ("checkpointer", "installer"):
                self.covering.on_written(now_ns, part, ticket)
            if part in ("checkpointer", "installer", "roster"):
                continue
            tell = self._to_ingest if part == "ingest" else self._to_order
            tell(now_ns, Persisted(ticket))

    def _read(self, now_ns: int, event: LogRead) -> None:
        part, token = self._slips.took(event.token)
        if part == "order":
            self._to_order(now_ns, LogRead(token, event.records))
        else:
            self._clientele.read(part, token, event.records)

    # Sessions.

    def _entered(self, now_ns: int, peer: Peer) -> None:
        if peer.client:
            self._mail.to_clients(self._clientele.entered(peer))
            self._to_ingest(now_ns, SessionOpened(peer.instance))
        elif news := self._nodes.entered(peer):
            self._tell_peers(now_ns, news)
        elif self._nodes.is_gone(peer):
            self._mail.to_session(peer, peer_messages.Removed(self.execution.applied_index))
        else:
            self._out.append(Report("not a node of the journal", f"{peer.identifier:08x}"))

    def _exited(self, now_ns: int, peer: Peer) -> None:
        if not peer.client:
            self._tell_peers(now_ns, self._nodes.exited(peer))
        elif self._clientele.exited(peer.instance):
            self._to_ingest(now_ns, SessionClosed(peer.instance))

    def _tell_peers(self, now_ns: int, news: Iterable[PeerUp | PeerDown]) -> None:
        for event in news:
            self._to_both(now_ns, event)
            (self.covering.on_connected if isinstance(event, PeerUp) else self.covering.on_disconnected)(
                now_ns, event.node
            )

    def _assembled(self, now_ns: int) -> None:
        """The nodes or their roles changed."""
        self._out.append(whereabouts(self.execution.cluster_config, self.settings.node))
        if roster := self._roster.update(self.execution.cluster_config, self.execution.applied_index):
            self._out.append(self._slips.write("roster", roster))
        self._tell_peers(now_ns, self._nodes.assembled(self.execution.cluster_config))
        self._mail.to_clients(self._clientele.assembled())
        if not self._seat.may_propose:
            self._to_ingest(now_ns, IngestDropped())
        if self._seat.was_removed:
            self._leave(now_ns, self.execution.applied_index)
        elif self._nodes.gone:
            self._out.append(Expel(self._nodes.gone))

    def _leave(self, now_ns: int, index: int) -> None:
        """We are no member any more: nothing here is of use to anybody, and what is of use elsewhere is not for us."""
        if not self.removed:
            self.removed = True
            self._clientele.closed = True
            removed = Report("removed from the cluster", detail={"index": index})
            self._out += [removed, self._clientele.admitted(now_ns)]
            self._to_both(now_ns, Stopping())
            self._seat.schedule_stop(now_ns)

    # What others say.

    def _told(self, now_ns: int, event: JournalParcel) -> None:
        peer, said = event.peer, event.parcel
        try:
            if peer.client:
                self._of_client(now_ns, peer, said)
                return
            node = self._nodes.speaker(peer)
            if node:
                self._of_peer(now_ns, node, peer_messages.decode(said.body, said.payload))
            elif self._nodes.is_gone(peer):
                self._mail.to_session(peer, peer_messages.Removed(self.execution.applied_index))
        except Malformed as wrong:
            self._out.append(Report("malformed journal parcel", f"{peer.identifier:08x}", {"reason": str(wrong)}))

    def _of_client(self, now_ns: int, peer: Peer, said: Parcel) -> None:
        if peer.instance not in self._clientele:
            return
        message = client.decode_client(said.body)
        for outcome in self._clientele.said(now_ns, peer, message, said.payload):
            if isinstance(outcome, PackWritten):
                self._to_ingest(now_ns, outcome)
            else:
                self._mail.to_client(ToClient(peer.instance, outcome))

    def _of_peer(self, now_ns: int, node: int, message: peer_messages.PeerMessage) -> None:
        match message:
            case peer_messages.ConsensusFrame():
                self._to_order(now_ns, Received(node, message.message))
            case peer_messages.Payload():
                self._to_ingest(now_ns, PayloadCame(node, message.message))
            case peer_messages.AskPayload():
                self._to_ingest(now_ns, PayloadWanted(node, message.reference, message.digest))
            case peer_messages.Ack():
                self._to_ingest(now_ns, AckCame(node, message.reached))
            case peer_messages.PassPetition():
                self._petitions.passed(node, message)
            case peer_messages.IngestDrainedNotice():
                self._to_order(now_ns, IngestDrained(node))
            case peer_messages.Removed():
                if self._nodes.believes_removal(node, self.settings.node):
                    self._leave(now_ns, message.index)
                elif not self.removed:
                    self._out.append(Report("said to be removed", str(node), {"index": message.index}))
            case peer_messages.Covered() | peer_messages.AskState() | peer_messages.StatePiece():
                self.covering.on_message(now_ns, node, message)
            case _:
                assert_never(message)
