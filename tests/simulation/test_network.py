"""Connections of the made-up network, as the runtime's sockets would give them."""

import pytest

from chaplain.core import (
    Admit,
    Arrived,
    Cast,
    Connected,
    Dial,
    Disconnected,
    Flushed,
    HangUp,
    Heard,
    Knocked,
    Refuse,
    Send,
)
from chaplain.units import SECOND_NS
from simulator.checkers.base import HostContract, Violation
from simulator.trace import Trace
from simulator.world.network import WINDOW_BYTES
from simulator.world.network_conditions import NetworkProfile
from simulator.world.world import World


class Puppet:
    """A core that does what it is told, and keeps what it was given."""

    def __init__(self, name, process):
        self.routing_id = b"\x01" + f"{name}{process}".encode().ljust(16)
        self.inputs = []
        self.open = True

    def deadline(self):
        return None

    def step(self, now_ns, event):
        if isinstance(event, list):
            return event
        self.inputs.append(event)
        if isinstance(event, Knocked):
            return [Admit(event.request, "x") if self.open else Refuse(event.request, "no")]
        return []

    def of(self, kind):
        return [event for event in self.inputs if isinstance(event, kind)]


class Stage:
    def __init__(self, *names, profile=None, checkers=()):
        lives = dict.fromkeys(names, 0)

        def make(name, rng, disk, now_ns):
            lives[name] += 1
            return Puppet(name, lives[name])

        self.world = World("stage", make, Trace(), checkers)
        for name in names:
            self.world.start(self.world.add(name, f"tcp://{name}:1"))
        if profile is not None:
            self.world.network.conditions.profile = profile

    def __getattr__(self, name):
        return self.world.hosts[name]

    def do(self, host, *effects, seconds=1):
        self.world.tell(host, list(effects))
        self.run(seconds)

    def run(self, seconds):
        self.world.run(self.world.now_ns + int(seconds * SECOND_NS))

    def connect(self, a, b, dial=1):
        self.do(a, Dial(dial, b.endpoint, b"name", b"proof"))
        assert a.core.of(Connected)[-1] == Connected(dial)


def test_connection_is_admitted_and_frames_arrive_in_order_both_ways():
    stage = Stage("a", "b", profile=NetworkProfile(delay_max_ns=SECOND_NS // 2))
    stage.connect(stage.a, stage.b)
    route = stage.a.core.routing_id
    (knock,) = stage.b.core.of(Knocked)
    assert (knock.name, knock.proof) == (b"name", b"proof")
    frames = [b"%d" % number for number in range(50)]
    stage.do(stage.a, *(Send(1, frame) for frame in frames))
    stage.do(stage.b, *(Send(route, frame) for frame in frames))
    assert stage.b.core.of(Arrived) == [Arrived(route, frame) for frame in frames]
    assert stage.a.core.of(Arrived) == [Arrived(1, frame) for frame in frames]
    assert sum(event.size for event in stage.a.core.of(Flushed)) == sum(map(len, frames))


def test_refused_and_unreachable_dials_end_in_disconnected():
    stage = Stage("a", "b", "c")
    stage.b.core.open = False
    stage.world.crash(stage.c, power=False)
    stage.do(stage.a, Dial(1, "tcp://b:1", b"", b""), Dial(2, "tcp://c:1", b"", b""))
    assert {event.channel for event in stage.a.core.of(Disconnected)} == {1, 2}
    stage.world.network.conditions.block([("b", "a")])
    stage.do(stage.a, Dial(3, "tcp://nowhere:1", b"", b""), Dial(4, "tcp://b:1", b"", b""), seconds=20)
    assert {event.channel for event in stage.a.core.of(Disconnected)} == {1, 2, 3, 4}
    assert stage.a.core.of(Connected) == []


def test_blocked_direction_fills_the_window_and_reopens():
    stage = Stage("a", "b", profile=NetworkProfile(half_open=1.0))
    stage.connect(stage.a, stage.b)
    token = stage.world.network.conditions.block([("a", "b")])
    frame = bytes(WINDOW_BYTES // 4)
    stage.do(stage.a, *(Send(1, frame) for _ in range(10)))
    assert len(stage.a.core.of(Flushed)) == 4
    assert stage.b.core.of(Arrived) == []
    stage.world.network.conditions.unblock(token)
    stage.world.network.conditions_changed()
    stage.run(1)
    assert len(stage.b.core.of(Arrived)) == len(stage.a.core.of(Flushed)) == 10


def test_paused_host_receives_everything_after_the_pause():
    stage = Stage("a", "b")
    stage.connect(stage.a, stage.b)
    stage.world.pause(stage.b)
    stage.do(stage.a, *(Send(1, bytes(WINDOW_BYTES // 2)) for _ in range(6)))
    assert stage.b.core.of(Arrived) == []
    assert len(stage.a.core.of(Flushed)) == 2
    stage.world.resume(stage.b)
    stage.run(1)
    assert len(stage.b.core.of(Arrived)) == 6


def test_hang_up_is_reported_to_the_peer_after_earlier_frames():
    stage = Stage("a", "b", profile=NetworkProfile(route_news=True, delay_max_ns=SECOND_NS // 10))
    stage.connect(stage.a, stage.b)
    stage.do(stage.a, Send(1, b"last words"), HangUp(1))
    last = [event for event in stage.b.core.inputs if isinstance(event, Arrived | Disconnected)]
    assert [type(event) for event in last] == [Arrived, Disconnected]
    assert stage.a.core.of(Disconnected) == []


def test_lost_route_is_noticed_only_by_sending():
    stage = Stage("a", "b")
    stage.connect(stage.a, stage.b)
    route = stage.a.core.routing_id
    stage.do(stage.a, Send(1, b"x"), HangUp(1))
    assert stage.b.core.of(Disconnected) == []
    stage.do(stage.b, Send(route, b"y"))
    assert stage.b.core.of(Disconnected) == [Disconnected(route, "unreachable")]


def test_second_connection_takes_over_the_routing_id():
    stage = Stage("a", "b")
    stage.connect(stage.a, stage.b, dial=1)
    stage.connect(stage.a, stage.b, dial=2)
    assert [event.channel for event in stage.a.core.of(Disconnected)] == [1]
    stage.do(stage.b, Send(stage.a.core.routing_id, b"hello"))
    assert stage.a.core.of(Arrived) == [Arrived(2, b"hello")]


@pytest.mark.parametrize("power", [False, True])
def test_death_is_noticed_and_a_new_process_receives_no_old_frames(power):
    stage = Stage("a", "b")
    stage.connect(stage.a, stage.b)
    old = stage.b.core
    stage.world.tell(stage.a, [Send(1, b"for the old one")])
    stage.world.crash(stage.b, power)
    stage.world.start(stage.b)
    stage.run(20)
    assert [event.channel for event in stage.a.core.of(Disconnected)] == [1]
    assert stage.b.core is not old
    assert stage.b.core.of(Arrived) == old.of(Arrived) == []


def test_half_open_connection_is_noticed_by_sending():
    stage = Stage("a", "b", profile=NetworkProfile(half_open=1.0))
    stage.connect(stage.a, stage.b)
    stage.world.crash(stage.b, power=False)
    stage.do(stage.a, Send(1, b"anyone?"), seconds=5)
    assert stage.a.core.of(Disconnected) == []
    stage.world.start(stage.b)
    stage.run(5)
    assert stage.a.core.of(Disconnected) == [Disconnected(1, "reset")]


def test_retransmitted_frames_are_delayed_together():
    stage = Stage("a", "b", profile=NetworkProfile(loss=0.3))
    stage.connect(stage.a, stage.b)
    frames = [b"%d" % number for number in range(200)]
    stage.do(stage.a, *(Send(1, frame) for frame in frames), seconds=0.1)
    assert len(stage.b.core.of(Arrived)) < len(frames)
    stage.run(1)
    assert [event.frame for event in stage.b.core.of(Arrived)] == frames


def test_raw_channel_loses_and_duplicates_messages():
    stage = Stage("a", "b", profile=NetworkProfile(loss=0.3, duplicates=0.5, raw=True))
    stage.connect(stage.a, stage.b)
    frames = [b"%d" % number for number in range(200)]
    stage.do(stage.a, *(Send(1, frame) for frame in frames))
    arrived = [event.frame for event in stage.b.core.of(Arrived)]
    assert 100 < len(set(arrived)) < 180
    assert len(arrived) > len(set(arrived)) + 40


def test_casts_reach_all_hosts_except_cut_and_lossy_ones():
    stage = Stage("a", "b", "c")
    stage.world.network.conditions.block([("a", "c")])
    stage.do(stage.a, Cast(b"beacon"))
    assert [bool(host.core.of(Heard)) for host in (stage.a, stage.b, stage.c)] == [True, True, False]


@pytest.mark.parametrize(
    ("effect", "complaint"),
    [
        (Send(7, b""), "which is not open"),
        (Admit(b"nobody", ""), "not waiting"),
        (Dial(1, "tcp://b:1", b"", b""), "dials 1 twice"),
    ],
)
def test_violations_of_the_host_contract_are_found(effect, complaint):
    stage = Stage("a", "b", checkers=[HostContract()])
    stage.connect(stage.a, stage.b)
    with pytest.raises(Violation, match=complaint):
        stage.do(stage.a, effect)


def test_message_for_one_process_never_reaches_the_next():
    stage = Stage("a")
    stage.world.deliver(SECOND_NS, stage.a, stage.a.process, Heard("x", b"late"))
    stage.world.crash(stage.a, power=False)
    stage.world.start(stage.a)
    stage.run(2)
    assert stage.a.core.of(Heard) == []


@pytest.mark.parametrize(
    "other",
    [
        (1, "a", 0, Heard("x", b""), [Send(1, bytes(99) + b"\1")]),
        (1, "a", 0, Heard("y", b""), [Send(1, bytes(100))]),
        (1, "a", 0, Heard("x", b""), [Cast(bytes(100))]),
        (2, "a", 0, Heard("x", b""), [Send(1, bytes(100))]),
        (1, "b", 0, Heard("x", b""), [Send(1, bytes(100))]),
        (1, "a", 1, Heard("x", b""), [Send(1, bytes(100))]),
    ],
)
def test_digest_covers_every_octet(other):
    digests = set()
    for step in ((1, "a", 0, Heard("x", b""), [Send(1, bytes(100))]), other):
        trace = Trace()
        trace.record(*step)
        digests.add(trace.digest())
    assert len(digests) == 2
