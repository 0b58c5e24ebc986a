"""What the checker of the made-up world demands of an acknowledgement, and of whom."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from chaplain.core import Drained
from chaplain.gossip.events import GossipParcel
from chaplain.sequence.events import Published
from chaplain.sequence.messages.entry import EntryKind
from chaplain.sequence.messages.peer import Beat, EntryBatch, PeerState, SequenceState, encode
from chaplain.wire.parcel import Layer, Parcel
from simulator.checkers.base import Violation
from simulator.checkers.sequence import SequenceChecker
from tests.unit.sequence.sequence_stage import Stage


class Watched(Stage):
    """A stage whose every step is seen by the checker."""

    def __init__(self, count: int, **settings: Any) -> None:
        super().__init__(count, **settings)
        self.hosts: dict[str, Any] = {}
        counts: Counter[str] = Counter()
        self.checker = SequenceChecker(SimpleNamespace(counts=lambda world: counts))  # type: ignore[arg-type]
        self.checker.world = SimpleNamespace(hosts=self.hosts)  # type: ignore[assignment]

    def kill(self, number: int) -> None:
        self.hosts[f"q{number}"].core = None
        super().kill(number)

    def feed(self, number: int, event: object) -> list[Any]:
        host = self._host(number)
        effects = super().feed(number, event)
        self.checker.observe(self.now_ns, host, event, effects)
        return effects

    def _host(self, number: int) -> Any:
        name, sequence = f"q{number}", self.cores[number]
        host = self.hosts.get(name)
        if host is None or host.core is None:
            process = 0 if host is None else host.process + 1
            core = SimpleNamespace(number=number, sequence=sequence)
            host = self.hosts[name] = SimpleNamespace(name=name, process=process, core=core)
            self.checker.process_started(self.now_ns, host)
        return host

    def kinds_behind(self, number: int, index: int) -> list[EntryKind]:
        log = self.cores[number].context.log
        return [held.entry.kind for held in log.after(index) if held.index <= log.decided]


def two_of_which_one_is_away() -> tuple[Watched, int]:
    """A work set of 1 and 2, the lock at 1, and an event of 1 that 2 does not get."""
    stage = Watched(3)
    stage.start().run(1)
    stage.kill(3)
    stage.run(7)
    assert stage.members(1) == [1, 2]
    assert stage.holder() == 1
    stage.split((1, 3), (2,))
    token = stage.publish(1, b"a")
    stage.run(0.1)
    assert stage.outcome(token) is None
    return stage, token


def test_member_that_joins_in_the_step_of_an_acknowledgement_may_lack_the_entry() -> None:
    """Half is enough when the other half is dead; then it is removed, and another let in, before anything is sent.

    The newcomer is in the work set behind the event, not in the one that decided about it.
    """
    stage, token = two_of_which_one_is_away()
    decided = stage.cores[1].context.log.decided
    stage.start(3).run(1)
    assert stage.cores[3].context.is_learning
    stage.kill(2)
    stage.cut = set()
    stage.loses = lambda to, message: to == 3 and isinstance(message, EntryBatch)
    stage.start(2).deliver()
    assert stage.outcome(token) == Published(token, 1)
    assert stage.kinds_behind(1, decided) == [EntryKind.EVENTS, EntryKind.CHANGE, EntryKind.CHANGE]
    assert stage.members(1) == [1, 3]
    assert stage.cores[3].context.is_learning, "it does not know yet that it has a seat"


def test_acknowledgement_without_a_living_memory_is_found_after_its_removal() -> None:
    """In the work set that is left the event has its majority; in the one that was asked it had none."""
    stage, token = two_of_which_one_is_away()
    with pytest.raises(Violation, match="q1 acknowledges what 1 of 2 memories do not hold"):
        _pretend_that_it_lost_its_memory(stage, 2)
    assert stage.outcome(token) == Published(token, 1)
    assert stage.members(1) == [1]


def _pretend_that_it_lost_its_memory(stage: Watched, number: int) -> None:
    peer_state = msgspec.structs.replace(
        PeerState(), state=SequenceState.DSC, seat=stage.cores[number].context.seat ^ 1
    )
    body, payload = encode(Beat(peer_state))
    stage.feed(1, GossipParcel(stage.peers[number], Parcel(number, Layer.SEQUENCE, body, payload)))
    stage.feed(1, Drained())
