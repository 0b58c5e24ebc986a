"""Meshes on real links: words that change in the middle of a greeting reach everybody, and cost nobody a session."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from chaplain.core import Arrived, Drained
from chaplain.link.events import CommandDropped, Introduce, Meet, Met, Missed, Parted, Peer, Said, Say
from chaplain.mesh.core import MeshCore
from chaplain.mesh.events import Exited, Gapped, JoinPool, LeavePool, MeshEffect, MeshInput, Whisper, Whispered
from chaplain.mesh.settings import MeshSettings
from tests.support.link_stage import Actor, Stage, Wire, greetings

POOLS = st.sampled_from(["red", "blue"])
SIDES = st.integers(0, 1)


class Person:
    """A mesh on its link, which is on the stage."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.link: Actor = stage.node(name)
        identity = self.link.core.identity
        own = Peer(self.link.instance, identity.identifier, identity.key, self.link.endpoint)
        self.mesh = MeshCore(MeshSettings(), random.Random(1), own)
        self.told: list[MeshEffect] = []
        self.said: list[bytes] = []
        self._seen = 0

    def step(self, event: MeshInput) -> None:
        self._mesh(event)
        self.pump()

    def whisper(self, to: Person) -> None:
        """If it is here."""
        if self.mesh.peer_views():
            self.said.append(b"%d" % len(self.said))
            self.step(Whisper(to.link.instance, self.said[-1]))

    def pump(self) -> None:
        """What the link told is the mesh's next input, as in a node, until nothing is left; then the wake-up ends."""
        while self._seen < len(self.link.log):
            effect = self.link.log[self._seen]
            self._seen += 1
            if isinstance(effect, Met | Said | Missed | CommandDropped | Parted):
                self._mesh(effect)
        self.link.step(Drained())

    def _mesh(self, event: MeshInput) -> None:
        for effect in self.mesh.step(self.link.stage.now_ns, event):
            self.told.append(effect)
            if isinstance(effect, Say | Introduce | Meet):
                self.link.step(effect)

    def heard(self) -> list[bytes]:
        return [effect.content for effect in self.told if isinstance(effect, Whispered)]


class Greetings(RuleBasedStateMachine):
    """Nothing is lost on the way; frames are only late, in any order between the wires, and greetings are replayed."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.people = [Person(self.stage, name) for name in ("anna", "bert")]

    def pump(self) -> None:
        for person in self.people:
            person.pump()

    def wire(self, side: int) -> Wire | None:
        """What this side dialled."""
        return next((wire for wire in self.stage.wires if wire.dialler is self.people[side].link), None)

    @initialize(sides=st.sampled_from([(0,), (0, 1)]))
    def meet(self, sides: tuple[int, ...]) -> None:
        for side in sides:
            self.people[side].step(Meet(self.people[1 - side].link.endpoint))
        self.connect()

    @rule()
    def connect(self) -> None:
        self.stage.connect()
        self.pump()

    @rule(side=SIDES, pool=POOLS)
    def join(self, side: int, pool: str) -> None:
        self.people[side].step(JoinPool(pool))

    @rule(side=SIDES, pool=POOLS)
    def leave(self, side: int, pool: str) -> None:
        self.people[side].step(LeavePool(pool))

    @rule(side=SIDES)
    def whisper(self, side: int) -> None:
        self.people[side].whisper(self.people[1 - side])

    @rule(side=SIDES)
    def deliver(self, side: int) -> None:
        wire = self.wire(side)
        if wire is not None and wire.there:
            self.stage.deliver(wire)
            self.pump()

    @rule(side=SIDES, age=st.integers(0, 3))
    def replay(self, side: int, age: int) -> None:
        """A greeting that has come comes once more."""
        wire = self.wire(side)
        if wire is not None and (come := _come(wire)):
            wire.listener.step(Arrived(wire.route, come[age % len(come)]))
            self.pump()

    @invariant()
    def nothing_is_lost(self) -> None:
        for person in self.people:
            assert [each for each in person.told if isinstance(each, Gapped | Exited)] == []
            assert len(person.link.met) <= 1, "a session was replaced"
            assert person.link.reasons("frame rejected") == []

    def teardown(self) -> None:
        while any(wire.there for wire in self.stage.wires) or self.stage.dialled:
            self.stage.settle()
            self.pump()
        self.nothing_is_lost()
        for one, other in (self.people, self.people[::-1]):
            (view,) = one.mesh.peer_views()
            assert (sorted(view.pools), view.status) == (sorted(other.mesh.pools), other.mesh.introduction().status)
            assert one.heard() == other.said
            assert one.mesh.counts["status_out_of_step"] == 0


def _come(wire: Wire) -> list[bytes]:
    """The greetings that have arrived on it."""
    waiting = sum(1 for frame in wire.there if frame in greetings(wire))
    sent = greetings(wire)
    return sent[: len(sent) - waiting]


def test_introductions_may_change_at_any_moment_of_a_handshake() -> None:
    run_state_machine_as_test(
        Greetings,
        settings=settings(
            max_examples=60,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )


def test_node_that_joins_during_a_handshake_is_in_the_pool_and_loses_no_message() -> None:
    """Anna has her session from a greeting that bert wrote before he joined; he has none yet."""
    greeted = Greetings()
    anna, bert = greeted.people
    greeted.meet((0,))
    greeted.deliver(0)
    greeted.connect()
    greeted.deliver(1)
    assert anna.mesh.peer_views()
    assert not bert.mesh.peer_views()
    anna.whisper(bert)
    bert.step(JoinPool("red"))
    anna.whisper(bert)
    greeted.teardown()
    assert bert.heard() == [b"0", b"1"]
    assert [member.instance for member in anna.mesh.members("red")] == [bert.link.instance]
