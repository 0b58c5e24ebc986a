"""A stage for link cores: channels in memory, a clock that only moves when told, everything written down.

Frames wait in one queue per direction of a channel until `deliver` or `settle` moves them, so a test decides every
interleaving. Nothing here is random.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from chaplain.core import (
    Admit,
    Arrived,
    Channel,
    Connected,
    Dial,
    Disconnected,
    Drained,
    Flushed,
    HangUp,
    Knocked,
    Refuse,
    Report,
    Send,
    Woken,
)
from chaplain.link.auth.hello import GREETING_NODE
from chaplain.link.auth.identity import Identity, new_instance
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.core import LinkCore
from chaplain.link.events import CommandDropped, LinkEffect, LinkInput, Meet, Met, Missed, Parted, Said, Say
from chaplain.link.settings import LinkSettings

SECOND_NS = 1_000_000_000
START_NS = 1_800_000_000 * SECOND_NS
CLUSTER_KEY = bytes(range(32))
CLUSTER = "test"


@dataclass
class Wire:
    """One admitted connection: what the dialler sent, and what it is to receive, each in order."""

    dialler: Actor
    dial: int
    listener: Actor
    there: deque[bytes] = field(default_factory=deque)
    back: deque[bytes] = field(default_factory=deque)
    log: list[bytes] = field(default_factory=list)
    """Every frame the dialler ever sent on it."""

    @property
    def route(self) -> bytes:
        return self.dialler.core.route


class Actor:
    """One core and all that ever came out of it."""

    def __init__(self, stage: Stage, name: str, core: LinkCore, endpoint: str) -> None:
        self.stage, self.name, self.core, self.endpoint = stage, name, core, endpoint
        self.met: list[Met] = []
        self.said: list[Said] = []
        self.missed: list[Missed] = []
        self.dropped: list[CommandDropped] = []
        self.parted: list[Parted] = []
        self.reports: list[Report] = []
        self.admitted: dict[bytes, bool] = {}
        self.refused: list[str] = []
        self.dials: list[Dial] = []
        self.hung_up: list[Channel] = []
        self.log: list[LinkEffect] = []
        self.taken = 0
        """Commands that the core took and did not drop."""

    @property
    def instance(self) -> bytes:
        return self.core.instance

    @property
    def sessions(self) -> set[bytes]:
        """Who this side believes to be in session with, from what it told the layer above."""
        up: set[bytes] = set()
        for effect in self.log:
            if isinstance(effect, Met):
                assert effect.peer.instance not in up, "met twice without parting"
                up.add(effect.peer.instance)
            elif isinstance(effect, Parted):
                up.remove(effect.peer.instance)
        return up

    def step(self, event: LinkInput) -> list[LinkEffect]:
        effects = self.core.step(self.stage.now_ns, event)
        self.taken += isinstance(event, Say) and not any(isinstance(effect, CommandDropped) for effect in effects)
        for effect in effects:
            self._perform(effect)
        self.stage.check(self)
        return effects

    def say(self, to: Actor | bytes, command: bytes, urgent: bool = False) -> list[LinkEffect]:
        """In a wake-up of its own."""
        said = self.step(Say(to if isinstance(to, bytes) else to.instance, command, urgent))
        return said + self.step(Drained())

    def meet(self, other: Actor) -> None:
        self.step(Meet(other.endpoint))

    def heard(self) -> list[bytes]:
        return [command for said in self.said for command in said.commands]

    def reasons(self, event: str) -> list[str]:
        return [str(report.detail["reason"]) for report in self.reports if report.event == event]

    def _perform(self, effect: LinkEffect) -> None:
        self.log.append(effect)
        match effect:
            case Met():
                self.met.append(effect)
            case Said():
                self.said.append(effect)
            case Missed():
                self.missed.append(effect)
            case CommandDropped():
                self.dropped.append(effect)
            case Parted():
                self.parted.append(effect)
            case Report():
                self.reports.append(effect)
            case Admit():
                self.admitted[effect.request] = True
            case Refuse():
                self.admitted[effect.request] = False
                self.refused.append(effect.reason)
            case Dial():
                self.dials.append(effect)
                self.stage.dialled.append((self, effect))
            case HangUp():
                self.hung_up.append(effect.channel)
                self.stage.hang_up(self, effect.channel)
            case Send():
                self.stage.send(self, effect)


class Stage:
    def __init__(self, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.now_ns = START_NS
        self.actors: dict[str, Actor] = {}
        self.listening: dict[str, Actor] = {}
        self.wires: list[Wire] = []
        self.dialled: deque[tuple[Actor, Dial]] = deque()
        self.unreachable: set[str] = set()
        self._requests = 0

    # Casting.

    def node(
        self,
        name: str,
        *,
        identity: Identity | None = None,
        ring: KeyRing | None = None,
        port: int | None = None,
        **settings: object,
    ) -> Actor:
        endpoint = f"tcp://127.0.0.1:{port or 7001 + len(self.listening)}"
        made = LinkSettings(**{"cluster": CLUSTER, "endpoint": endpoint, **settings})
        actor = self._cast(name, identity, made, ring=ring or KeyRing(CLUSTER_KEY))
        self.listening[endpoint] = actor
        return actor

    def client(
        self, name: str, pinned: frozenset[bytes], identity: Identity | None = None, **settings: object
    ) -> Actor:
        return self._cast(name, identity, LinkSettings(**{"cluster": CLUSTER, **settings}), pinned=pinned)

    def restart(self, actor: Actor) -> Actor:
        """The process is killed and started again: same identity and endpoint, nothing else is left."""
        self.drop(actor)
        del self.listening[actor.endpoint]
        return self.node(
            actor.name,
            identity=actor.core.identity,
            ring=actor.core.ring,
            port=int(actor.endpoint.rpartition(":")[2]),
        )

    def _cast(self, name: str, identity: Identity | None, settings: LinkSettings, **roles: object) -> Actor:
        identity = identity or Identity.generate(self.rng)
        rng = random.Random(self.rng.getrandbits(64))
        core = LinkCore(identity, new_instance(rng), settings, rng, **roles)
        actor = self.actors[name] = Actor(self, name, core, settings.endpoint)
        return actor

    # The network.

    def send(self, actor: Actor, effect: Send) -> None:
        wire = self.wire_of(actor, effect.channel)
        if wire is None:
            return
        if isinstance(effect.channel, int):
            wire.there.append(effect.frame)
            wire.log.append(effect.frame)
        else:
            wire.back.append(effect.frame)

    def wire_of(self, actor: Actor, channel: Channel) -> Wire | None:
        for wire in self.wires:
            if isinstance(channel, int) and wire.dialler is actor and wire.dial == channel:
                return wire
            if isinstance(channel, bytes) and wire.listener is actor and wire.route == channel:
                return wire
        return None

    def between(self, dialler: Actor, listener: Actor) -> Wire:
        (wire,) = [wire for wire in self.wires if wire.dialler is dialler and wire.listener is listener]
        return wire

    def connect(self) -> None:
        """Let every dial find its listener, knock, and be admitted or not."""
        while self.dialled:
            actor, dial = self.dialled.popleft()
            listener = self.listening.get(dial.endpoint)
            if listener is None or dial.endpoint in self.unreachable or not self.knock(listener, dial.name, dial.proof):
                actor.step(Disconnected(dial.dial, "refused"))
            else:
                self.wires.append(Wire(actor, dial.dial, listener))
                actor.step(Connected(dial.dial))

    def knock(self, listener: Actor, name: bytes, proof: bytes) -> bool:
        self._requests += 1
        request = self._requests.to_bytes(4, "big")
        listener.step(Knocked(request, name, proof, "127.0.0.1"))
        return listener.admitted[request]

    def deliver(self, wire: Wire, back: bool = False) -> None:
        """Move one frame along, as the host does."""
        if back:
            frame = wire.back.popleft()
            wire.listener.step(Flushed(wire.route, len(frame)))
            wire.dialler.step(Arrived(wire.dial, frame))
        else:
            frame = wire.there.popleft()
            wire.dialler.step(Flushed(wire.dial, len(frame)))
            wire.listener.step(Arrived(wire.route, frame))

    def settle(self) -> None:
        """Everything that can move without time passing does."""
        for _ in range(10_000):
            self.connect()
            busy = [
                (wire, back) for wire in self.wires for back in (False, True) if (wire.back if back else wire.there)
            ]
            if not busy and not self.dialled:
                return
            for wire, back in busy:
                if wire in self.wires and (wire.back if back else wire.there):
                    self.deliver(wire, back)
        raise AssertionError("the cores never come to rest")

    def cut(self, wire: Wire, told: bool = True) -> None:
        """The connection breaks; what was on its way is lost."""
        self.wires.remove(wire)
        wire.dialler.step(Disconnected(wire.dial, "cut"))
        if told:
            wire.listener.step(Disconnected(wire.route, "cut"))

    def hang_up(self, actor: Actor, channel: Channel) -> None:
        wire = self.wire_of(actor, channel)
        if wire is not None:
            self.wires.remove(wire)

    def drop(self, actor: Actor) -> None:
        """A process dies: those who dialled it see it, those it dialled do not."""
        for wire in [wire for wire in self.wires if actor in (wire.dialler, wire.listener)]:
            self.wires.remove(wire)
            if wire.listener is actor:
                wire.dialler.step(Disconnected(wire.dial, "gone"))
        self.dialled = deque((who, dial) for who, dial in self.dialled if who is not actor)
        self.actors = {name: other for name, other in self.actors.items() if other is not actor}

    # Time.

    def run(self, duration_ns: int) -> None:
        """Let time pass, waking every core at its deadline."""
        end_ns = self.now_ns + duration_ns
        self.settle()
        for _ in range(100_000):
            due = [(at, name) for name, actor in self.actors.items() if (at := actor.core.deadline()) is not None]
            if not due or min(due)[0] > end_ns:
                self.now_ns = end_ns
                return
            at_ns, name = min(due)
            self.now_ns = max(self.now_ns, at_ns)
            self.actors[name].step(Woken())
            self.settle()
        raise AssertionError("the cores never stop waking")

    # What must hold after every step.

    def check(self, actor: Actor) -> None:
        core = actor.core
        assert core.deadline() in (core._tables.next_ns(), 0)
        assert set(core._tables.by_channel.values()) == set(core._tables.sessions.values())
        assert {outgoing.offer.nonce for outgoing in core._tables.outgoing_channels.values() if outgoing.offer} == set(
            core._tables.offers
        )
        for outgoing in core._tables.outgoing_channels.values():
            assert outgoing.queued_bytes >= 0
            assert outgoing.session is None or outgoing.session in core._tables.sessions.values()


def pair(**settings: object) -> tuple[Stage, Actor, Actor]:
    """Two nodes in session."""
    stage = Stage()
    alice, bob = stage.node("alice", **settings), stage.node("bob", **settings)
    alice.meet(bob)
    stage.settle()
    assert alice.sessions == {bob.instance}
    assert bob.sessions == {alice.instance}
    return stage, alice, bob


# What attackers do, and what must be as before.


def sealed(alice: Actor, bob: Actor, command: bytes) -> bytes:
    """What alice would put on the wire for bob, taken off it again."""
    (send,) = alice.say(bob, command)
    assert isinstance(send, Send)
    wire = alice.stage.between(alice, bob)
    assert wire.there.pop() == send.frame
    return send.frame


def inject(bob: Actor, alice: Actor, frame: bytes) -> None:
    """Somebody on the path puts a frame into alice's connection to bob."""
    bob.step(Arrived(alice.core.route, frame))


def greetings(wire: Wire) -> list[bytes]:
    return [frame for frame in wire.log if frame[0] == GREETING_NODE]


def unharmed(stage: Stage, alice: Actor, bob: Actor) -> None:
    """After the attack the session is the same one and still carries commands."""
    for one, other in ((alice, bob), (bob, alice)):
        assert [met.peer.instance for met in one.met].count(other.instance) == 1
        assert one.parted == []
    before = bob.heard()
    alice.say(bob, b"still here")
    stage.settle()
    assert bob.heard() == [*before, b"still here"]
    assert not bob.missed
