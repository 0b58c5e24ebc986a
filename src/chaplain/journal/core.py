"""The journal of one node as one core: ingest, serializer, execution, snapshots and client sessions.

Routes effects: each effect of a part is an effect of this core, or an input of another part. Maps sessions to member
nodes and to client identities. The parts make all other decisions.

Invariants: a receipt leaves only after its message was agreed and executed here. Tickets and tokens of different parts
are never confused. The first input is `ConsensusStarted`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import assert_never

from chaplain.core import Drained, Halt, Persist, Persisted, PersistFailed, Report, Stopping, Woken, soonest
from chaplain.errors import Malformed
from chaplain.journal.clients.sessions import SessionEffect, make_client_sessions
from chaplain.journal.consensus.core import SerializerCore
from chaplain.journal.consensus.events import (
    Agreed,
    ConfigOffered,
    ConsensusEffect,
    ConsensusInput,
    ConsensusStarted,
    DiskSpace,
    IngestDrained,
    LogRead,
    NeedPayload,
    PayloadArrived,
    PeerDown,
    PeerUp,
    ReadLog,
    Received,
    RecordDamaged,
    Resumed,
    RoleChanged,
    SendMessage,
)
from chaplain.journal.events import (
    AckReceived,
    DryRun,
    DryRunDone,
    FileRead,
    IngestEffect,
    IngestInput,
    IngestRoleDropped,
    JournalEffect,
    JournalInput,
    JournalParcel,
    Ordered,
    PacksReplayed,
    PackWritten,
    PayloadReceived,
    PayloadRequested,
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
from chaplain.journal.messages import client as client_messages
from chaplain.journal.messages import peer as peer_messages
from chaplain.journal.messages.signing import Wrapping, holds
from chaplain.journal.model.bootstrap import ClusterBootstrap
from chaplain.journal.model.results import AppliedMessage, DataVerdict
from chaplain.journal.outbound import JournalOutbound
from chaplain.journal.peers import PeerTable, member_endpoints
from chaplain.journal.settings import JournalSettings
from chaplain.journal.snapshots.fingerprints import Fingerprints
from chaplain.journal.snapshots.service import SnapshotService, base_of, found_checkpoint
from chaplain.journal.storage.last_known_members import LastKnownMembersStore, read_last_known_members
from chaplain.journal.storage.offset_index import StreamIndex
from chaplain.journal.ticket_numbers import TicketNumbers
from chaplain.journal.tree.service import TreeService
from chaplain.link.auth.identity import Identity
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered, Exited, Expel
from chaplain.segment.layout import Bytes
from chaplain.wire.parcel import Parcel


class JournalCore:
    """The journal of one node. After construction only `step` changes its state."""

    def __init__(
        self,
        settings: JournalSettings,
        founding: ClusterBootstrap,
        chance: random.Random,
        *,
        identity: Identity,
        identifier: int,
        segments: Iterable[tuple[int, Bytes]] = (),
        sync_hint: bytes | None = None,
        hard_state: bytes | None = None,
        ingest: bytes | None = None,
        checkpoint: bytes | None = None,
        last_known_members: bytes | None = None,
        signed: bytes | None = None,
        wrapping: Wrapping | None = None,
        observer: Callable[[AppliedMessage], None] | None = None,
    ) -> None:
        """Start from the contents of the disk. `observer` is called for each applied message, first for those found on
        disk. `identity` signs this node's votes. `identifier` names this node in parcels.
        """
        self.settings = settings
        self._streams = StreamIndex()
        self._applied: deque[AppliedMessage] = deque()
        """Messages that execution has applied and the serializer has not yet reported as agreed. See `_agreed`."""
        self._writers: set[int] = set()
        """The lanes whose packs were executed since `take_writers`."""
        self._started = False
        self.removed = False
        """True once this node has been removed from the cluster."""
        self._observer = observer
        found = found_checkpoint(founding, checkpoint)
        snapshot, first = (None, 1) if found is None else (found.state, found.first)
        self.execution = JournalExecution(founding, wrapping=wrapping, snapshot=snapshot, on_applied=self._on_applied)
        self.fingerprints = Fingerprints(self.execution.fingerprint)
        state = self.execution.state
        self.base = base_of(state)
        self._streams.load_heads({name: tail.next_offset for name, tail in state.streams.items()})
        self.tree = TreeService(
            settings,
            self.execution,
            identity,
            signed,
            may_sign=self._may_sign,
            is_master=lambda: self.serializer.is_master,
            durable=lambda: self.serializer.context.log.durable,
        )
        self.snapshots = SnapshotService(settings, self.execution, self._streams, self.tree.tiles.take_operations)
        self.serializer = SerializerCore(
            settings.order,
            identity,
            chance,
            self.execution,
            segments=segments,
            sync_hint=sync_hint,
            hard_state=hard_state,
            base=state.position,
            first=first,
        )
        self._last_known_members = LastKnownMembersStore(
            read_last_known_members(last_known_members), founding.cluster_config()
        )
        # Some parts refer to each other, so the following references are set after construction.
        self.serializer.context.last_known_members = self._last_known_members.latest
        self.snapshots.attach(self.serializer.context, found, self.serializer.is_confirmed_by)
        self.ingest = IngestCore(settings, chance, self.execution, ingest)
        self._sessions = make_client_sessions(
            settings,
            self.execution,
            self.ingest,
            streams=self._streams,
            locate=self.serializer.span,
            chance=chance,
            wrapping=wrapping,
        )
        self._config_requests = self._sessions.config_requests
        self._subscriptions = self._sessions.subscriptions
        self._subscriptions.is_backfilling = self.serializer.backfill.is_incomplete
        self.snapshots.checkpointer.first_needed_by.append(self._subscriptions.first_needed)
        self._peers = PeerTable(self.execution.cluster_config, self._last_known_members.latest.nodes)
        self._roles = LocalRoles(settings, self.execution)
        self._tickets = TicketNumbers()
        self._out: list[JournalEffect] = []
        self._outbound = JournalOutbound(self._out, identifier, self._peers, self._sessions)

    def _on_applied(self, executed: AppliedMessage) -> None:
        """Execution has applied a message: update the indexes, and notify snapshots and the observer."""
        self._streams.add(executed)
        self.tree.on_applied(executed)
        self.snapshots.on_applied(executed)
        if self._started:
            self._applied.append(executed)
            for entry in executed.verdict.entries:
                if isinstance(entry, DataVerdict):
                    self._writers.update(pack.client_id for pack in entry.packs)
            self.fingerprints.on_applied(executed.position.index)
        if self._observer is not None:
            self._observer(executed)

    @property
    def under_way(self) -> tuple[int, int]:
        """How many packs and petitions that clients sent to this node are not answered yet, and octets of packs."""
        return self.ingest.waiting + self._config_requests.waiting, self.ingest.waiting_bytes

    def take_writers(self) -> list[bytes]:
        """The keys of the clients whose packs were executed since this was asked last."""
        if not self._writers:
            return []
        state, writers = self.execution.state, self._writers
        self._writers = set()
        lanes = filter(None, map(state.lanes.get, writers))
        return sorted({client.key for client in (state.clients.get(lane.acl) for lane in lanes) if client is not None})

    @property
    def streams(self) -> StreamIndex:
        """The index of streams and their offsets."""
        return self._streams

    def _may_sign(self) -> bool:
        """Whether this node signs checkpoints: a serializer that has its vote."""
        if not self._started or self.removed or not self.serializer.context.hard_state.sound:
            return False
        return self.settings.node in self.execution.cluster_config.quorum.voters

    def first_offset(self, stream: str) -> int:
        """The first offset of a stream that this node retains."""
        return self._streams.first_offset(stream)

    def deadline(self) -> int | None:
        """When to step with `Woken` at the latest."""
        parts = (self._sessions, self.snapshots, self._roles, self.tree)
        return soonest((self.serializer.deadline(), self.ingest.deadline(), *(part.due_ns for part in parts)))

    def step(self, now_ns: int, event: JournalInput) -> list[JournalEffect]:
        match event:
            case JournalParcel():
                self._on_parcel(now_ns, event)
            case Drained():
                self._drained(now_ns)
            case Persisted():
                self._persisted(now_ns, event)
                self._sessions.on_log_synced()
            case Verified():
                part, ticket = self._tickets.completed_check(event.ticket)
                self._verified(now_ns, part, Verified(ticket, event.results))
            case DryRunDone():
                self._step_ingest(now_ns, event)
                # The answer may arrive after the end of a round, and the next input may be far off.
                self._drained(now_ns)
            case Woken():
                self._step_ingest(now_ns, event)
                self._out += [*self._sessions.woken(now_ns), *self._roles.on_timer(now_ns)]
                self.snapshots.on_timer(now_ns)
                self.tree.on_timer(now_ns)
                self._step_serializer(now_ns, event)
            case Entered():
                self._entered(now_ns, event.peer)
            case Exited():
                self._exited(now_ns, event.peer)
            case LogRead():
                self._read(now_ns, event)
            case FileRead():
                self.tree.on_file_read(event)
            case ConsensusStarted():
                self._start(now_ns)
            case Stopping() | DiskSpace():
                if isinstance(event, DiskSpace):
                    self._config_requests.disk_full = event.free_bytes < self.settings.order.room_bytes_min
                self._step_both(now_ns, event)
            case PersistFailed():
                self._step_serializer(now_ns, event)
            case _:
                assert_never(event)
        self._route_pending(now_ns)
        effects = list(self._out)
        self._out.clear()
        return effects

    def _start(self, now_ns: int) -> None:
        assert not self._started, "started twice"
        self._started = True
        self._step_both(now_ns, ConsensusStarted())
        self.snapshots.start()
        self._out.append(self._sessions.admitted_clients(now_ns))
        self._config_changed(now_ns)
        if self.removed:
            self._roles.schedule_stop(now_ns, 0)

    def _drained(self, now_ns: int) -> None:
        """The end of a round of inputs: form ingest messages of the packs that have arrived, and let the master
        propose. Packs whose signatures are checked inline still become part of this round's message.
        """
        if self._config_requests.has_unchecked:
            self._config_requests.request_checks()
            # Offer the requests that were checked inline before the master proposes: the next input may be far off.
            self._route_pending(now_ns)
        if self.ingest.has_work and self._step_ingest(now_ns, Drained()):
            # Packs were verified inline during the step. The second step puts them into a message of this round.
            self._step_ingest(now_ns, Drained())
        if self.serializer.is_master:
            self._step_serializer(now_ns, Drained())
        if not self._roles.blocked:
            return
        master = self._roles.drained_notice_to(now_ns, self._config_requests.master, self.ingest.idle)
        if master == self.settings.node:
            self._step_serializer(now_ns, IngestDrained(master))
        elif master:
            self._outbound.to_peer(ToPeer(master, peer_messages.IngestDrainedNotice()))

    # Routing between the parts.

    def _step_ingest(self, now_ns: int, event: IngestInput) -> bool:
        """Step ingest and route its effects. Return True if signatures were checked inline."""
        checked = False
        for effect in self.ingest.step(now_ns, event):
            checked |= self._route_ingest_effect(now_ns, effect)
        return checked

    def _route_ingest_effect(self, now_ns: int, effect: IngestEffect) -> bool:
        match effect:
            case PayloadArrived():
                self._step_serializer(now_ns, effect)
            case ToPeer():
                self._outbound.to_peer(effect)
            case ToClient():
                self._outbound.to_client(effect)
            case Persist():
                self._out.append(self._tickets.number_write("ingest", effect))
            case Report() | DryRun():
                self._out.append(effect)
            case Verify():
                return self._verify(now_ns, "ingest", effect)
            case _:
                assert_never(effect)
        return False

    def _verify(self, now_ns: int, part: str, effect: Verify) -> bool:
        """Check signatures: up to `checks_inline_max` of them inline, more of them by an effect. Return True if they
        were checked inline.
        """
        if len(effect.items) > self.settings.checks_inline_max:
            self._out.append(self._tickets.number_check(part, effect))
            return False
        self._verified(now_ns, part, Verified(effect.ticket, tuple(map(holds, effect.items))))
        return True

    def _verified(self, now_ns: int, part: str, event: Verified) -> None:
        if part == "ingest":
            self._step_ingest(now_ns, event)
        else:
            self._config_requests.on_verified(now_ns, event)

    def _step_both(self, now_ns: int, event: ConsensusStarted | Stopping | DiskSpace | PeerUp | PeerDown) -> None:
        self._step_ingest(now_ns, event)
        self._step_serializer(now_ns, event)

    def _step_serializer(self, now_ns: int, event: ConsensusInput) -> None:
        for effect in self.serializer.step(now_ns, event):
            self._route_serializer_effect(now_ns, effect)

    def _route_serializer_effect(self, now_ns: int, effect: ConsensusEffect) -> None:
        match effect:
            case SendMessage():
                self._outbound.send_consensus(effect)
            case Persist():
                self._out.append(self._tickets.number_write("serializer", effect))
            case Agreed():
                self._agreed(now_ns, effect)
            case NeedPayload():
                self._step_ingest(now_ns, effect)
            case RoleChanged():
                self._role_changed(now_ns, effect)
            case ReadLog():
                self._out.append(self._tickets.number_read("serializer", effect))
            case Report() | Halt():
                self._out.append(effect)
            case Resumed():
                assert effect.index == self.execution.applied_index
            case _:
                assert_never(effect)

    def _role_changed(self, now_ns: int, changed: RoleChanged) -> None:
        self._out.append(changed)
        self._outbound.to_clients(self._sessions.role_changed(now_ns, changed))

    def _agreed(self, now_ns: int, agreed: Agreed) -> None:
        # Execution applies a message and calls `_on_applied` before the serializer reports it as agreed.
        """A message is agreed and applied: report it to ingest and to the clients that wait for it."""
        executed = self._applied.popleft()
        assert executed.position.index == agreed.body.index, "the agreed message is not the one that was applied"
        references = tuple([entry.reference for entry in agreed.body.data_entries])
        self._step_ingest(now_ns, Ordered(references, executed))
        self._outbound.to_clients(self._sessions.on_applied(executed))
        if executed.clients_changed:
            self._out.append(self._sessions.admitted_clients(now_ns))
        if executed.nodes_changed:
            self._config_changed(now_ns)

    def _route_pending(self, now_ns: int) -> None:
        """Route the effects of the parts that have no `step`. Routing may produce further effects."""
        while pending := self._sessions.take_effects():
            for part, effect in pending:
                self._route_session_effect(now_ns, part, effect)
        if self.snapshots.has_work:
            self._out += self.snapshots.take_effects(self._outbound, self._tickets)
        self._out += self.tree.take_effects(now_ns, self._outbound, self._tickets)

    def _route_session_effect(self, now_ns: int, part: str, effect: SessionEffect) -> None:
        match effect:
            case ConfigOffered() | RecordDamaged():
                self._step_serializer(now_ns, effect)
            case PacksReplayed():
                self._step_ingest(now_ns, effect)
            case ToPeer():
                self._outbound.to_peer(effect)
            case ToClient():
                self._outbound.to_client(effect)
            case ReadLog():
                self._out.append(self._tickets.number_read(part, effect))
            case Verify():
                self._verify(now_ns, part, effect)
            case Report():
                self._out.append(effect)

    # Answers of the host.

    def _persisted(self, now_ns: int, event: Persisted) -> None:
        """Pass a finished write to the part that requested it."""
        for part, ticket in self._tickets.completed_writes(event.ticket):
            if part in ("checkpointer", "installer"):
                self.snapshots.on_written(now_ns, part, ticket)
            elif part in ("tiles", "signer"):
                self.tree.on_written(now_ns, part, ticket)
            if part not in ("ingest", "serializer"):
                continue
            step = self._step_ingest if part == "ingest" else self._step_serializer
            step(now_ns, Persisted(ticket))

    def _read(self, now_ns: int, event: LogRead) -> None:
        """Pass a finished read of the log to the part that requested it."""
        part, token = self._tickets.completed_read(event.token)
        if part == "serializer":
            self._step_serializer(now_ns, LogRead(token, event.records))
        else:
            self._sessions.on_log_read(part, token, event.records)

    # Sessions.

    def _entered(self, now_ns: int, peer: Peer) -> None:
        if peer.client:
            self._outbound.to_clients(self._sessions.entered(peer))
            self._step_ingest(now_ns, SessionOpened(peer.instance))
        elif changes := self._peers.entered(peer):
            self._peers_changed(now_ns, changes)
        elif self._peers.is_removed(peer):
            self._outbound.to_session(peer, peer_messages.Removed(self.execution.applied_index))
        else:
            self._out.append(Report("not a node of the journal", f"{peer.identifier:08x}"))

    def _exited(self, now_ns: int, peer: Peer) -> None:
        if not peer.client:
            self._peers_changed(now_ns, self._peers.exited(peer))
        elif self._sessions.exited(peer.instance):
            self._step_ingest(now_ns, SessionClosed(peer.instance))

    def _peers_changed(self, now_ns: int, changes: Iterable[PeerUp | PeerDown]) -> None:
        """Peers connected or disconnected: notify ingest, the serializer and snapshots."""
        for event in changes:
            self._step_both(now_ns, event)
            if isinstance(event, PeerUp):
                self.snapshots.on_connected(now_ns, event.node)
                self.tree.on_connected(event.node)
            else:
                self.snapshots.on_disconnected(now_ns, event.node)
                self.tree.on_disconnected(event.node)

    def _config_changed(self, now_ns: int) -> None:
        """The members or their roles changed: update the peer table, sessions and clients."""
        self._out.append(member_endpoints(self.execution.cluster_config, self.settings.node))
        if last_known_members := self._last_known_members.update(
            self.execution.cluster_config, self.execution.applied_index
        ):
            self._out.append(self._tickets.number_write("last_known_members", last_known_members))
        self._peers_changed(now_ns, self._peers.config_changed(self.execution.cluster_config))
        self._outbound.to_clients(self._sessions.members_changed())
        if not self._roles.may_propose:
            self._step_ingest(now_ns, IngestRoleDropped())
        if self._roles.was_removed:
            self._on_removed(now_ns, self.execution.applied_index)
        elif self._peers.removed_keys:
            self._out.append(Expel(self._peers.removed_keys))

    def _on_removed(self, now_ns: int, index: int) -> None:
        """The cluster removed this node: stop serving clients and leave elections. `local_roles` times the shutdown."""
        if not self.removed:
            self.removed = True
            self._sessions.closed = True
            removed = Report("removed from the cluster", detail={"index": index})
            self._out += [removed, self._sessions.admitted_clients(now_ns)]
            self._step_both(now_ns, Stopping())
            self._roles.schedule_stop(now_ns)

    # Parcels of nodes and clients.

    def _on_parcel(self, now_ns: int, event: JournalParcel) -> None:
        peer, parcel = event.peer, event.parcel
        try:
            if peer.client:
                self._on_client_message(now_ns, peer, parcel)
                return
            node = self._peers.member_of(peer)
            if node:
                self._on_peer_message(now_ns, node, peer_messages.decode(parcel.body, parcel.payload))
            elif self._peers.is_removed(peer):
                self._outbound.to_session(peer, peer_messages.Removed(self.execution.applied_index))
        except Malformed as wrong:
            self._out.append(Report("malformed journal parcel", f"{peer.identifier:08x}", {"reason": str(wrong)}))

    def _on_client_message(self, now_ns: int, peer: Peer, parcel: Parcel) -> None:
        if peer.instance not in self._sessions:
            return
        message = client_messages.decode_client(parcel.body)
        for outcome in self._sessions.dispatch(now_ns, peer, message, parcel.payload):
            if isinstance(outcome, PackWritten):
                self._step_ingest(now_ns, outcome)
            else:
                self._outbound.to_client(ToClient(peer.instance, outcome))

    def _on_peer_message(self, now_ns: int, node: int, message: peer_messages.PeerMessage) -> None:
        match message:
            case peer_messages.ConsensusFrame():
                self._step_serializer(now_ns, Received(node, message.message))
            case peer_messages.Payload():
                self._step_ingest(now_ns, PayloadReceived(node, message.message))
            case peer_messages.AskPayload():
                self._step_ingest(now_ns, PayloadRequested(node, message.reference, message.digest))
            case peer_messages.Ack():
                self._step_ingest(now_ns, AckReceived(node, message.reached))
            case peer_messages.ForwardConfigRequest():
                self._config_requests.on_forwarded(node, message)
            case peer_messages.IngestDrainedNotice():
                self._step_serializer(now_ns, IngestDrained(node))
            case peer_messages.Removed():
                if self._peers.believes_removal(node, self.settings.node):
                    self._on_removed(now_ns, message.index)
                elif not self.removed:
                    self._out.append(Report("said to be removed", str(node), {"index": message.index}))
            case peer_messages.SnapshotOffer() | peer_messages.AskState() | peer_messages.StatePiece():
                self.snapshots.on_message(now_ns, node, message)
            case peer_messages.TreeSignature():
                self.tree.on_signature(now_ns, node, message)
            case _:
                assert_never(message)
