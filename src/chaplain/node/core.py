"""A node: one core that contains the cores of all layers.

It only routes: each effect of a layer is either for the host, or an input of another layer. Effects are delivered first
in, first out, so that the effects of a layer take place in their order. If no other input waits, an outgoing message
passes the mesh and the link at once, without a change of the order. The node also stores the key ring, because it may
confirm a key to others only when a restart would not lose it.

Client requests wait in a fair queue (`fair_queue`) until the host sends `Serve`. So messages of other nodes never wait
for more client requests than the host has time for.

A node without a journal was founded without disks: it only runs mesh and gossip. The other layers are registered by
their number in parcels (`uppers`); the node knows only their interface, `LayerCore`.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from chaplain import core as host
from chaplain.client_service.core import ClientServiceCore
from chaplain.client_service.events import ForLayer, NodeViews, RightsChanged, RotationWanted
from chaplain.client_service.limits import ITEM_BYTES, Limits
from chaplain.core import (
    Halt,
    HostEffect,
    HostInput,
    Operation,
    Persist,
    Persisted,
    PersistFailed,
    Report,
    Settled,
)
from chaplain.costs import UNIT_BYTES, Charge, size_cost
from chaplain.errors import Malformed
from chaplain.gossip import events as gossip
from chaplain.gossip.core import GossipCore
from chaplain.gossip.events import GossipParcel, HeardFrom, JoinThrough, KeyConfirmed, KeyStep, MemberChanged, Rotated
from chaplain.gossip.layer_api import LayerCore
from chaplain.journal import events
from chaplain.journal.consensus.events import ConsensusStarted, DiskSpace, LogRead, ReadLog, Role, RoleChanged
from chaplain.journal.core import JournalCore
from chaplain.journal.events import Admitted, DryRun, DryRunDone, FileRead, ReadFile, Verified, Verify
from chaplain.journal.model.results import AppliedMessage
from chaplain.link import events as link
from chaplain.link.auth.identity import Identity, route_of
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.core import LinkCore
from chaplain.link.events import InstallKey, Peer, Register, RemoveKey, Said, UseKey
from chaplain.link.settings import HMAC
from chaplain.mesh import events as mesh
from chaplain.mesh.core import MeshCore
from chaplain.mesh.events import Entered, Exited, Expel, Gapped, Whispered
from chaplain.node import log_lines, status
from chaplain.node.authorization import Authorization
from chaplain.node.contention import Contention
from chaplain.node.fair_queue import FairQueue
from chaplain.node.keyring_store import NOT_ENCRYPTED, KeyRingStore, beacon_keys
from chaplain.node.layer_slot import TO_HOST, LayerSlot
from chaplain.node.node_ids import NodeIds
from chaplain.node.recorder import Recorder
from chaplain.node.removed_nodes import HEARD_EVERY_NS, RemovedNodes
from chaplain.node.settings import NodeSettings
from chaplain.node.snapshot import Snapshot
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer

_OF_JOURNAL = (Verified, DryRunDone, LogRead, FileRead, DiskSpace)

NodeInput: TypeAlias = HostInput | mesh.JoinPool | mesh.LeavePool | mesh.Shout
"""From the host, or from a program that runs in the node's own process."""


class NodeCore:
    """All layers of one node."""

    def __init__(
        self,
        settings: NodeSettings,
        identity: Identity,
        ring: KeyRing,
        *,
        clients: Mapping[bytes, str],
        rng: random.Random,
        instance: bytes,
        now_ns: int,
        journal: JournalCore | None = None,
        uppers: Mapping[Layer, LayerCore] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.settings = settings
        self.identifier = identity.identifier
        self.routing_id = route_of(instance)
        self.started_ns = self.now_ns = now_ns
        own = Peer(instance, identity.identifier, identity.key, settings.link.endpoint)
        self.link = LinkCore(identity, instance, settings.link, rng, ring=ring)
        self.mesh = MeshCore(settings.mesh, rng, own, beacon_keys(ring) if settings.beacon else None)
        self.gossip = GossipCore(identity, instance, settings.link.endpoint, settings.gossip, rng, now_ns)
        self.journal = journal
        self._node_ids = NodeIds(settings.node_ids, journal)
        self.uppers: Mapping[Layer, LayerCore] = uppers or {}
        for upper in self.uppers.values():
            upper.name_nodes(self._node_ids.id)
        self.recorder = recorder
        self._status = Snapshot(lambda: status.of_node(self))
        self._members = Snapshot(lambda: status.of_members(self))
        authorization = Authorization(journal, self.uppers)
        layers = frozenset(self.uppers)
        names = (self.node_id, self._node_ids.identifier)
        limits = Limits(
            content_bytes_max=settings.gossip.content_bytes_max,
            broadcast_bytes_max=settings.mesh.content_bytes_max - ITEM_BYTES,
            pools_max=settings.mesh.pools_max,
            questions_max=settings.gossip.questions_max,
            kept_pools=frozenset(() if recorder is None else recorder.pools),
        )
        wants, may, is_admin = authorization.required_right, authorization.may, authorization.is_admin
        views = NodeViews(self.status, self.members, *names, layers, wants, may, is_admin, self._unheard_ns, limits)
        self.client_service = ClientServiceCore(identity.identifier, settings.client_service, views)
        self.role = RoleChanged(Role.OUT, 0, 0)
        """This node's role in the journal's consensus."""
        self._keyring = KeyRingStore(ring, rng)
        self._clients = dict(clients)
        self._removed_nodes = RemovedNodes([at for at, core in self.uppers.items() if core.serves_removed_nodes])
        self._writing: dict[int, tuple[LayerSlot, KeyConfirmed | Persisted]] = {}
        """By ticket: the layer to inform, and its input, when the write is on disk."""
        self._last_ticket = 0
        self._started = False
        self._work: deque[tuple[LayerSlot, Any]] = deque()
        """Inputs that wait for their layers, in order."""
        bounds = settings.clients
        self._contention = Contention()
        self._requests: FairQueue[Whispered] = FairQueue(
            bounds.session_bytes_max, bounds.identity_bytes_max, bounds.bytes_max, bounds.light_per_second
        )
        self._charged = 0
        self.client_counts: Counter[str] = Counter()
        self._out: list[HostEffect] = []
        self._link, self._mesh, self._gossip, self._service = self._lower_slots()
        self._journal = None if journal is None else self._journal_slot(journal)
        self._uppers: dict[int, LayerSlot] = {layer: self._upper_slot(core) for layer, core in self.uppers.items()}
        above = [*([] if self._journal is None else [self._journal]), *self._uppers.values()]
        self._recorder = None if recorder is None else self._recorder_slot(recorder)
        self._upper_slots = above
        self._layers = [self._link, self._mesh, self._gossip, *above]
        self._receivers: dict[type, LayerSlot] = {
            **dict.fromkeys((host.Arrived, host.Flushed, host.Knocked, host.Connected, host.Disconnected), self._link),
            **dict.fromkeys((host.Heard, mesh.JoinPool, mesh.LeavePool, mesh.Shout), self._mesh),
            **({} if self._journal is None else dict.fromkeys(_OF_JOURNAL, self._journal)),
            **{kind: self._uppers[at] for at, core in self.uppers.items() for kind in core.host_answers},
        }
        """The layer that gets each type of input unchanged."""

    def node_id(self, identifier: int) -> int:
        return self._node_ids.id(identifier)

    def status(self) -> bytes:
        """The node's view of itself and its cluster, as JSON."""
        return self._status.get(self.now_ns, self._version())

    def members(self) -> bytes:
        """The membership list, as JSON."""
        return self._members.get(self.now_ns, self._version())

    def _version(self) -> tuple[object, ...]:
        """Values whose change must be visible in the status at once."""
        return (0 if self.journal is None else self.journal.execution.applied_index, self.role)

    def _unheard_ns(self, instance: bytes) -> int:
        return self.link.unheard_ns(self.now_ns, instance)

    @property
    def waiting(self) -> bool:
        """Whether client requests wait for `Serve`."""
        return self.settings.clients.paced and bool(self._requests)

    @property
    def light_waiting(self) -> bool:
        """Whether requests of light clients wait for `Serve`."""
        return self.settings.clients.paced and self._requests.has_light(self.now_ns)

    @property
    def contended(self) -> bool:
        """True if several clients, a light one among them, recently used this node, or the journal through any node."""
        return self._contention.has_light(self.now_ns)

    @property
    def charged(self) -> int:
        """The cost of all requests that were charged since the start."""
        return self._charged

    @property
    def behind(self) -> bool:
        """True if many writes and configuration requests of this node wait to be agreed and executed."""
        if self.journal is None:
            return False
        count, size_bytes = self.journal.under_way
        return size_bytes + count * UNIT_BYTES > self.settings.clients.behind_bytes

    def ready(self) -> bool:
        """True if the node serves clients; False after the cluster has removed it."""
        return self.journal is None or not self.journal.removed

    @property
    def counts(self) -> Counter[str]:
        return status.counts(self)

    def gauges(self) -> dict[str, float]:
        return status.gauges(self)

    def deadline(self) -> int | None:
        if not self._started:
            return self.started_ns
        earliest: int | None = None
        for slot in self._layers:
            if not slot.deadline_known:
                slot.due_ns, slot.deadline_known = slot.deadline(), True
            due_ns = slot.due_ns
            if due_ns is not None and (earliest is None or due_ns < earliest):
                earliest = due_ns
        return earliest

    def step(self, now_ns: int, event: NodeInput) -> list[HostEffect]:
        self.now_ns = now_ns
        self._out = []
        if not self._started:
            self._begin()
        if type(event) in self._receivers:
            self._step(self._receivers[type(event)], event)
            if self._work:
                self._run()
            return self._out
        match event:
            case host.Drained():
                self._end_round(event)
                return self._out
            case host.Serve():
                self._serve_client(event.light)
                return self._out
            case host.Woken():
                self._wake()
            case Persisted():
                self._work.append(self._writing.pop(event.ticket))
            case PersistFailed():
                self._on_persist_failed(event)
            case host.Stopping():
                # Upper layers stop first: their last messages still need the layers below.
                self._work.extend((slot, event) for slot in reversed(self._layers[1:]))
        self._run()
        return self._out

    def _begin(self) -> None:
        self._started = True
        self._work.append((self._link, self.mesh.introduction()))
        if self._journal is None:
            self._work.append((self._link, Register(self._clients)))
        else:
            self._work.append((self._journal, ConsensusStarted()))
        if self.recorder is not None:
            self._work.extend((self._mesh, join) for join in self.recorder.joins())
        for neighbour in self.settings.neighbours:
            self._work.append((self._gossip, JoinThrough(neighbour)))
        self._wake()

    def _wake(self) -> None:
        """Wake the layers whose deadlines have passed, as they were when the host last asked for them. A layer that had
        a step since then may be woken without need. A layer that became due since then is woken in the next wake-up.
        """
        due = self._due()
        if not due:
            self.deadline()
            due = self._due()
        self._work.extend((slot, host.Woken()) for slot in due)

    def _due(self) -> list[LayerSlot]:
        return [slot for slot in self._layers if slot.due_ns is not None and slot.due_ns <= self.now_ns]

    def _run(self) -> None:
        """Step the layers with waiting inputs, and then all layers that get inputs from these steps."""
        work = self._work
        while work:
            self._step(*work.popleft())

    def _step(self, slot: LayerSlot, event: Any) -> None:
        slot.stepped, slot.deadline_known = type(event) is not host.Drained, False
        for effect in slot.step(self.now_ns, event):
            route = slot.routes[type(effect)]
            if route is TO_HOST:
                self._out.append(effect)
            elif type(route) is LayerSlot:
                if route.at_once and not self._work:
                    self._step(route, effect)
                else:
                    self._work.append((route, effect))
            else:
                route(effect)

    def _end_round(self, event: host.Drained) -> None:
        """Send `Drained` to layers that had a step in this round.

        A step of the journal counts for its followers, too.
        """
        if not self.settings.clients.paced:
            while self._requests:
                self._serve_client()
        journal = self._journal
        if self.journal is not None and self.journal.has_writers:
            # Clients that write through other nodes contend with those that this node serves, and cost it as much.
            for key, units in self.journal.take_writers():
                self._contention.see(self.now_ns, key)
                if units and self._contention.holds(self.now_ns):
                    self._requests.charge(self.now_ns, key, units, elsewhere=True)
                    self._see_light(key, units)
        if self.contended and self.behind:
            self._contention.extend(self.now_ns)
        ordered = journal is not None and journal.stepped
        for slot in self._upper_slots:
            if slot.stepped or (ordered and slot.follows_journal):
                self._step(slot, event)
                if self._work:
                    self._run()  # the journal comes first: its followers get what it applied before they are drained
        if self._recorder is not None:
            self._work.append((self._recorder, event))
        if self._work:
            self._run()
        self._step(self._link, event)  # last, so that commands of the other layers share its frames

    # Routes of effects.

    def _lower_slots(self) -> tuple[LayerSlot, LayerSlot, LayerSlot, LayerSlot]:
        to_link = LayerSlot(self.link.step, self.link.deadline, at_once=True)
        to_mesh = LayerSlot(self.mesh.step, self.mesh.deadline, at_once=True)
        to_gossip = LayerSlot(self.gossip.step, self.gossip.deadline)
        to_service = LayerSlot(self.client_service.step, self.client_service.deadline)

        to_link.route(TO_HOST, host.Admit, host.Refuse, host.Dial, host.HangUp, host.Send, Report)
        to_link.route(to_mesh, link.Met, link.Missed, link.CommandDropped, link.Parted)
        to_link.route(self._on_said, Said)

        to_mesh.route(TO_HOST, host.Cast, Report)
        to_mesh.route(to_link, link.Say, link.Meet, link.Forget, link.Dismiss, link.Introduce)
        to_mesh.route(self._shared(to_service), mesh.Shouted)
        to_mesh.route(self._on_entered, Entered)
        to_mesh.route(self._on_exited, Exited)
        to_mesh.route(self._on_whispered, Whispered)
        to_mesh.route(self._on_gapped, Gapped)
        to_mesh.route(to_service, mesh.Joined, mesh.Left)
        to_mesh.route(lambda _: None, mesh.Answered)  # no layer uses it yet

        to_gossip.route(TO_HOST, Report)
        to_gossip.route(to_mesh, mesh.Whisper, link.Meet, link.Forget)
        to_gossip.route(to_service, gossip.Questioned, gossip.QueryDecided, gossip.Acknowledged, gossip.Rotated)
        to_gossip.route(self._shared(to_service), gossip.EventSeen)
        to_gossip.route(self._change_ring, InstallKey, UseKey, RemoveKey)
        to_gossip.route(self._on_member_changed, MemberChanged)

        to_service.route(TO_HOST, Report)
        to_service.route(to_mesh, mesh.Whisper, mesh.JoinPool, mesh.LeavePool)
        to_service.route(self._shared(to_mesh), mesh.Shout)
        to_service.route(to_gossip, gossip.Fire, gossip.AskQuery, gossip.GiveAnswer)
        to_service.route(to_gossip, gossip.RegisterQuestion, gossip.UnregisterQuestion)
        to_service.route(self._rotate, RotationWanted)
        to_service.route(self._charge, Charge)
        to_service.route(lambda effect: self._work.append((self._uppers[effect.layer], effect.event)), ForLayer)
        return to_link, to_mesh, to_gossip, to_service

    def _journal_slot(self, journal: JournalCore) -> LayerSlot:
        slot = LayerSlot(journal.step, journal.deadline)
        slot.route(TO_HOST, Report, Halt, Verify, ReadLog, ReadFile)
        slot.route(self._mesh, mesh.Whisper)
        slot.route(self._on_admitted, Admitted)
        slot.route(lambda persist: self._write(slot, Persisted(persist.ticket), persist.operations), Persist)
        slot.route(self._gossip, gossip.MembersConfigured)
        slot.route(self._on_role_changed, RoleChanged)
        slot.route(self._charge, Charge)
        slot.route(self._expel, Expel)
        slot.route(lambda effect: self._work.append((self._uppers[Layer.EXECUTOR], effect)), DryRun, AppliedMessage)
        return slot

    def _upper_slot(self, upper: LayerCore) -> LayerSlot:
        slot = LayerSlot(upper.step, upper.deadline, follows_journal=upper.follows_journal)
        slot.route(TO_HOST, Report, Halt, *upper.host_requests)
        slot.route(self._mesh, mesh.Whisper, link.Meet)
        slot.route(self._service, Settled)
        slot.route(lambda effect: self._work.append((self._receivers[DryRunDone], effect)), DryRunDone)
        slot.route(lambda persist: self._write(slot, Persisted(persist.ticket), persist.operations), Persist)
        return slot

    def _recorder_slot(self, recorder: Recorder) -> LayerSlot:
        slot = LayerSlot(recorder.step, recorder.deadline)
        slot.route(TO_HOST, Report)
        slot.route(lambda persist: self._write(slot, Persisted(persist.ticket), persist.operations), Persist)
        return slot

    def _shared(self, slot: LayerSlot) -> Callable[[Any], None]:
        """Deliver to this layer and to the recorder."""

        def deliver(effect: Any) -> None:
            self._work.append((slot, effect))
            self._record(effect)

        return deliver

    def _record(self, event: Any) -> None:
        if self._recorder is not None:
            self._work.append((self._recorder, event))

    # Peers and members.

    def _on_said(self, said: Said) -> None:
        heard = self._removed_nodes.connected.get(said.instance)
        if heard is not None and self.now_ns - heard[1] >= HEARD_EVERY_NS:
            identifier = self._removed_nodes.record_heard(self.now_ns, said.instance)
            self._work.append((self._gossip, HeardFrom(identifier)))
        if self._work:
            self._work.append((self._mesh, said))
        else:
            self._step(self._mesh, said)

    def _on_entered(self, event: Entered) -> None:
        peer = event.peer
        if self._journal is not None:
            self._work.append((self._journal, event))
        if self._removed_nodes.is_expelled(peer):
            return
        self._work.append((self._service, event))
        if peer.client:
            return
        self._removed_nodes.enter(self.now_ns, peer)
        self._notify_uppers(event)
        self._work.append((self._gossip, event))

    def _on_exited(self, event: Exited) -> None:
        if self._journal is not None:
            self._work.append((self._journal, event))
        if event.peer.client:
            self._requests.drop(event.peer.key, event.peer.instance)
            self._work.append((self._service, event))
        elif self._removed_nodes.exit(event.peer):
            self._work.append((self._service, event))
            self._notify_uppers(event)
            self._work.append((self._gossip, event))
        elif self._removed_nodes.end_lingering(event.peer):
            self._work.extend((self._uppers[layer], event) for layer in self._removed_nodes.still_served_by)

    def _on_admitted(self, admitted: Admitted) -> None:
        """The admitted clients, or their rights, have changed."""
        self._work.append((self._link, Register(dict(admitted.clients))))
        self._work.append((self._service, RightsChanged()))

    def _expel(self, expel: Expel) -> None:
        """Hide removed nodes from all layers but the journal and those with `serves_removed_nodes`."""
        self._work += [(self._mesh, expel), (self._gossip, expel)]
        for peer in self._removed_nodes.expel(expel.keys, self.mesh.peers().values()):
            others = (slot for layer, slot in self._uppers.items() if layer not in self._removed_nodes.still_served_by)
            self._work.extend((slot, Exited(peer, "removed")) for slot in (self._service, *others, self._gossip))

    def _notify_uppers(self, event: Entered | Exited | MemberChanged) -> None:
        self._work.extend((slot, event) for slot in self._uppers.values())

    def _on_gapped(self, event: Gapped) -> None:
        """Losses are never silent: listeners see them in their next item, and losses between nodes are logged."""
        self._work.append((self._service, event))
        if not event.peer.client:
            self._out.append(log_lines.lost(event, self.node_id(event.peer.identifier)))

    def _on_whispered(self, event: Whispered) -> None:
        peer = event.peer
        if not peer.client:
            self._route_parcel(event)
        elif not self._requests.put(peer.key, peer.instance, event, len(event.content)):
            # The client sends faster than it is served. It loses its session and its waiting requests.
            self.client_counts["requests_dropped"] += 1 + self._requests.drop(peer.key, peer.instance)
            self.client_counts["sessions_overrun"] += 1
            self._out.append(log_lines.overrun(peer.client))
            self._work.append((self._link, link.Dismiss(peer.instance)))

    def _serve_client(self, light: bool = False) -> None:
        """Process the next client request completely, if there is one."""
        request = self._requests.take(self.now_ns, light)
        if request is not None:
            self._contention.see(self.now_ns, request.peer.key)
            charged = self._charged
            self._charge(Charge(request.peer.key, size_cost(len(request.content))))
            self._route_parcel(request)
            self._run()
            self._see_light(request.peer.key, self._charged - charged)

    def _see_light(self, key: bytes, units: int) -> None:
        if self._requests.is_modest(self.now_ns, key):
            self._contention.see_light(self.now_ns, units)

    def _charge(self, charge: Charge) -> None:
        """A client costs the cluster this much. That counts only while several clients use it."""
        self._charged += charge.units
        if self._contention.holds(self.now_ns):
            self._requests.charge(self.now_ns, charge.key, charge.units)

    def _route_parcel(self, event: Whispered) -> None:
        try:
            opened = parcel.decode(event.content)
        except Malformed as error:
            name = self.node_id(event.peer.identifier)
            self._out.append(log_lines.refused("parcel malformed", name, str(error)))
            return
        of_journal = opened.layer == Layer.JOURNAL or self._removed_nodes.is_excluded(event.peer, opened.layer)
        if of_journal and self._journal is not None:
            if self._work:
                self._work.append((self._journal, events.JournalParcel(event.peer, opened)))
            else:
                self._step(self._journal, events.JournalParcel(event.peer, opened))
        elif event.peer.client:
            self._work.append((self._service, event))
        elif opened.layer == Layer.GOSSIP:
            self._work.append((self._gossip, GossipParcel(event.peer, opened)))
        elif opened.layer == Layer.CLIENT:
            self._work.append((self._service, event))
        elif (slot := self._uppers.get(opened.layer)) is not None:
            self._work.append((slot, GossipParcel(event.peer, opened)))
        else:
            name = self.node_id(event.peer.identifier)
            self._out.append(log_lines.refused("parcel refused", name, f"nobody here speaks layer {opened.layer}"))

    def _on_member_changed(self, event: MemberChanged) -> None:
        self._notify_uppers(event)
        self._work.append((self._service, event))
        self._out.append(log_lines.member(event, self.node_id(event.member.identifier)))

    # The key ring.

    def _rotate(self, wanted: RotationWanted) -> None:
        if self.settings.link.seal == HMAC:
            self._work.append((self._service, Rotated(wanted.call, False, KeyStep.INSTALL, (), NOT_ENCRYPTED)))
            return
        configured = tuple(identifier for identifier in self._node_ids.members() if identifier != self.identifier)
        rotation = self._keyring.rotation(wanted.call, self.settings.rotation_timeout_ns, configured)
        self._work.append((self._gossip, rotation))

    def _change_ring(self, change: InstallKey | UseKey | RemoveKey) -> None:
        """The link applies the change at once.

        Other nodes learn of it when the ring is on disk, and only if it was applied.
        """
        for one in self._keyring.ring_changes(change):
            self._step(self._link, one)
        if (confirmed := self._keyring.confirmation_of(change)) is not None:
            self._write(self._gossip, confirmed, (self._keyring.file(),))

    # Writes to disk.

    def _write(self, slot: LayerSlot, completion: KeyConfirmed | Persisted, operations: tuple[Operation, ...]) -> None:
        """Assign a ticket of the node's own, because each layer numbers its tickets itself."""
        self._last_ticket += 1
        self._writing[self._last_ticket] = (slot, completion)
        self._out.append(Persist(self._last_ticket, operations))

    def _on_persist_failed(self, event: PersistFailed) -> None:
        """The journal reports what it can no longer guarantee before the node stops."""
        if self._journal is not None:
            self._work.append((self._journal, event))
        else:
            self._out.append(Halt(f"the disk failed: {event.reason}"))

    def _on_role_changed(self, event: RoleChanged) -> None:
        self.role = event
        self._out.append(log_lines.role(event))
