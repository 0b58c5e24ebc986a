"""A whole node and real clients over wires in memory, and a clock that only moves when told.

What clients say may be held up on its way, as the kernel of a machine does when packets are lost: it sends them again,
later each time, whether or not the process that wrote them is still there.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

from chaplain.client.protocol.core import ClientCore
from chaplain.client.protocol.events import ClientCall, Connect, Measure, Outcome, Raised, Returned, Settings, Yielded
from chaplain.client_service.messages import ClientRequest
from chaplain.core import Admit, Arrived, Connected, Dial, Drained, HangUp, Knocked, Send, Stopping, Woken
from chaplain.gossip.settings import GossipSettings
from chaplain.link.auth.identity import Identity, new_instance
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.core import LinkCore
from chaplain.link.settings import LinkSettings
from chaplain.mesh.settings import MeshSettings
from chaplain.node.core import NodeCore
from chaplain.node.settings import NodeSettings

SECOND_NS = 1_000_000_000
TICK_NS = SECOND_NS // 50
ENDPOINT = "tcp://127.0.0.1:7171"
CLUSTER = "home"
TIMEOUT_S = 10.0


class Guest:
    """One client of the node: one process, or one connection of a process."""

    def __init__(self, name: str, identity: Identity, node_key: bytes, timeout_s: float) -> None:
        chance = Random(name)
        instance = new_instance(chance)
        self.link = LinkCore(identity, instance, LinkSettings(CLUSTER), chance, pinned=frozenset({node_key}))
        self.core = ClientCore(self.link, identity.identifier, [ENDPOINT], Settings(), chance)
        self.timeout_ns = int(timeout_s * SECOND_NS)
        self.measured = 1_000_000
        self.outcomes: list[Outcome] = []
        self.cut = False
        """Nothing passes for now, as if packets to the node were lost, and with them what confirms the node's own."""
        self.cut_when_met = False
        """Cut it off as soon as it has its session, before the node hears of that."""
        self.held: list[tuple[Guest | None, Arrived]] = []
        self.closed: set[int] = set()
        """Dials that were hung up: the node's words go nowhere, what was said before stays under way."""

    def route(self, dial: int) -> bytes:
        return self.link.route + dial.to_bytes(8, "big")

    def dial_of(self, route: bytes) -> int | None:
        dial = int.from_bytes(route[-8:], "big")
        return dial if route == self.route(dial) and dial not in self.closed else None

    def raised(self, call: int) -> Raised | None:
        return next((one for one in self.outcomes if isinstance(one, Raised) and one.call == call), None)

    def returned(self, call: int) -> bool:
        return any(isinstance(one, Returned) and one.call == call for one in self.outcomes)

    @property
    def heard(self) -> list[bytes]:
        return [one.payload for one in self.outcomes if isinstance(one, Yielded)]


class LateStage:
    def __init__(self) -> None:
        self.now_ns = 1_000 * SECOND_NS
        self.identity = Identity.generate(Random("clients"))
        of_node = Identity.generate(Random("node"))
        self._node_key = of_node.key
        settings = NodeSettings(LinkSettings(CLUSTER, ENDPOINT), MeshSettings(CLUSTER), GossipSettings())
        self.node = NodeCore(
            settings,
            of_node,
            KeyRing(b"k" * 32),
            clients={self.identity.key: "ann"},
            rng=Random("chance"),
            instance=b"n" * 16,
            now_ns=self.now_ns,
        )
        self.stopped = False
        """The node's process does not run; what reaches its machine waits there."""
        self._guests: list[Guest] = []
        self._todo: deque[tuple[Guest | None, Any]] = deque()

    def connect(self, name: str, timeout_s: float = TIMEOUT_S, *, cut_when_met: bool = False) -> Guest:
        guest = Guest(name, self.identity, self._node_key, timeout_s)
        guest.cut_when_met = cut_when_met
        self._guests.append(guest)
        self._give(guest, Connect(1, guest.timeout_ns))
        self.run(2, until=lambda: guest.returned(1))
        assert guest.returned(1), guest.outcomes
        return guest

    def call(self, guest: Guest, request: ClientRequest, payload: bytes = b"") -> None:
        self._give(guest, ClientCall(request, payload, guest.timeout_ns))

    def measure(self, guest: Guest) -> None:
        guest.measured += 1
        self._give(guest, Measure(guest.measured, guest.timeout_ns))

    def close(self, guest: Guest) -> None:
        self._give(guest, Stopping())
        self._guests.remove(guest)

    def deliver(self, guest: Guest) -> None:
        """What was held up arrives after all."""
        guest.cut = False
        held, guest.held = guest.held, []
        self._todo.extend((to, arrived) for to, arrived in held if to is None or to in self._guests)
        self._settle()

    def run(self, seconds: float, until: Any = lambda: False) -> None:
        end_ns = self.now_ns + int(seconds * SECOND_NS)
        while self.now_ns < end_ns and not until():
            self.now_ns += TICK_NS
            self._todo.extend((guest, Woken()) for guest in self._guests if _due(guest.core, self.now_ns))
            if not self.stopped and _due(self.node, self.now_ns):
                self._todo.append((None, Woken()))
            self._settle()

    def stop(self, seconds: float) -> None:
        """Stop the node's process for so long."""
        self.stopped = True
        self.run(seconds)
        self.stopped = False
        self._settle()

    def _give(self, guest: Guest, event: Any) -> None:
        self._todo.append((guest, event))
        self._settle()

    def _settle(self) -> None:
        """Until nobody has anything to say."""
        waiting: deque[tuple[Guest | None, Any]] = deque()
        while self._todo:
            turn, self._todo = self._todo, deque()
            for who, event in turn:
                if who is None and self.stopped:
                    waiting.append((who, event))
                elif who is None:
                    self._of_node(self.node.step(self.now_ns, event))
                else:
                    self._of_guest(who, who.core.step(self.now_ns, event))
            if not self.stopped:
                self._of_node(self.node.step(self.now_ns, Drained()))
            for guest in self._guests:
                self._of_guest(guest, guest.core.step(self.now_ns, Drained()))
        self._todo = waiting

    def _of_guest(self, guest: Guest, effects: list[Any]) -> None:
        guest.cut = guest.cut or (guest.cut_when_met and any(isinstance(effect, Returned) for effect in effects))
        for effect in effects:
            match effect:
                case Dial(dial, _, name, proof):
                    self._todo.append((None, Knocked(guest.route(dial), name, proof, "")))
                case Send(int() as dial, frame):
                    self._carry(guest, None, Arrived(guest.route(dial), frame))
                case HangUp(int() as dial):
                    guest.closed.add(dial)
                case Returned() | Raised() | Yielded():
                    guest.outcomes.append(effect)

    def _of_node(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Admit(route):
                    for guest, dial in self._at(route):
                        self._todo.append((guest, Connected(dial)))
                case Send(bytes() as route, frame):
                    for guest, dial in self._at(route):
                        self._carry(guest, guest, Arrived(dial, frame))

    def _at(self, route: bytes) -> list[tuple[Guest, int]]:
        found = [(guest, guest.dial_of(route)) for guest in self._guests]
        return [(guest, dial) for guest, dial in found if dial is not None]

    def _carry(self, by: Guest, to: Guest | None, arrived: Arrived) -> None:
        (by.held if by.cut else self._todo).append((to, arrived))


def _due(core: ClientCore | NodeCore, now_ns: int) -> bool:
    due_ns = core.deadline()
    return due_ns is not None and due_ns <= now_ns
