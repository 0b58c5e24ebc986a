"""Greet: nodes meet over the link alone, and send numbered commands to every node they have met.

There are two members most of the time, up to five. Now and then there is a node with the cluster's key but another
cluster name, one with the name but another key, and one that claims another's identity. Members change their metadata,
forget each other for a while, and move to a new cluster key. `simulator.checkers.link` checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

from chaplain.core import Stopping, Woken
from chaplain.link.auth.identity import Identity, new_instance
from chaplain.link.auth.keyring import KeyRing, key_id_of
from chaplain.link.core import LinkCore
from chaplain.link.events import Forget, InstallKey, Introduce, Meet, Met, Parted, Say, UseKey
from chaplain.link.settings import LinkSettings
from chaplain.units import MILLISECOND_NS, SECOND_NS
from chaplain.wire.command import Alive, encode
from simulator.checkers.base import Checker
from simulator.checkers.link import (
    BudgetWatch,
    DoorWatch,
    GreetingWatch,
    LiveWatch,
    ProcessRegistry,
    SealWatch,
    SpeechWatch,
)
from simulator.faults.plan import ATTACK, CLOCK, NETWORK, Fault
from simulator.workloads import Workload
from simulator.world.machine import CrashPoint
from simulator.world.world import World

FORGET, INTRODUCE, ROTATE = "forget a while", "introduce anew", "new cluster key"
_PAUSE_NS = (200 * MILLISECOND_NS, 900 * MILLISECOND_NS)
_LARGE_BYTES = 20_000
_RESERVE_BYTES = 30_000
_GREETINGS_BYTES = 20_000
"""Greetings are sent regardless of the queue; a few of them are not charged to a node."""


class Greeter:
    """A link, and an application on top of it that sends commands."""

    def __init__(self, link: LinkCore, rng: Random, peers: list[str], now_ns: int, loudness: float) -> None:
        self.link = link
        self._loudness = loudness
        self.routing_id = link.route
        self._rng = rng
        self._wanted = peers
        self._speak_ns = now_ns
        self._met: list[bytes] = []
        self._spoken = 0

    def deadline(self) -> int | None:
        link_ns = self.link.deadline()
        return self._speak_ns if link_ns is None else min(link_ns, self._speak_ns)

    def step(self, now_ns: int, event: Any) -> list[Any]:
        if isinstance(event, Stopping):
            return []
        effects: list[Any] = list(self.link.step(now_ns, event))
        for endpoint in self._wanted:
            effects += self.link.step(now_ns, Meet(endpoint))
        self._wanted = []
        self._remember(effects)
        if isinstance(event, Woken) and now_ns >= self._speak_ns:
            self._speak_ns = now_ns + self._rng.randrange(*_PAUSE_NS)
            effects += self._speak(now_ns)
        return effects

    def _remember(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Met):
                self._met.append(effect.peer.instance)
            elif isinstance(effect, Parted):
                self._met.remove(effect.peer.instance)

    def _speak(self, now_ns: int) -> list[Any]:
        """Each `Say` also appears among the effects, for the checkers."""
        effects: list[Any] = []
        for instance in self._met:
            for _ in range(self._rng.choice((0, 1, 1, 3))):
                self._spoken += 1
                filler = bytes(_LARGE_BYTES if self._rng.random() < self._loudness else self._rng.randrange(40))
                content = b"%s %d %s" % (self.routing_id, self._spoken, filler)
                say = Say(instance, encode(Alive(self._spoken % 65536, content)), self._rng.random() < 0.1)
                effects += [say, *self.link.step(now_ns, say)]
        return effects


def pretend(liar: Identity, victim: Identity) -> None:
    """A holder of the cluster key that shows another's public key, and can sign only with its own."""
    liar.key, liar.identifier = victim.key, victim.identifier


class Greet(Workload):
    kinds = (*NETWORK, "kill", "power cut", "pause", "crash point", *CLOCK, *ATTACK, FORGET, INTRODUCE, ROTATE)
    points: ClassVar = (
        CrashPoint("after a session began", lambda effect: isinstance(effect, Met)),
        CrashPoint("after a session ended", lambda effect: isinstance(effect, Parted)),
        CrashPoint("after speaking", lambda effect: isinstance(effect, Say)),
    )

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.members = ("a", "b", "c", "d", "e")[: rng.choice((2, 2, 2, 2, 3, 3, 5))]
        strangers = [name for name in ("othername", "otherkey", "impostor") if rng.random() < 0.25]
        self.names = (*self.members, *strangers)
        self._keys = {name: Identity.generate(rng) for name in self.names}
        if "impostor" in strangers:
            pretend(self._keys["impostor"], self._keys["a"])
        self._cluster_key, self._other_key, self._new_key = (rng.randbytes(32) for _ in range(3))
        self._rings: dict[str, tuple[bytes, ...]] = {}
        """The cluster keys in a member's files, the one in use first."""
        self._loudness = rng.choice((0.0, 0.03, 0.5))
        self._queue_bytes_max = rng.choice((30_000, 200_000))
        self._seal = rng.choice(("aes-256-gcm", "hmac-sha256"))
        self.roster = ProcessRegistry({name: self._keys[name].key for name in self.members}, self.endpoint)

    def make_node(self, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> Greeter:
        ring = self._rings.get(name, (self._other_key if name == "otherkey" else self._cluster_key,))
        settings = LinkSettings(
            cluster="elsewhere" if name == "othername" else "home",
            endpoint=self.endpoint(name),
            queue_bytes_max=self._queue_bytes_max,
            reserve_bytes=_RESERVE_BYTES,
            seal=self._seal,
        )
        link = LinkCore(self._keys[name], new_instance(rng), settings, rng, ring=KeyRing(ring[0], ring[1:]))
        others = [self.endpoint(other) for other in self.names if other != name]
        # One of two always dials; the other may wait to be greeted, as a node without seed endpoints does.
        peers = [other for other in others if self.endpoint(name) < other or rng.random() < 0.7]
        return Greeter(link, rng, peers, now_ns, self._loudness)

    def checkers(self) -> list[Checker]:
        roster = self.roster
        budget = BudgetWatch(self._queue_bytes_max + _RESERVE_BYTES + _GREETINGS_BYTES)
        return [roster, DoorWatch(), GreetingWatch(), SealWatch(), budget, SpeechWatch(), LiveWatch()]

    def inject_fault(self, world: World, fault: Fault) -> None:
        members = [name for name in fault.nodes if name in self.members]
        host = world.hosts[members[0]]
        if fault.kind == FORGET:
            endpoint = self.endpoint(members[1])
            world.tell(host, Forget(endpoint))
            world.after(1 + fault.amount * 10**5, world.tell, host, Meet(endpoint))
        elif fault.kind == INTRODUCE:
            world.tell(host, Introduce((f"pool{fault.amount}",), fault.amount % 256, {"amount": str(fault.amount)}))
        else:
            assert fault.kind == ROTATE
            self._rotate(world)

    def _rotate(self, world: World) -> None:
        """All members install the new key; a second later all use it. Files change with the key rings."""
        for name in self.members:
            self._rings[name] = (self._cluster_key, self._new_key)
            world.tell(world.hosts[name], InstallKey(self._new_key))
        world.after(SECOND_NS, self._use_new, world)

    def _use_new(self, world: World) -> None:
        for name in self.members:
            self._rings[name] = (self._new_key, self._cluster_key)
            world.tell(world.hosts[name], UseKey(key_id_of(self._new_key)))


WORKLOAD = Greet
