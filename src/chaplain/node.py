"""A node: one core made of the layers' cores.

It decides only who gets what: each effect of a layer is either the host's, or an input of another layer. Effects are
passed on first in, first out, so that what a layer said first is done first. It also keeps the key ring on disk,
because a key may be confirmed to others only when a restart would not forget it.
"""

from __future__ import annotations

import hmac
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from chaplain import core as host
from chaplain import status
from chaplain.core import Frozen, Halt, HostEffect, HostInput, Persist, Persisted, PersistFailed, Replace, Report
from chaplain.desk.core import DeskCore, DeskSettings, RotationWanted, Views
from chaplain.errors import Malformed
from chaplain.gossip import events as gossip
from chaplain.gossip.core import GossipCore
from chaplain.gossip.events import HeardFrom, JoinThrough, KeyConfirmed, KeyStep, MemberChanged, RotateKey, Told
from chaplain.gossip.settings import GossipSettings
from chaplain.link import events as link
from chaplain.link.core import LinkCore
from chaplain.link.events import InstallKey, Peer, Register, RemoveKey, Said, UseKey
from chaplain.link.identity import Identity, route_of
from chaplain.link.keyring import CLUSTER_KEY_BYTES, KeyRing, key_id_of
from chaplain.link.settings import LinkSettings
from chaplain.mesh import events as mesh
from chaplain.mesh.beacon import BeaconKeys
from chaplain.mesh.core import MeshCore
from chaplain.mesh.events import Entered, Exited, Gapped, Whispered
from chaplain.mesh.settings import MeshSettings
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer

KEYRING_FILE = "keyring"
"""Where the runtime reads the ring at the next start."""
HEARD_EVERY_NS = 10**9
"""Gossip wants to know who was heard, but not of every frame."""


NodeInput: TypeAlias = HostInput | mesh.JoinPool | mesh.LeavePool | mesh.Shout
"""From the host, or from a program that runs in the node's own process."""


class NodeSettings(Frozen, frozen=True):
    link: LinkSettings
    mesh: MeshSettings
    gossip: GossipSettings
    desk: DeskSettings = DeskSettings()
    beacon: bool = False
    """Whether to find neighbours by datagrams, too."""
    neighbours: tuple[str, ...] = ()
    """Endpoints to join the cluster through; one that answers is enough."""
    node_ids: Mapping[int, int] = {}
    """The names people know nodes by, from their identifiers; others go by their identifier."""
    rotation_timeout_ns: int = 30 * 10**9


class _Place(NamedTuple):
    """A layer, and where each of its effects goes."""

    step: Callable[[int, Any], list[Any]]
    deadline: Callable[[], int | None]
    routes: dict[type, Callable[[Any], None]]

    def send(self, hand: Callable[[Any], None], *kinds: type) -> None:
        self.routes.update(dict.fromkeys(kinds, hand))


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
    ) -> None:
        self.settings = settings
        self.identifier = identity.identifier
        self.routing_id = route_of(instance)
        self.started_ns = self.now_ns = now_ns
        own = Peer(instance, identity.identifier, identity.key, settings.link.endpoint)
        self.link = LinkCore(identity, instance, settings.link, rng, ring=ring)
        self.mesh = MeshCore(settings.mesh, rng, own, _beacon_keys(ring) if settings.beacon else None)
        self.gossip = GossipCore(identity, instance, settings.link.endpoint, settings.gossip, rng, now_ns)
        views = Views(lambda: status.of_node(self), lambda: status.of_members(self), self.node_id, self._identifier_of)
        self.desk = DeskCore(identity.identifier, settings.desk, views)
        self._rng = rng
        self._ring = ring
        self._clients = dict(clients)
        self._heard: dict[bytes, tuple[int, int]] = {}
        """Node peers by instance: identifier, and when gossip was last told that it was heard."""
        self._confirming: dict[int, KeyConfirmed] = {}
        self._last_ticket = 0
        self._begun = False
        self._work: deque[tuple[_Place, Any]] = deque()
        self._out: list[HostEffect] = []
        self._link, self._mesh, self._gossip, self._desk = self._places()

    def node_id(self, identifier: int) -> int:
        return self.settings.node_ids.get(identifier, identifier)

    def _identifier_of(self, node_id: int) -> int:
        return next((identifier for identifier, known in self.settings.node_ids.items() if known == node_id), node_id)

    @property
    def counts(self) -> Counter[str]:
        """Everything the layers count, under their names."""
        merged: Counter[str] = Counter()
        for name, layer in (("link", self.link), ("mesh", self.mesh), ("gossip", self.gossip), ("desk", self.desk)):
            for what, count in layer.counts.items():
                merged[f"{name}_{what}"] = count
        return merged

    def deadline(self) -> int | None:
        if not self._begun:
            return self.started_ns
        deadlines = [place.deadline() for place in (self._link, self._mesh, self._gossip)]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def step(self, now_ns: int, event: NodeInput) -> list[HostEffect]:
        self.now_ns = now_ns
        self._out = []
        if not self._begun:
            self._begin()
        match event:
            case host.Arrived() | host.Flushed() | host.Knocked() | host.Connected() | host.Disconnected():
                self._work.append((self._link, event))
            case host.Drained():
                self._run()  # the link last: what the others say now is to travel in the same frames
                self._work.append((self._link, event))
            case host.Woken():
                self._wake()
            case host.Heard() | mesh.JoinPool() | mesh.LeavePool() | mesh.Shout():
                self._work.append((self._mesh, event))
            case Persisted():
                self._confirm(event.ticket)
            case PersistFailed():
                self._out.append(Halt(f"the disk failed: {event.reason}"))
            case host.Stopping():
                self._work.extend(((self._gossip, event), (self._mesh, event)))
        self._run()
        return self._out

    def _begin(self) -> None:
        self._begun = True
        self._work.append((self._link, self.mesh.introduction()))
        self._work.append((self._link, Register(self._clients)))
        for neighbour in self.settings.neighbours:
            self._work.append((self._gossip, JoinThrough(neighbour)))
        self._wake()

    def _wake(self) -> None:
        for place in (self._link, self._mesh, self._gossip):
            deadline = place.deadline()
            if deadline is not None and deadline <= self.now_ns:
                self._work.append((place, host.Woken()))

    def _run(self) -> None:
        work = self._work
        while work:
            place, event = work.popleft()
            for effect in place.step(self.now_ns, event):
                place.routes[type(effect)](effect)

    # Who gets what.

    def _places(self) -> tuple[_Place, _Place, _Place, _Place]:
        to_link = _Place(self.link.step, self.link.deadline, {})
        to_mesh = _Place(self.mesh.step, self.mesh.deadline, {})
        to_gossip = _Place(self.gossip.step, self.gossip.deadline, {})
        to_desk = _Place(self.desk.step, self.desk.deadline, {})

        def give(place: _Place) -> Callable[[Any], None]:
            return lambda effect: self._work.append((place, effect))

        to_link.send(self._emit, host.Admit, host.Refuse, host.Dial, host.HangUp, host.Send, Report)
        to_link.send(give(to_mesh), link.Met, link.Missed, link.Dropped, link.Parted)
        to_link.send(self._said, Said)

        to_mesh.send(self._emit, host.Cast, Report)
        to_mesh.send(give(to_link), link.Say, link.Meet, link.Forget, link.Introduce)
        to_mesh.send(give(to_desk), mesh.Shouted)
        to_mesh.send(self._entered, Entered)
        to_mesh.send(self._exited, Exited)
        to_mesh.send(self._whispered, Whispered)
        to_mesh.send(self._gapped, Gapped)
        to_mesh.send(_ignore, mesh.Joined, mesh.Left, mesh.Answered)

        to_gossip.send(self._emit, Report)
        to_gossip.send(give(to_mesh), mesh.Whisper, link.Meet, link.Forget)
        to_gossip.send(give(to_desk), gossip.EventSeen, gossip.Questioned, gossip.Decided, gossip.Rotated)
        to_gossip.send(self._change_ring, InstallKey, UseKey, RemoveKey)
        to_gossip.send(self._member_changed, MemberChanged)

        to_desk.send(self._emit, Report)
        to_desk.send(give(to_mesh), mesh.Whisper, mesh.Shout, mesh.JoinPool, mesh.LeavePool)
        to_desk.send(give(to_gossip), gossip.Fire, gossip.Ask, gossip.GiveAnswer, gossip.RegisterQuestion)
        to_desk.send(self._rotate, RotationWanted)
        return to_link, to_mesh, to_gossip, to_desk

    def _emit(self, effect: HostEffect) -> None:
        self._out.append(effect)

    # News of peers.

    def _said(self, said: Said) -> None:
        heard = self._heard.get(said.instance)
        if heard is not None and self.now_ns - heard[1] >= HEARD_EVERY_NS:
            self._heard[said.instance] = (heard[0], self.now_ns)
            self._work.append((self._gossip, HeardFrom(heard[0])))
        self._work.append((self._mesh, said))

    def _entered(self, event: Entered) -> None:
        peer = event.peer
        if peer.client:
            self._work.append((self._desk, event))
            return
        self._heard[peer.instance] = (peer.identifier, self.now_ns)
        self._work.append((self._gossip, event))

    def _exited(self, event: Exited) -> None:
        self._heard.pop(event.peer.instance, None)
        self._work.append((self._desk if event.peer.client else self._gossip, event))

    def _gapped(self, event: Gapped) -> None:
        """Losses are never silent: they go into the next item of the listeners concerned, and a peer's into the log."""
        self._work.append((self._desk, event))
        if event.peer.client:
            return
        detail: dict[str, str | int] = {"count": event.count, "direction": "out" if event.outgoing else "in"}
        self._out.append(Report("commands lost", str(self.node_id(event.peer.identifier)), detail))

    def _whispered(self, event: Whispered) -> None:
        if event.peer.client:
            self._work.append((self._desk, event))
            return
        try:
            opened = parcel.decode(event.content)
        except Malformed as error:
            self._report_peer("parcel malformed", event.peer, str(error))
            return
        if opened.layer == Layer.GOSSIP:
            self._work.append((self._gossip, Told(event.peer, opened)))
        else:
            self._report_peer("parcel refused", event.peer, f"nobody here speaks layer {opened.layer}")

    def _report_peer(self, what: str, peer: Peer, reason: str) -> None:
        self._out.append(Report(what, str(self.node_id(peer.identifier)), {"reason": reason}))

    def _member_changed(self, event: MemberChanged) -> None:
        member = event.member
        was = str(event.old or "unknown")
        detail: dict[str, str | int] = {"state": str(member.state), "was": was, "incarnation": member.incarnation}
        self._out.append(Report("member", str(self.node_id(member.identifier)), detail))

    # The key ring.

    def _rotate(self, wanted: RotationWanted) -> None:
        key = self._rng.randbytes(CLUSTER_KEY_BYTES)
        required = tuple(sorted(identifier for identifier in self.settings.node_ids if identifier != self.identifier))
        rotation = RotateKey(
            wanted.call, key, key_id_of(key), self._ring.used_id, self.settings.rotation_timeout_ns, required
        )
        self._work.append((self._gossip, rotation))

    def _change_ring(self, change: InstallKey | UseKey | RemoveKey) -> None:
        """The link takes the step at once; others hear of it when the ring is on disk."""
        for effect in self.link.step(self.now_ns, change):
            self._link.routes[type(effect)](effect)
        match change:
            case InstallKey():
                confirmed = KeyConfirmed(KeyStep.INSTALL, key_id_of(change.key))
            case UseKey():
                confirmed = KeyConfirmed(KeyStep.USE, change.key_id)
            case RemoveKey():
                confirmed = KeyConfirmed(KeyStep.REMOVE, change.key_id)
        self._last_ticket += 1
        self._confirming[self._last_ticket] = confirmed
        ring = Replace(KEYRING_FILE, self._ring.text().encode())
        self._out.append(Persist(self._last_ticket, (ring,)))

    def _confirm(self, ticket: int) -> None:
        confirmed = self._confirming.pop(ticket, None)
        if confirmed is not None:
            self._work.append((self._gossip, confirmed))


def _beacon_keys(ring: KeyRing) -> BeaconKeys:
    """Beacons are made with the used key and believed under any installed one."""

    def mac(key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, b"chaplain beacon" + data, "sha256")

    def verify(data: bytes, given: bytes) -> bool:
        keys = [ring.get(key_id) for key_id in ring.ids]
        return any(hmac.compare_digest(mac(key, data), given) for key in keys if key is not None)

    return BeaconKeys(lambda data: mac(ring.used, data), verify)


def _ignore(effect: object) -> None:
    """Nobody above the mesh asks for this yet."""
