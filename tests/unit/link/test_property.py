"""Any order of frames, losses, copies and broken connections: nothing is heard twice, out of order, or changed."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from chaplain.core import Arrived, Drained
from chaplain.link.events import Introduce, Missed, Parted, Say
from tests.support.link_stage import SECOND_NS, Actor, Stage, Wire

SIDES = st.integers(0, 1)


class TwoCores(RuleBasedStateMachine):
    """Two nodes that want each other, on channels that lose, copy and break; and somebody who plays old frames."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.actors = (self.stage.node("alice"), self.stage.node("bob"))
        self.said = [0, 0]
        self.recorded: list[tuple[int, bytes]] = []

    def wire(self, side: int) -> Wire | None:
        for wire in self.stage.wires:
            if wire.dialler is self.actors[side]:
                return wire
        return None

    @rule(side=SIDES)
    def meet(self, side: int) -> None:
        self.actors[side].meet(self.actors[1 - side])

    @rule()
    def connect(self) -> None:
        self.stage.connect()

    @rule(side=SIDES, count=st.integers(1, 3))
    def say(self, side: int, count: int) -> None:
        for _ in range(count):
            self.actors[side].say(self.actors[1 - side], self.next_of(side))

    @rule(side=SIDES, count=st.integers(1, 4), drained=st.booleans())
    def say_together(self, side: int, count: int, drained: bool) -> None:
        """In one wake-up, whose end may come much later."""
        for _ in range(count):
            self.actors[side].step(Say(self.actors[1 - side].instance, self.next_of(side)))
        if drained:
            self.actors[side].step(Drained())

    def next_of(self, side: int) -> bytes:
        self.said[side] += 1
        return b"%d:%d" % (side, self.said[side])

    @rule(side=SIDES, count=st.integers(1, 4))
    def deliver(self, side: int, count: int) -> None:
        for _ in range(count):
            wire = self.wire(side)
            if wire is not None and wire.there:
                self.recorded.append((side, wire.there[0]))
                self.stage.deliver(wire)

    @rule(side=SIDES)
    def lose(self, side: int) -> None:
        wire = self.wire(side)
        if wire is not None and wire.there:
            wire.there.popleft()

    @rule(side=SIDES)
    def copy(self, side: int) -> None:
        wire = self.wire(side)
        if wire is not None and wire.there:
            wire.there.appendleft(wire.there[0])

    @rule(side=SIDES)
    def swap(self, side: int) -> None:
        wire = self.wire(side)
        if wire is not None and len(wire.there) > 1:
            wire.there.rotate(-1)

    @rule(side=SIDES, bit=st.integers(0, 1 << 14))
    def spoil(self, side: int, bit: int) -> None:
        wire = self.wire(side)
        if wire is not None and wire.there:
            frame = bytearray(wire.there[0])
            frame[bit // 8 % len(frame)] ^= 1 << bit % 8
            wire.there[0] = bytes(frame)

    @rule(pick=st.integers(0, 1 << 20), reflected=st.booleans())
    def replay(self, pick: int, reflected: bool) -> None:
        if self.recorded:
            side, frame = self.recorded[pick % len(self.recorded)]
            if reflected:
                side = 1 - side
            self.actors[1 - side].step(Arrived(self.actors[side].core.route, frame))

    @rule(side=SIDES, told=st.booleans())
    def cut(self, side: int, told: bool) -> None:
        wire = self.wire(side)
        if wire is not None:
            self.stage.cut(wire, told)

    @rule(side=SIDES)
    def introduce(self, side: int) -> None:
        self.actors[side].step(Introduce((f"pool{self.said[side]}",), 0, {}))

    @rule(duration_ms=st.sampled_from([1, 60, 1_000, 11_000]))
    def wait(self, duration_ms: int) -> None:
        self.stage.run(duration_ms * 1_000_000)

    @invariant()
    def heard_once_in_order_and_unchanged(self) -> None:
        for side, actor in enumerate(self.actors):
            numbers = []
            for command in actor.heard():
                speaker, _, number = command.partition(b":")
                assert int(speaker) == 1 - side
                numbers.append(int(number))
            assert numbers == sorted(set(numbers))
            assert not numbers or numbers[-1] <= self.said[1 - side]

    @invariant()
    def one_session_at_most(self) -> None:
        for actor in self.actors:
            assert len(actor.sessions) <= 1

    def teardown(self) -> None:
        """The faults end: both connections break once more, and then everything works."""
        alice, bob = self.actors
        alice.meet(bob)
        for wire in list(self.stage.wires):
            if wire in self.stage.wires:
                self.stage.cut(wire)
        self.stage.run(60 * SECOND_NS)
        assert alice.sessions == {bob.instance}
        assert bob.sessions == {alice.instance}
        for one, other in ((alice, bob), (bob, alice)):
            before = len(other.said)
            one.say(other, b"%d:%d" % (self.actors.index(one), 1 << 30))
            self.stage.settle()
            assert len(other.said) == before + 1
        accounts_balance(alice, bob)
        accounts_balance(bob, alice)


def accounts_balance(sender: Actor, receiver: Actor) -> None:
    """Nothing vanishes silently: what was sent and not heard is within what either side told as missing."""
    heard = len(receiver.heard())
    missed = sum(effect.count for effect in receiver.log if isinstance(effect, Missed))
    unconfirmed = sum(effect.unconfirmed for effect in sender.log if isinstance(effect, Parted))
    assert heard <= sender.taken <= heard + missed + unconfirmed


@pytest.mark.parametrize("steps", [15, 60])
def test_two_cores_under_random_faults_keep_their_guarantees(steps: int) -> None:
    run_state_machine_as_test(
        TwoCores,
        settings=settings(
            max_examples=60 if steps == 15 else 40,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
