"""A node: one core made of the layers' cores.

It decides only who gets what: each effect of a layer is either the host's, or an input of another layer. Effects are
passed on first in, first out, so that what a layer said first is done first. It also keeps the key ring on disk,
because a key may be confirmed to others only when a restart would not forget it.

Requests of clients wait in a fair queue (`fair_queue`) until the host says `Serve`, so that what other nodes say never
waits for more of them than the host gives time to.

A node without a journal is one that was founded without disks: it meshes and gossips. Layers beside the journal are
given by their number in parcels (`uppers`); the node knows nothing of them but `UpperCore`.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from chaplain import core as host
from chaplain.client_service.core import DeskCore
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
from chaplain.errors import Malformed
from chaplain.gossip import events as gossip
from chaplain.gossip.core import GossipCore
from chaplain.gossip.events import GossipParcel, HeardFrom, JoinThrough, KeyConfirmed, KeyStep, MemberChanged, Rotated
from chaplain.journal import events
from chaplain.journal.consensus.events import ConsensusStarted, LogRead, ReadLog, Role, RoleChanged, SpaceTold
from chaplain.journal.core import JournalCore
from chaplain.journal.events import Admitted, Rehearse, Rehearsed, Verified, Verify
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
from chaplain.node.fair_queue import FairQueue
from chaplain.node.keyring_store import READABLE, RingKeeper, beacon_keys
from chaplain.node.layer_api import UpperCore
from chaplain.node.layer_slot import LayerSlot
from chaplain.node.node_ids import Names
from chaplain.node.recorder import Recorder
from chaplain.node.removed_nodes import RemovedNodes
from chaplain.node.settings import NodeSettings
from chaplain.node.snapshot import Snapshot
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer

_OF_JOURNAL = (Verified, Rehearsed, LogRead, SpaceTold)

NodeInput: TypeAlias = HostInput | mesh.JoinPool | mesh.LeavePool | mesh.Shout
"""From the host, or from a program that runs in the node's own process."""

CONTENTION_NS = 1_000_000_000
"""Clients contend if requests of two of them were served within this time."""


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
        uppers: Mapping[Layer, UpperCore] | None = None,
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
        self._names = Names(settings.node_ids, journal)
        self.uppers: Mapping[Layer, UpperCore] = uppers or {}
        for upper in self.uppers.values():
            getattr(upper, "name_nodes", _ignore)(self._names.id)
        self.recorder = recorder
        self._status = Snapshot(lambda: status.of_node(self))
        self._members = Snapshot(lambda: status.of_members(self))
        clearance = Authorization(journal, self.uppers)
        layers = frozenset(self.uppers)
        names = (self.node_id, self._names.identifier)
        limits = Limits(
            content_bytes_max=settings.gossip.content_bytes_max,
            broadcast_bytes_max=settings.mesh.content_bytes_max - ITEM_BYTES,
            pools_max=settings.mesh.pools_max,
            questions_max=settings.gossip.questions_max,
            kept_pools=frozenset(() if recorder is None else recorder.pools),
        )
        wants, may, is_admin = clearance.wants, clearance.may, clearance.is_admin
        views = NodeViews(self.status, self.members, *names, layers, wants, may, is_admin, self._unheard_ns, limits)
        self.desk = DeskCore(identity.identifier, settings.desk, views)
        self.role = RoleChanged(Role.OUT, 0, 0)
        """What this node is in the journal's order."""
        self._rings = RingKeeper(ring, rng)
        self._clients = dict(clients)
        self._presence = RemovedNodes([at for at, core in self.uppers.items() if getattr(core, "patient", False)])
        self._writing: dict[int, tuple[LayerSlot, KeyConfirmed | Persisted]] = {}
        """By ticket: whom to tell what when it is on disk."""
        self._last_ticket = 0
        self._begun = False
        self._work: deque[tuple[LayerSlot, Any]] = deque()
        bounds = settings.clients
        self._last_client = b""
        """The key of the client whose request was served last."""
        self._other_client_ns = -CONTENTION_NS
        """When a request of another client than the one before was served last."""
        self._requests: FairQueue[Whispered] = FairQueue(
            bounds.session_bytes_max, bounds.identity_bytes_max, bounds.bytes_max
        )
        self.client_counts: Counter[str] = Counter()
        self._out: list[HostEffect] = []
        self._link, self._mesh, self._gossip, self._desk = self._places()
        self._journal = None if journal is None else self._place_of(journal)
        self._uppers: dict[int, LayerSlot] = {layer: self._place_of_upper(core) for layer, core in self.uppers.items()}
        above = [*([] if self._journal is None else [self._journal]), *self._uppers.values()]
        self._recorder = None if recorder is None else self._place_of_recorder(recorder)
        self._above = above
        self._layers = [self._link, self._mesh, self._gossip, *above]
        self._takers: dict[type, LayerSlot] = {
            **dict.fromkeys((host.Arrived, host.Flushed, host.Knocked, host.Connected, host.Disconnected), self._link),
            **dict.fromkeys((host.Heard, mesh.JoinPool, mesh.LeavePool, mesh.Shout), self._mesh),
            **({} if self._journal is None else dict.fromkeys(_OF_JOURNAL, self._journal)),
            **{kind: self._uppers[at] for at, core in self.uppers.items() for kind in getattr(core, "answers", ())},
        }
        """Who takes an input as it is."""

    def node_id(self, identifier: int) -> int:
        return self._names.id(identifier)

    def status(self) -> bytes:
        """How this node sees itself and its cluster, as JSON."""
        return self._status.get(self.now_ns, self._version())

    def members(self) -> bytes:
        """The membership list, as JSON."""
        return self._members.get(self.now_ns, self._version())

    def _version(self) -> tuple[object, ...]:
        """The values whose change a client expects to see in the status at once."""
        return (0 if self.journal is None else self.journal.execution.applied_index, self.role)

    def _unheard_ns(self, instance: bytes) -> int:
        return self.link.unheard_ns(self.now_ns, instance)

    @property
    def waiting(self) -> bool:
        """Whether requests of clients wait for `Serve`."""
        return self.settings.clients.paced and bool(self._requests)

    @property
    def contended(self) -> bool:
        """Whether requests of more than one client were served lately."""
        return self.now_ns - self._other_client_ns < CONTENTION_NS

    def ready(self) -> bool:
        """Whether it serves clients: not when the cluster has removed it."""
        return self.journal is None or not self.journal.removed

    @property
    def counts(self) -> Counter[str]:
        return status.counts(self)

    def gauges(self) -> dict[str, float]:
        return status.gauges(self)

    def deadline(self) -> int | None:
        if not self._begun:
            return self.started_ns
        due_ns: int | None = None
        for place in self._layers:
            deadline = place.due_ns if place.timed else place.deadline()
            if deadline is not None and (due_ns is None or deadline < due_ns):
                due_ns = deadline
        return due_ns

    def step(self, now_ns: int, event: NodeInput) -> list[HostEffect]:
        self.now_ns = now_ns
        self._out = []
        if not self._begun:
            self._begin()
        place = self._takers.get(type(event))
        if place is not None:
            self._work.append((place, event))
            self._run()
            return self._out
        match event:
            case host.Drained():
                while self._requests and not self.settings.clients.paced:
                    self._serve_client()
                self._end_round(event)
                if self._recorder is not None:
                    self._record(event)
                self._run()  # the link last: what the others say now is to travel in the same frames
                self._work.append((self._link, event))
            case host.Serve():
                if self._requests:
                    self._serve_client()
            case host.Woken():
                self._wake()
            case Persisted():
                self._written(event.ticket)
            case PersistFailed():
                self._failed(event)
            case host.Stopping():
                self._work.extend((place, event) for place in reversed(self._layers[1:]))
        self._run()
        return self._out

    def _begin(self) -> None:
        self._begun = True
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
        for place in self._layers:
            deadline = place.deadline()
            if deadline is not None and deadline <= self.now_ns:
                self._work.append((place, host.Woken()))

    def _run(self) -> None:
        work = self._work
        while work:
            place, event = work.popleft()
            place.stirred, place.timed = type(event) is not host.Drained, False
            for effect in place.step(self.now_ns, event):
                place.routes[type(effect)](effect)

    def _end_round(self, event: host.Drained) -> None:
        """For those who had a part in it, and for those who follow the journal."""
        ordered = self._journal is not None and self._journal.stirred
        for place in self._above:
            if place.stirred or (ordered and place.follows):
                self._work.append((place, event))

    # Who gets what.

    def _places(self) -> tuple[LayerSlot, LayerSlot, LayerSlot, LayerSlot]:
        to_link = LayerSlot(self.link.step, self.link.deadline)
        to_mesh = LayerSlot(self.mesh.step, self.mesh.deadline)
        to_gossip = LayerSlot(self.gossip.step, self.gossip.deadline)
        to_desk = LayerSlot(self.desk.step, self.desk.deadline)

        def give(place: LayerSlot) -> Callable[[Any], None]:
            return lambda effect: self._work.append((place, effect))

        to_link.send(self._emit, host.Admit, host.Refuse, host.Dial, host.HangUp, host.Send, Report)
        to_link.send(give(to_mesh), link.Met, link.Missed, link.CommandDropped, link.Parted)
        to_link.send(self._said, Said)

        to_mesh.send(self._emit, host.Cast, Report)
        to_mesh.send(give(to_link), link.Meet, link.Forget, link.Dismiss, link.Introduce)
        to_mesh.send(self._say, link.Say)
        to_mesh.send(self._shared(to_desk), mesh.Shouted)
        to_mesh.send(self._entered, Entered)
        to_mesh.send(self._exited, Exited)
        to_mesh.send(self._whispered, Whispered)
        to_mesh.send(self._gapped, Gapped)
        to_mesh.send(give(to_desk), mesh.Joined, mesh.Left)
        to_mesh.send(_ignore, mesh.Answered)

        to_gossip.send(self._emit, Report)
        to_gossip.send(give(to_mesh), mesh.Whisper, link.Meet, link.Forget)
        to_gossip.send(give(to_desk), gossip.Questioned, gossip.QueryDecided, gossip.Acknowledged, gossip.Rotated)
        to_gossip.send(self._shared(to_desk), gossip.EventSeen)
        to_gossip.send(self._change_ring, InstallKey, UseKey, RemoveKey)
        to_gossip.send(self._member_changed, MemberChanged)

        to_desk.send(self._emit, Report)
        to_desk.send(give(to_mesh), mesh.Whisper, mesh.JoinPool, mesh.LeavePool)
        to_desk.send(self._shared(to_mesh), mesh.Shout)
        to_desk.send(give(to_gossip), gossip.Fire, gossip.AskQuery, gossip.GiveAnswer)
        to_desk.send(give(to_gossip), gossip.RegisterQuestion, gossip.UnregisterQuestion)
        to_desk.send(self._rotate, RotationWanted)
        to_desk.send(lambda effect: self._work.append((self._uppers[effect.layer], effect.event)), ForLayer)
        return to_link, to_mesh, to_gossip, to_desk

    def _place_of(self, journal: JournalCore) -> LayerSlot:
        place = LayerSlot(journal.step, journal.deadline)
        place.send(self._emit, Report, Halt, Verify, ReadLog)
        place.send(lambda effect: self._work.append((self._mesh, effect)), mesh.Whisper)
        place.send(self._admitted, Admitted)
        place.send(lambda persist: self._write(place, Persisted(persist.ticket), persist.operations), Persist)
        place.send(lambda assembled: self._work.append((self._gossip, assembled)), gossip.Assembled)
        place.send(self._role_changed, RoleChanged)
        place.send(self._expel, Expel)
        place.send(lambda effect: self._work.append((self._uppers[Layer.EXECUTOR], effect)), Rehearse)
        return place

    def _place_of_upper(self, upper: UpperCore) -> LayerSlot:
        place = LayerSlot(upper.step, upper.deadline, follows=getattr(upper, "follows_journal", False))
        place.send(self._emit, Report, Halt, *getattr(upper, "errands", ()))
        place.send(lambda effect: self._work.append((self._mesh, effect)), mesh.Whisper, link.Meet)
        place.send(lambda effect: self._work.append((self._desk, effect)), Settled)
        place.send(lambda effect: self._work.append((self._takers[Rehearsed], effect)), Rehearsed)
        place.send(lambda persist: self._write(place, Persisted(persist.ticket), persist.operations), Persist)
        return place

    def _place_of_recorder(self, recorder: Recorder) -> LayerSlot:
        place = LayerSlot(recorder.step, recorder.deadline)
        place.send(self._emit, Report)
        place.send(lambda persist: self._write(place, Persisted(persist.ticket), persist.operations), Persist)
        return place

    def _shared(self, place: LayerSlot) -> Callable[[Any], None]:
        """For the layer it is for, and for the recorder."""

        def hand(effect: Any) -> None:
            self._work.append((place, effect))
            self._record(effect)

        return hand

    def _record(self, event: Any) -> None:
        if self._recorder is not None:
            self._work.append((self._recorder, event))

    def _emit(self, effect: HostEffect) -> None:
        self._out.append(effect)

    def _say(self, say: link.Say) -> None:
        """Straight to the link while nothing else waits: the order is the same, and of nothing there is more."""
        if self._work:
            self._work.append((self._link, say))
            return
        self._link.timed = False
        for effect in self.link.step(self.now_ns, say):
            self._link.routes[type(effect)](effect)

    # News of peers.

    def _said(self, said: Said) -> None:
        if identifier := self._presence.hear(self.now_ns, said.instance):
            self._work.append((self._gossip, HeardFrom(identifier)))
        self._work.append((self._mesh, said))

    def _entered(self, event: Entered) -> None:
        peer = event.peer
        if self._journal is not None:
            self._work.append((self._journal, event))
        if self._presence.is_expelled(peer):
            return
        self._work.append((self._desk, event))
        if peer.client:
            return
        self._presence.enter(self.now_ns, peer)
        self._tell_uppers(event)
        self._work.append((self._gossip, event))

    def _exited(self, event: Exited) -> None:
        if self._journal is not None:
            self._work.append((self._journal, event))
        if event.peer.client:
            self._requests.drop(event.peer.key, event.peer.instance)
            self._work.append((self._desk, event))
        elif self._presence.exit(event.peer):
            self._work.append((self._desk, event))
            self._tell_uppers(event)
            self._work.append((self._gossip, event))
        elif self._presence.let_go(event.peer):
            self._work.extend((self._uppers[layer], event) for layer in self._presence.patient)

    def _admitted(self, admitted: Admitted) -> None:
        """The clients that may have a session, or their rights, have changed."""
        self._work.append((self._link, Register(dict(admitted.clients))))
        self._work.append((self._desk, RightsChanged()))

    def _expel(self, expel: Expel) -> None:
        """Their sessions stay, but for all but the journal and who is patient it is as if they had ended."""
        self._work += [(self._mesh, expel), (self._gossip, expel)]
        for peer in self._presence.expel(expel.keys, self.mesh.peers().values()):
            hasty = (place for layer, place in self._uppers.items() if layer not in self._presence.patient)
            self._work.extend((place, Exited(peer, "removed")) for place in (self._desk, *hasty, self._gossip))

    def _tell_uppers(self, event: Entered | Exited | MemberChanged) -> None:
        self._work.extend((place, event) for place in self._uppers.values())

    def _gapped(self, event: Gapped) -> None:
        """Losses are never silent: they go into the next item of the listeners concerned, and a peer's into the log."""
        self._work.append((self._desk, event))
        if not event.peer.client:
            self._out.append(log_lines.lost(event, self.node_id(event.peer.identifier)))

    def _whispered(self, event: Whispered) -> None:
        peer = event.peer
        if not peer.client:
            self._hand_on(event)
        elif not self._requests.put(peer.key, peer.instance, event, len(event.content)):
            # The client sends more than it is served: it loses its session, and with it whatever it has asked for.
            self.client_counts["requests_dropped"] += 1 + self._requests.drop(peer.key, peer.instance)
            self.client_counts["sessions_overrun"] += 1
            self._out.append(log_lines.overrun(peer.client))
            self._work.append((self._link, link.Dismiss(peer.instance)))

    def _serve_client(self) -> None:
        """Do all that the next request of a client calls for."""
        request = self._requests.take()
        if request.peer.key != self._last_client:
            if self._last_client:
                self._other_client_ns = self.now_ns
            self._last_client = request.peer.key
        self._hand_on(request)
        self._run()

    def _hand_on(self, event: Whispered) -> None:
        try:
            opened = parcel.decode(event.content)
        except Malformed as error:
            name = self.node_id(event.peer.identifier)
            self._out.append(log_lines.refused("parcel malformed", name, str(error)))
            return
        of_journal = opened.layer == Layer.JOURNAL or self._presence.is_shut_out(event.peer, opened.layer)
        if of_journal and self._journal is not None:
            self._work.append((self._journal, events.JournalParcel(event.peer, opened)))
        elif event.peer.client:
            self._work.append((self._desk, event))
        elif opened.layer == Layer.GOSSIP:
            self._work.append((self._gossip, GossipParcel(event.peer, opened)))
        elif (place := self._uppers.get(opened.layer)) is not None:
            self._work.append((place, GossipParcel(event.peer, opened)))
        else:
            name = self.node_id(event.peer.identifier)
            self._out.append(log_lines.refused("parcel refused", name, f"nobody here speaks layer {opened.layer}"))

    def _member_changed(self, event: MemberChanged) -> None:
        self._tell_uppers(event)
        self._work.append((self._desk, event))
        self._out.append(log_lines.member(event, self.node_id(event.member.identifier)))

    # The key ring.

    def _rotate(self, wanted: RotationWanted) -> None:
        if self.settings.link.seal == HMAC:
            self._work.append((self._desk, Rotated(wanted.call, False, KeyStep.INSTALL, (), READABLE)))
            return
        configured = tuple(identifier for identifier in self._names.members() if identifier != self.identifier)
        rotation = self._rings.rotation(wanted.call, self.settings.rotation_timeout_ns, configured)
        self._work.append((self._gossip, rotation))

    def _change_ring(self, change: InstallKey | UseKey | RemoveKey) -> None:
        """The link takes the step at once; others hear of it when the ring is on disk, and only if it was taken."""
        self._link.timed = False
        for one in self._rings.changes(change):
            for effect in self.link.step(self.now_ns, one):
                self._link.routes[type(effect)](effect)
        if (confirmed := self._rings.taken(change)) is not None:
            self._write(self._gossip, confirmed, (self._rings.file(),))

    # The disk.

    def _write(self, who: LayerSlot, then: KeyConfirmed | Persisted, operations: tuple[Operation, ...]) -> None:
        """Every layer numbers its own tickets, so the host sees numbers of ours."""
        self._last_ticket += 1
        self._writing[self._last_ticket] = (who, then)
        self._out.append(Persist(self._last_ticket, operations))

    def _written(self, ticket: int) -> None:
        self._work.append(self._writing.pop(ticket))

    def _failed(self, event: PersistFailed) -> None:
        """The journal says what it can no longer promise before the node stops."""
        if self._journal is not None:
            self._work.append((self._journal, event))
        else:
            self._out.append(Halt(f"the disk failed: {event.reason}"))

    def _role_changed(self, event: RoleChanged) -> None:
        self.role = event
        self._out.append(log_lines.role(event))


def _ignore(effect: object) -> None:
    """Nobody asks for this yet."""
