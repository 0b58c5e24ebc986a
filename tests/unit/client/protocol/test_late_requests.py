"""What reaches a node when its client may have given it up is not done: later, nobody expects it any more."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaplain.client.protocol.events import Failure, Settings
from chaplain.client_service.events import ClientServiceSettings
from chaplain.client_service.messages import GetMembers, JoinAPool, ShoutToPool
from tests.unit.client.late_stage import SECOND_NS, Guest, LateStage

POOL = "chat"


class Talk(LateStage):
    """Somebody listens to a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.ear = self.connect("ear")
        self.call(self.ear, JoinAPool(2, POOL))

    def broadcast(self, guest: Guest, call: int, value: bytes) -> None:
        self.call(guest, ShoutToPool(call, POOL), value)


def test_broadcast_given_up_by_its_client_is_not_delivered_after_later_ones() -> None:
    talk = Talk()
    first = talk.connect("first")
    talk.broadcast(first, 2, b"1")
    first.cut = True
    talk.broadcast(first, 3, b"2")
    talk.run(9, until=lambda: first.raised(3))
    given_up = first.raised(3)
    assert given_up is not None
    assert given_up.failure is Failure.UNKNOWN
    talk.close(first)

    second = talk.connect("second")
    talk.broadcast(second, 2, b"3")
    assert second.returned(2)
    talk.deliver(first)
    assert talk.ear.heard == [b"1", b"3"]


def test_request_in_a_session_that_began_after_its_client_gave_up_is_refused_as_late() -> None:
    talk = Talk()
    first = talk.connect("first", cut_when_met=True)
    talk.broadcast(first, 2, b"1")
    talk.run(9, until=lambda: first.raised(2))
    assert first.raised(2)
    talk.close(first)

    second = talk.connect("second")
    talk.broadcast(second, 2, b"2")
    talk.deliver(first)
    assert talk.node.counts["link_sessions_begun"] == 3
    assert talk.ear.heard == [b"2"]


def test_ping_of_the_program_does_not_shorten_the_clients_patience() -> None:
    talk = Talk()
    first = talk.connect("first")
    first.cut = True
    talk.measure(first)
    talk.broadcast(first, 2, b"1")
    talk.run(5.6)
    assert not first.raised(2)
    talk.deliver(first)
    assert first.raised(2)
    assert talk.ear.heard == []


def test_paused_node_serves_clients_that_still_wait() -> None:
    talk = Talk()
    ann = talk.connect("ann")
    talk.broadcast(ann, 2, b"1")
    talk.stopped = True
    talk.broadcast(ann, 3, b"2")
    talk.stop(5.2)
    assert ann.returned(3)
    assert talk.ear.heard == [b"1", b"2"]


def test_late_request_of_a_waiting_client_is_answered_as_not_executed() -> None:
    talk = Talk()
    ann = talk.connect("ann")
    talk.broadcast(ann, 2, b"1")
    talk.stopped = True
    talk.broadcast(ann, 3, b"2")
    talk.stop(5.9)
    raised = ann.raised(3)
    assert raised is not None
    assert (raised.failure, raised.reason) == (
        Failure.UNREACHABLE,
        "broadcast to 'chat': it arrived too late to be executed: do it again",
    )
    talk.broadcast(ann, 4, b"3")
    assert talk.ear.heard == [b"1", b"3"]
    assert talk.node.counts["client_service_requests_late"] == 1


def test_reads_are_never_refused_as_late() -> None:
    talk = Talk()
    ann = talk.connect("ann")
    talk.stopped = True
    talk.call(ann, GetMembers(2))
    talk.stop(5.9)
    assert ann.returned(2)


@pytest.mark.parametrize("idle_s", [1.9, 5.4, 60])
def test_idle_client_is_served_at_once(idle_s: float) -> None:
    talk = Talk()
    ann = talk.connect("ann")
    talk.run(idle_s)
    talk.broadcast(ann, 2, b"1")
    assert ann.returned(2)


def test_client_that_only_receives_is_served() -> None:
    """It sends no PING, for the node is not silent; and the node sends one only after 5 s."""
    talk = Talk()
    ann = talk.connect("ann")
    for call in range(2, 100):
        talk.broadcast(ann, call, b"%d" % call)
        talk.run(0.12)
    talk.broadcast(talk.ear, 3, b"mine")
    assert talk.ear.returned(3)


def test_client_patience_exceeds_the_nodes_limit_for_late_requests() -> None:
    times = Settings()
    assert times.ping_after_ns + times.answer_within_ns > ClientServiceSettings().unheard_ns_max + SECOND_NS // 4


DEEDS = st.one_of(
    st.sampled_from([("say", 0.0), ("say", 0.0), ("cut", 0.0), ("deliver", 0.0), ("ping", 0.0)]),
    st.tuples(st.sampled_from(["wait", "wait", "stop"]), st.sampled_from([0.1, 1.0, 3.0, 5.0, 5.6, 7.0])),
)


class Speaker:
    """Says numbers one by one, and connects anew when it was not told that one was heard."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._guests = [talk.connect("0", timeout_s=1000)]
        self._call = 1
        self._number = 0

    def do(self, deed: str, seconds: float) -> None:
        talk, guest = self._talk, self._guests[-1]
        if deed == "say" and (self._call == 1 or guest.returned(self._call)):
            self._call, self._number = self._call + 1, self._number + 1
            talk.broadcast(guest, self._call, b"%d" % self._number)
        elif deed == "ping":
            talk.measure(guest)
        elif deed == "cut":
            guest.cut = True
        elif deed == "deliver":
            for one in self._guests:
                talk.deliver(one)
        elif deed == "wait":
            talk.run(seconds, until=self._has_failed)
        elif deed == "stop":
            talk.stop(seconds)
        if self._has_failed():
            talk.close(guest)
            self._guests.append(talk.connect(str(len(self._guests)), timeout_s=1000))
            self._call = 1

    def _has_failed(self) -> bool:
        return self._guests[-1].raised(self._call) is not None


@given(st.lists(DEEDS, min_size=10, max_size=50))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_requests_of_a_client_are_delivered_in_order_under_random_faults(deeds: list[tuple[str, float]]) -> None:
    talk = Talk()
    speaker = Speaker(talk)
    for deed, seconds in [*deeds, ("deliver", 0.0)]:
        speaker.do(deed, seconds)
    numbers = [int(value) for value in talk.ear.heard]
    assert numbers == sorted(set(numbers))
