"""The journal of one node as one core: ingest, serializer, execution, snapshots and client sessions.

Routes effects: each effect of a part is an effect of this core, or an input of another part. Maps sessions to member
nodes and to client identities. The parts make all other decisions.

Invariants: a receipt leaves only after its message was agreed and executed here. Writes have numbers of their own among
all parts, and so have log reads and signature checks. The first input is `ConsensusStarted`.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import assert_never

from chaplain.core import Drained, Halt, Persist, Persisted, PersistFailed, Report, Stopping, Woken
from chaplain.costs import Charge
from chaplain.errors import Malformed
from chaplain.journal.clients.costs import extra_cost
from chaplain.journal.clients.sessions import SessionEffect, make_client_sessions
from chaplain.journal.consensus.core import SerializerCore
from chaplain.journal.consensus.events import (
    Agreed,
    Backfilled,
    ConfigOffered,
    ConsensusInput,
    ConsensusStarted,
    DiskSpace,
    IngestDrained,
    LogRead,
    NeedPayload,
    PayloadArrived,
    PeerDown,
    PeerLogRange,
    PeerUp,
    ReadLog,
    Received,
    RecordDamaged,
    Resumed,
    RoleChanged,
    SendMessage,
)
from chaplain.journal.events import (
    DryRun,
    DryRunDone,
    FileRead,
    FromPeer,
    IngestInput,
    IngestRoleDropped,
    JournalEffect,
    JournalInput,
    JournalParcel,
    Ordered,
    PacksReplayed,
    PackWritten,
    Part,
    ReadFile,
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
from chaplain.journal.messages.client import NodeMessage
from chaplain.journal.messages.cluster import DataEntry, Reference
from chaplain.journal.messages.peer import CONSENSUS_BODY, PeerMessage
from chaplain.journal.messages.signing import Wrapping
from chaplain.journal.model.bootstrap import ClusterBootstrap
from chaplain.journal.model.results import AppliedMessage, DataVerdict
from chaplain.journal.peers import PeerTable, member_endpoints
from chaplain.journal.settings import JournalSettings
from chaplain.journal.snapshots import fingerprints
from chaplain.journal.snapshots.checkpoint import StateCheckpoint
from chaplain.journal.snapshots.fingerprints import Fingerprints
from chaplain.journal.snapshots.retention import retains
from chaplain.journal.snapshots.service import (
    SnapshotEffect,
    SnapshotService,
    base_of,
    checkpoint_after,
    found_checkpoint,
)
from chaplain.journal.storage.last_known_members import LastKnownMembersStore, read_last_known_members
from chaplain.journal.storage.offset_index import StreamIndex
from chaplain.journal.tree.service import TreeEffect, TreeService
from chaplain.link.auth.identity import Identity
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered, Exited, Expel, Whisper
from chaplain.segment.layout import Bytes
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel


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
        replay: Callable[[AppliedMessage], None] | None = None,
        needed_by: Iterable[Callable[[], int]] = (),
    ) -> None:
        """Start from the contents of the disk. `replay` is called for each message found on disk; with it, every
        message applied later is an effect (`AppliedMessage`). `identity` signs this node's votes. `identifier` names
        this node in parcels. Each function of `needed_by` returns the first message that a component outside the
        journal needs.
        """
        self.settings = settings
        self._identifier = identifier
        self._streams = StreamIndex()
        self._applied: deque[AppliedMessage] = deque()
        """Messages that execution has applied and the serializer has not yet reported as agreed. See `_agreed`."""
        self._writers: set[int] = set()
        """The lanes whose packs were executed since `take_writers`."""
        self._started = False
        self.removed = False
        """True once this node has been removed from the cluster."""
        self._replay = replay
        tokens = count(1)
        """Numbers of log reads and signature checks."""
        found = found_checkpoint(founding, checkpoint)
        snapshot, first = (None, 1) if found is None else (found.state, found.first)
        self.execution = JournalExecution(founding, wrapping=wrapping, snapshot=snapshot, on_applied=self._on_applied)
        self.fingerprints = Fingerprints(self.execution.fingerprint)
        state = self.execution.state
        self.base = base_of(state)
        self._streams.load_heads({name: tail.next_offset for name, tail in state.streams.items()})
        self._last_known_members = LastKnownMembersStore(
            read_last_known_members(last_known_members), founding.cluster_config()
        )
        self.tree = TreeService(
            settings,
            self.execution,
            identity,
            signed,
            may_sign=self._may_sign,
            is_master=lambda: self.serializer.is_master,
            durable=lambda: self.serializer.context.log.durable,
        )
        self._replayed: list[StateCheckpoint] = []
        """Checkpoints that were made while execution caught up with the log."""
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
            ordered=[DataEntry(Reference(node, *last), b"") for node, last in state.journals.items() if last[1]],
            last_known_members=self._last_known_members.latest,
            retains=retains(self.execution, settings.rules),
            tokens=tokens,
        )
        self.ingest = IngestCore(settings, chance, self.execution, ingest, tokens=tokens)
        self._sessions = make_client_sessions(
            settings,
            self.execution,
            self.ingest,
            streams=self._streams,
            locate=self.serializer.span,
            chance=chance,
            wrapping=wrapping,
            is_backfilling=self.serializer.backfill.is_incomplete,
            tree=self.tree,
            tokens=tokens,
        )
        self._config_requests = self._sessions.config_requests
        self.snapshots = SnapshotService(
            settings,
            self.execution,
            self._streams,
            self.serializer,
            found,
            replayed=self._replayed,
            needed_by=(self._sessions.subscriptions.first_needed, *needed_by),
            before=self.tree.tiles.take_operations,
        )
        self._peers = PeerTable(self.execution.cluster_config, self._last_known_members.latest.nodes)
        self._roles = LocalRoles(settings, self.execution)
        self._last_ticket = 0
        self._writes: deque[tuple[int, Part, int]] = deque()
        """Writes under way: the ticket, the part that requested it, and that part's own ticket."""
        self._asked: dict[int, Part] = {}
        """Log reads and signature checks under way: by token, the part that requested it."""
        self._out: list[JournalEffect] = []
        self._sessions_called = self._snapshots_called = self._tree_called = False
        """True if these parts, which have no `step` of their own, were called in this step and may have effects."""
        self._snapshots_due_ns = self.snapshots.due_ns
        self._last_encoded: tuple[object, bytes] = (None, b"")
        """The last message to a peer, and its parcel: the same message usually goes to several peers in a row."""

    def _on_applied(self, executed: AppliedMessage) -> None:
        """Execution has applied a message: update the indexes, and compute the values that need the state directly
        after it.
        """
        self._streams.add(executed)
        tree_called = self.tree.on_applied(executed)
        if self._started:
            if tree_called or (self.tree.due_ns is None and self.serializer.is_master):
                self._tree_called = True  # also if a master has to set the time of its next checkpoint
            if executed.checkpoint:
                self._snapshots_called = True
                self.snapshots.add(checkpoint_after(executed, self.execution))
            self._applied.append(executed)
            for entry in executed.verdict.entries:
                if isinstance(entry, DataVerdict):
                    for pack in entry.packs:
                        self._writers.add(pack.client_id)
            if executed.position.index % fingerprints.APART == 0:
                self.fingerprints.add(executed.position.index)
        elif executed.checkpoint:
            self._replayed = [*self._replayed[-1:], checkpoint_after(executed, self.execution)]
        if self._replay is not None and not self._started:
            self._replay(executed)

    @property
    def under_way(self) -> tuple[int, int]:
        """Numbers of unanswered packs and petitions that clients sent to this node, and the octets of these packs."""
        return self.ingest.waiting + self._config_requests.waiting, self.ingest.waiting_bytes

    @property
    def has_writers(self) -> bool:
        """Whether `take_writers` returns anything."""
        return bool(self._writers or self.ingest.forwarded_cost)

    def take_writers(self) -> list[tuple[bytes, int]]:
        """The keys of the clients whose packs were executed since the last call, and the cost (`costs`) of their packs
        that arrived from other nodes.
        """
        state, writers, costs = self.execution.state, self._writers, self.ingest.take_forwarded_cost()
        self._writers = set()
        keys: Counter[bytes] = Counter()
        for client_id in writers.union(costs):
            lane = state.lanes.get(client_id)
            client = None if lane is None else state.clients.get(lane.acl)
            if client is not None:
                keys[client.key] += costs[client_id]
        return sorted(keys.items())

    @property
    def streams(self) -> StreamIndex:
        """The index of streams and their offsets."""
        return self._streams

    def _may_sign(self) -> bool:
        """True if this node signs checkpoints of the tree: it is a serializer and has its vote."""
        if not self._started or self.removed or not self.serializer.context.hard_state.sound:
            return False
        return self.settings.node in self.execution.cluster_config.quorum.voters

    def first_offset(self, stream: str) -> int:
        """The first offset of a stream that this node retains."""
        return self._streams.first_offset(stream)

    def deadline(self) -> int | None:
        """When to step with `Woken` at the latest."""
        earliest = self.serializer.deadline()
        of_parts = (self._sessions.due_ns, self._snapshots_due_ns, self._roles.due_ns, self.tree.due_ns)
        for due_ns in (self.ingest.due_ns, *of_parts):
            if due_ns is not None and (earliest is None or due_ns < earliest):
                earliest = due_ns
        return earliest

    def step(self, now_ns: int, event: JournalInput) -> list[JournalEffect]:
        match event:
            case JournalParcel():
                self._on_parcel(now_ns, event.peer, event.parcel)
            case Drained():
                self._drained(now_ns)
            case Persisted():
                self._persisted(now_ns, event)
            case Verified():
                if self._asked.pop(event.ticket) is Part.INGEST:
                    self._step_ingest(now_ns, event)
                else:
                    self._sessions_called = True
                    self._config_requests.on_verified(now_ns, event)
            case DryRunDone():
                self._step_ingest(now_ns, event)
                # The answer may arrive after the end of a round, and the next input may be far off.
                self._drained(now_ns)
            case Woken():
                self._woken(now_ns, event)
            case Entered():
                self._entered(now_ns, event.peer)
            case Exited():
                self._exited(now_ns, event.peer)
            case LogRead():
                self._read(now_ns, event)
            case FileRead():
                self._tree_called = True
                self.tree.on_file_read(event)
            case ConsensusStarted():
                self._start(now_ns)
            case Stopping():
                self._step_both(now_ns, event)
            case DiskSpace():
                self._config_requests.on_disk_space(event)
                self._step_both(now_ns, event)
            case PersistFailed():
                self._step_serializer(now_ns, event)
            case _:
                assert_never(event)
        if self._tree_called:
            self._tree_called = False
            self._route_tree(now_ns)
        if self._sessions_called:
            self._sessions_called = False
            self._route_sessions(now_ns)
        if self._snapshots_called:
            self._snapshots_called = False
            self._route_snapshots(now_ns)
        effects, self._out = self._out, []
        return effects

    def _start(self, now_ns: int) -> None:
        assert not self._started, "started twice"
        self._started = self._sessions_called = self._snapshots_called = self._tree_called = True
        self._step_both(now_ns, ConsensusStarted())
        self.snapshots.start()
        self._out.append(self._sessions.admitted_clients(now_ns))
        self._config_changed(now_ns)
        if self.removed:
            self._roles.schedule_stop(now_ns, 0)

    def _woken(self, now_ns: int, event: Woken) -> None:
        if self.serializer.has_tail_to_prepare:
            # That is the only work of this step. If a timer is due, too, the host steps again at once.
            self._step_serializer(now_ns, event)
            return
        self._sessions_called = self._snapshots_called = self._tree_called = True
        self._step_ingest(now_ns, event)
        self._out += [*self._sessions.woken(now_ns), *self._roles.on_timer(now_ns)]
        self.snapshots.on_timer(now_ns)
        self.tree.on_timer(now_ns)
        self._step_serializer(now_ns, event)

    def _drained(self, now_ns: int) -> None:
        """The end of a round of inputs: form ingest messages of the packs that have arrived, and let the master
        propose.
        """
        if self._config_requests.signatures.pending:
            self._config_requests.check_signatures()
            self._sessions_called = True
        if self.ingest.has_work:
            self._step_ingest(now_ns, Drained())
        if self.serializer.may_propose:
            self._step_serializer(now_ns, Drained())
        if not self._roles.blocked:
            return
        master = self._roles.drained_notice_to(now_ns, self._config_requests.master, self.ingest.idle)
        if master == self.settings.node:
            self._step_serializer(now_ns, IngestDrained(master))
        elif master:
            self._to_peer(master, peer_messages.IngestDrainedNotice())

    # Routing between the parts.

    def _step_ingest(self, now_ns: int, event: IngestInput) -> None:
        for effect in self.ingest.step(now_ns, event):
            match effect:
                case PayloadArrived():
                    self._step_serializer(now_ns, effect)
                case ToPeer():
                    self._to_peer(effect.node, effect.message)
                case ToClient():
                    self._to_client(effect.instance, effect.message, effect.payload)
                case Persist():
                    self._write(Part.INGEST, effect)
                case Verify():
                    self._ask(Part.INGEST, effect.ticket, effect)
                case Report() | DryRun():
                    self._out.append(effect)
                case _:
                    assert_never(effect)

    def _step_both(self, now_ns: int, event: ConsensusStarted | Stopping | DiskSpace | PeerUp | PeerDown) -> None:
        self._step_ingest(now_ns, event)
        self._step_serializer(now_ns, event)

    def _step_serializer(self, now_ns: int, event: ConsensusInput) -> None:
        for effect in self.serializer.step(now_ns, event):
            match effect:
                case SendMessage():
                    self._to_serializer(effect.node, effect.message)
                case Persist():
                    self._write(Part.SERIALIZER, effect)
                case Agreed():
                    self._agreed(now_ns, effect)
                case Backfilled():
                    self._snapshots_called = True
                    self.snapshots.on_backfilled(effect.messages)
                case NeedPayload():
                    self._step_ingest(now_ns, effect)
                case RoleChanged():
                    self._role_changed(now_ns, effect)
                case ReadLog():
                    self._ask(Part.SERIALIZER, effect.token, effect)
                case Report() | Halt():
                    self._out.append(effect)
                case Resumed():
                    assert effect.index == self.execution.applied_index
                case _:
                    assert_never(effect)

    def _route_tree(self, now_ns: int) -> None:
        for part, effect in self.tree.take_effects(now_ns):
            self._route(now_ns, part, effect)
        self.tree.answer_waiting()
        self._sessions_called = True  # the answers are effects of the parts that asked

    def _route_sessions(self, now_ns: int) -> None:
        """Route the effects of the parts that serve clients. Routing may produce further effects."""
        while pending := self._sessions.take_effects():
            for part, effect in pending:
                self._route(now_ns, part, effect)

    def _route_snapshots(self, now_ns: int) -> None:
        for part, effect in self.snapshots.take_effects():
            self._route(now_ns, part, effect)
        self._snapshots_due_ns = self.snapshots.due_ns

    def _route(self, now_ns: int, part: Part, effect: SessionEffect | SnapshotEffect | TreeEffect) -> None:
        match effect:
            case ConfigOffered() | RecordDamaged():
                self._step_serializer(now_ns, effect)
            case PacksReplayed():
                self._step_ingest(now_ns, effect)
            case ToPeer():
                self._to_peer(effect.node, effect.message)
            case ToClient():
                self._to_client(effect.instance, effect.message, effect.payload)
            case ReadLog():
                self._ask(part, effect.token, effect)
            case Verify():
                self._ask(part, effect.ticket, effect)
            case Persist():
                self._write(part, effect)
            case Report() | Halt() | ReadFile():
                self._out.append(effect)
            case _:
                assert_never(effect)

    def _write(self, part: Part, persist: Persist) -> None:
        self._last_ticket += 1
        self._writes.append((self._last_ticket, part, persist.ticket))
        self._out.append(Persist(self._last_ticket, persist.operations))

    def _ask(self, part: Part, token: int, request: ReadLog | Verify) -> None:
        self._asked[token] = part
        self._out.append(request)

    # Messages to other nodes and to clients. A message to a node or client without a session is dropped; the sending
    # part repeats it if necessary.

    def _to_peer(self, node: int, message: PeerMessage) -> None:
        instance = self._peers.instance(node)
        if instance is not None:
            if self._last_encoded[0] is not message:
                self._last_encoded = (message, self._parcel(*peer_messages.encode(message)))
            self._out.append(Whisper(instance, self._last_encoded[1], urgent=False))

    def _to_serializer(self, node: int, message: bytes) -> None:
        """Send a message to the serializer of a peer, ahead of other traffic."""
        instance = self._peers.instance(node)
        if instance is not None:
            if self._last_encoded[0] is not message:
                self._last_encoded = (message, self._parcel(CONSENSUS_BODY, message))
            self._out.append(Whisper(instance, self._last_encoded[1], urgent=True))

    def _to_session(self, peer: Peer, message: PeerMessage) -> None:
        """Send to a node that is not a member, and so has no node id here."""
        self._out.append(Whisper(peer.instance, self._parcel(*peer_messages.encode(message)), urgent=False))

    def _to_client(self, instance: bytes, message: NodeMessage, payload: bytes = b"") -> None:
        if instance in self._sessions.peers:
            parcel = self._parcel(client_messages.encode(message), payload)
            self._out.append(Whisper(instance, parcel, urgent=False))

    def _to_clients(self, messages: Iterable[tuple[bytes, NodeMessage]]) -> None:
        for instance, message in messages:
            self._to_client(instance, message)

    def _parcel(self, body: bytes, payload: bytes) -> bytes:
        return parcel.encode(Parcel(self._identifier, Layer.JOURNAL, body, payload))

    # Effects of the serializer.

    def _role_changed(self, now_ns: int, changed: RoleChanged) -> None:
        self._sessions_called = self._tree_called = True
        self._out.append(changed)
        self._to_clients(self._sessions.role_changed(now_ns, changed))

    def _agreed(self, now_ns: int, agreed: Agreed) -> None:
        # Execution applies a message and calls `_on_applied` before the serializer reports it as agreed.
        """A message is agreed and applied: report it to ingest and to the clients that wait for it."""
        self._sessions_called = True
        executed = self._applied.popleft()
        assert executed.position.index == agreed.body.index, "the agreed message is not the one that was applied"
        if self._replay is not None:
            self._out.append(executed)
        references = tuple([entry.reference for entry in agreed.body.data_entries])
        self._step_ingest(now_ns, Ordered(references, executed))
        self._to_clients(self._sessions.on_applied(executed))
        if executed.clients_changed:
            self._out.append(self._sessions.admitted_clients(now_ns))
        if executed.nodes_changed:
            self._config_changed(now_ns)

    # Answers of the host.

    def _persisted(self, now_ns: int, event: Persisted) -> None:
        """Pass a finished write, and those requested before it, to the parts that requested them."""
        while self._writes and self._writes[0][0] <= event.ticket:
            _, part, ticket = self._writes.popleft()
            match part:
                case Part.SERIALIZER:
                    self._step_serializer(now_ns, Persisted(ticket))
                    if self.snapshots.can_write:
                        self._snapshots_called = True
                case Part.INGEST:
                    self._step_ingest(now_ns, Persisted(ticket))
                case Part.CHECKPOINTER | Part.INSTALLER:
                    self._snapshots_called = True
                    self.snapshots.on_written(now_ns, part, ticket)
                case Part.TILES | Part.SIGNER:
                    self._tree_called = True
                    self.tree.on_written(now_ns, part, ticket)
        if self.tree.wants_to_sign:
            self._tree_called = True
        self._sessions_called = True
        self._sessions.on_log_synced()

    def _read(self, now_ns: int, event: LogRead) -> None:
        """Pass a finished read of the log to the part that requested it."""
        part = self._asked.pop(event.token)
        if part is Part.SERIALIZER:
            self._step_serializer(now_ns, event)
        else:
            self._sessions_called = True
            self._sessions.on_log_read(part, event.token, event.records)

    # Sessions.

    def _entered(self, now_ns: int, peer: Peer) -> None:
        self._sessions_called = True
        if peer.client:
            self._to_clients(self._sessions.entered(peer))
            self._step_ingest(now_ns, SessionOpened(peer.instance))
        elif changes := self._peers.entered(peer):
            self._peers_changed(now_ns, changes)
        elif self._peers.is_removed(peer):
            self._to_session(peer, peer_messages.Removed(self.execution.applied_index))
        else:
            self._out.append(Report("not a node of the journal", f"{peer.identifier:08x}"))

    def _exited(self, now_ns: int, peer: Peer) -> None:
        self._sessions_called = True
        if not peer.client:
            self._peers_changed(now_ns, self._peers.exited(peer))
        elif self._sessions.exited(peer.instance):
            self._step_ingest(now_ns, SessionClosed(peer.instance))

    def _peers_changed(self, now_ns: int, changes: Iterable[PeerUp | PeerDown]) -> None:
        """Peers connected or disconnected: notify ingest, the serializer and snapshots."""
        for event in changes:
            self._snapshots_called = self._tree_called = True
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
        write = self._last_known_members.update(self.execution.cluster_config, self.execution.applied_index)
        if write is not None:
            self._write(Part.LAST_KNOWN_MEMBERS, write)
        self._peers_changed(now_ns, self._peers.config_changed(self.execution.cluster_config))
        self._to_clients(self._sessions.members_changed())
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
            self._sessions.close()
            removed = Report("removed from the cluster", detail={"index": index})
            self._out += [removed, self._sessions.admitted_clients(now_ns)]
            self._step_both(now_ns, Stopping())
            self._roles.schedule_stop(now_ns)

    # Parcels of nodes and clients.

    def _on_parcel(self, now_ns: int, peer: Peer, parcel: Parcel) -> None:
        try:
            if peer.client:
                self._on_client_message(now_ns, peer, parcel)
                return
            node = self._peers.member_of(peer)
            if node and parcel.body == CONSENSUS_BODY:
                self._step_serializer(now_ns, Received(node, parcel.payload))
            elif node:
                self._on_peer_message(now_ns, node, peer_messages.decode(parcel.body, parcel.payload))
            elif self._peers.is_removed(peer):
                self._to_session(peer, peer_messages.Removed(self.execution.applied_index))
        except Malformed as wrong:
            self._out.append(Report("malformed journal parcel", f"{peer.identifier:08x}", {"reason": str(wrong)}))

    def _on_client_message(self, now_ns: int, peer: Peer, parcel: Parcel) -> None:
        if peer.instance not in self._sessions.peers:
            return
        message = client_messages.decode_client(parcel.body)
        if units := extra_cost(message, parcel.payload):
            self._out.append(Charge(peer.key, units))
        if type(message) is client_messages.Write:
            written = self._sessions.write(peer, message, parcel.payload)
            if type(written) is PackWritten:
                self._step_ingest(now_ns, written)
            else:
                self._to_client(peer.instance, written)
            return
        self._sessions_called = self._tree_called = True
        for answer in self._sessions.dispatch(now_ns, peer, message, parcel.payload):
            self._to_client(peer.instance, answer)

    def _on_peer_message(self, now_ns: int, node: int, message: PeerMessage) -> None:
        match message:
            case peer_messages.Payload() | peer_messages.AskPayload() | peer_messages.Ack():
                self._step_ingest(now_ns, FromPeer(node, message))
            case peer_messages.ConsensusFrame():
                self._step_serializer(now_ns, Received(node, message.message))
            case peer_messages.ForwardConfigRequest():
                self._sessions_called = True
                self._config_requests.on_forwarded(now_ns, node, message)
            case peer_messages.IngestDrainedNotice():
                self._step_serializer(now_ns, IngestDrained(node))
            case peer_messages.Removed():
                if self._peers.believes_removal(node, self.settings.node):
                    self._on_removed(now_ns, message.index)
                elif not self.removed:
                    self._out.append(Report("said to be removed", str(node), {"index": message.index}))
            case peer_messages.SnapshotOffer() | peer_messages.AskState() | peer_messages.StatePiece():
                self._snapshots_called = True
                if isinstance(message, peer_messages.SnapshotOffer):
                    self._step_serializer(now_ns, PeerLogRange(node, message.first, message.agreed))
                self.snapshots.on_message(now_ns, node, message)
            case peer_messages.TreeSignature():
                self._tree_called = True
                self.tree.on_signature(now_ns, node, message)
            case _:
                assert_never(message)
