"""Sessions on a network without faults, and after losses."""

from __future__ import annotations

import pytest

from chaplain.core import Connected, Disconnected, Send
from chaplain.link.auth.hello import GREETING_NODE
from chaplain.link.events import CommandDropped, Forget, Introduce, Meet, Parted, Register, Say
from chaplain.link.settings import LinkSettings
from chaplain.wire.limits import FRAME_BYTES_MAX
from tests.support.link_stage import SECOND_NS, Stage, pair


@pytest.mark.parametrize("seal", ["aes-256-gcm", "hmac-sha256"])
def test_two_nodes_exchange_commands(seal: str) -> None:
    stage, alice, bob = pair(seal=seal)
    for number in range(3):
        alice.say(bob, b"a%d" % number)
        bob.say(alice, b"b%d" % number)
    stage.settle()
    assert bob.heard() == [b"a0", b"a1", b"a2"]
    assert alice.heard() == [b"b0", b"b1", b"b2"]
    assert not alice.reports
    assert not bob.reports


def test_met_contains_the_peer_that_the_greeting_proved() -> None:
    stage = Stage()
    alice, bob = stage.node("alice"), stage.node("bob")
    bob.step(Introduce(("red",), 7, {"rack": "2"}))
    alice.meet(bob)
    stage.settle()
    (met,) = alice.met
    assert met.peer.key == bob.core.identity.key
    assert met.peer.identifier == bob.core.identity.identifier
    assert met.peer.endpoint == bob.endpoint
    assert met.peer.client == ""
    assert (met.hello.pools, met.hello.status, met.hello.headers) == (("red",), 7, {"rack": "2"})
    assert met.hello.sequence == 1


def test_greeting_is_the_first_frame_on_every_channel() -> None:
    stage, alice, bob = pair()
    for _ in range(3):
        alice.say(bob, b"x")
        bob.say(alice, b"y")
        stage.settle()
        stage.cut(stage.between(alice, bob))
        stage.run(SECOND_NS)
    for actor in (alice, bob):
        greeted = set()
        for effect in actor.log:
            if isinstance(effect, Send):
                assert effect.frame[0] == GREETING_NODE or effect.channel in greeted
                greeted.add(effect.channel)
        assert greeted
    assert len(alice.dials) == 4


def test_no_frame_is_sent_before_the_dial_is_connected() -> None:
    stage = Stage()
    alice, bob = stage.node("alice"), stage.node("bob")
    alice.meet(bob)
    assert not [effect for effect in alice.log if isinstance(effect, Send)]
    alice.step(Connected(99))
    assert not [effect for effect in alice.log if isinstance(effect, Send)]


def test_simultaneous_dials_end_in_one_session_each() -> None:
    stage = Stage()
    alice, bob = stage.node("alice"), stage.node("bob")
    alice.meet(bob)
    bob.meet(alice)
    stage.settle()
    stage.run(30 * SECOND_NS)
    assert len(alice.met) == len(bob.met) == 1
    assert not alice.parted
    assert not bob.parted
    assert len(stage.wires) == 2
    assert len(alice.dials) == len(bob.dials) == 1


@pytest.mark.parametrize("order", range(24))
def test_simultaneous_greetings_succeed_in_every_order(order: int) -> None:
    """Both are connected; then the frames of the two directions move one by one, in an order of the number's bits."""
    stage = Stage()
    alice, bob = stage.node("alice"), stage.node("bob")
    alice.meet(bob)
    bob.meet(alice)
    stage.connect()
    for bit in range(5):
        wire = stage.between(alice, bob) if order >> bit & 1 else stage.between(bob, alice)
        if wire.there:
            stage.deliver(wire)
    stage.settle()
    assert len(alice.met) == len(bob.met) == 1
    alice.say(bob, b"to bob")
    bob.say(alice, b"to alice")
    stage.settle()
    assert (bob.heard(), alice.heard()) == ([b"to bob"], [b"to alice"])


def test_lost_dial_parts_with_its_unconfirmed_count_and_reconnects() -> None:
    stage, alice, bob = pair()
    for number in range(5):
        alice.say(bob, b"%d" % number)
    wire = stage.between(alice, bob)
    for _ in range(3):
        stage.deliver(wire)
    bob.say(alice, b"I heard three")
    stage.deliver(stage.between(bob, alice))
    assert bob.heard() == [b"0", b"1", b"2"]
    stage.cut(wire)
    (parted,) = alice.parted
    assert (parted.peer.instance, parted.reason, parted.unconfirmed) == (bob.instance, "cut", 2)
    stage.run(SECOND_NS)
    assert alice.sessions == {bob.instance}
    assert bob.sessions == {alice.instance}
    alice.say(bob, b"again")
    stage.settle()
    assert bob.heard()[-1] == b"again"


def test_unnoticed_lost_connection_is_replaced_and_its_commands_counted() -> None:
    stage, alice, bob = pair()
    stage.cut(stage.between(alice, bob), told=False)
    bob.say(alice, b"lost, since alice has no session now")
    stage.run(SECOND_NS)
    (parted,) = bob.parted
    assert (parted.reason, parted.unconfirmed) == ("greeted anew", 1)
    assert alice.sessions == {bob.instance}
    assert bob.sessions == {alice.instance}


def test_listener_that_notices_a_lost_dial_greets_at_once() -> None:
    """Bob lost his dial and would wait before the next; alice's greeting on hers tells him that she is there."""
    stage, alice, bob = pair()
    stage.cut(stage.between(bob, alice))
    stage.settle()
    assert alice.sessions == {bob.instance}
    assert bob.sessions == {alice.instance}


def test_unconfirmed_confirmation_frame_is_not_counted_as_a_command() -> None:
    stage, alice, bob = pair()
    stage.cut(stage.between(alice, bob))
    assert [parted.unconfirmed for parted in (*alice.parted, *bob.parted)] == [0, 0]


def test_restarted_peer_is_met_under_its_new_instance() -> None:
    stage, alice, bob = pair()
    again = stage.restart(bob)
    assert [parted.peer.instance for parted in alice.parted] == [bob.instance]
    stage.run(SECOND_NS)
    assert alice.sessions == {again.instance}
    assert again.sessions == {alice.instance}
    assert alice.met[-1].peer.key == bob.core.identity.key


def test_peer_that_restarts_unnoticed_replaces_its_old_instance() -> None:
    """The old connection's end shows only when alice answers the new instance's greeting on it."""
    stage, alice, bob = pair()
    old = stage.between(alice, bob)
    stage.wires.clear()
    del stage.listening[bob.endpoint]
    again = stage.node("bob", identity=bob.core.identity, port=7002)
    again.meet(alice)
    stage.settle()
    assert isinstance(alice.log[-1], Send)
    assert alice.log[-1].channel == old.dial
    alice.step(Disconnected(old.dial, "reset"))
    stage.run(SECOND_NS)
    assert alice.sessions == {again.instance}
    assert again.sessions == {alice.instance}


def test_redials_back_off_and_never_stop() -> None:
    stage = Stage()
    alice, bob = stage.node("alice"), stage.node("bob")
    stage.unreachable.add(bob.endpoint)
    alice.meet(bob)
    stage.run(60 * SECOND_NS)
    assert 40 <= len(alice.dials) <= 90
    assert len({dial.dial for dial in alice.dials}) == len(alice.dials)
    stage.unreachable.clear()
    stage.run(2 * SECOND_NS)
    assert alice.sessions == {bob.instance}, "who comes back is found within 2 s"


def test_dial_back_without_a_session_is_given_up() -> None:
    stage = Stage()
    alice, bob = stage.node("alice"), stage.node("bob")
    stage.unreachable.add(alice.endpoint)
    alice.meet(bob)
    stage.settle()
    stage.drop(alice)
    stage.run(40 * SECOND_NS)
    assert bob.core._tables.calls == {}
    assert bob.core.deadline() is None or bob.core.deadline() <= stage.now_ns


def test_session_that_is_never_confirmed_ends() -> None:
    """The last greeting and the nod are lost without the connection breaking."""
    stage = Stage()
    alice, bob = stage.node("alice"), stage.node("bob")
    alice.meet(bob)
    stage.connect()
    stage.deliver(stage.between(alice, bob))
    stage.connect()
    stage.deliver(stage.between(bob, alice))
    assert alice.sessions == {bob.instance}
    stage.between(alice, bob).there.clear()
    stage.run(9 * SECOND_NS)
    assert alice.sessions == {bob.instance}
    assert bob.sessions == set()
    stage.run(10 * SECOND_NS)
    assert alice.parted[0].reason == "never confirmed"
    assert alice.sessions == {bob.instance}
    assert bob.sessions == {alice.instance}


def test_forget_ends_the_session_and_the_dialling() -> None:
    stage, alice, bob = pair()
    alice.step(Forget(bob.endpoint))
    assert alice.parted[0].reason == "forgotten"
    assert alice.sessions == set()
    dials = len(alice.dials)
    stage.run(60 * SECOND_NS)
    assert len(alice.dials) == dials
    alice.step(Forget("tcp://127.0.0.1:1"))


def test_own_endpoint_is_refused_and_a_repeated_meet_has_no_effect() -> None:
    stage = Stage()
    alice, bob = stage.node("alice"), stage.node("bob")
    alice.step(Meet(alice.endpoint))
    alice.meet(bob)
    alice.meet(bob)
    assert alice.reasons("meeting refused") == ["our own endpoint"]
    assert len(alice.dials) == 1


def test_second_endpoint_of_a_node_gives_no_second_call() -> None:
    stage = Stage()
    alice, bob = stage.node("alice"), stage.node("bob")
    stage.listening["tcp://bob.example:7002"] = bob
    alice.step(Meet("tcp://bob.example:7002"))
    stage.settle()
    alice.meet(bob)
    stage.run(30 * SECOND_NS)
    assert len(alice.dials) == 1
    assert alice.sessions == {bob.instance}
    alice.step(Forget(bob.endpoint))
    assert alice.sessions == set()


def test_ordinary_commands_stop_at_the_budget_and_urgent_ones_at_the_reserve() -> None:
    stage, alice, bob = pair(queue_bytes_max=2_000, reserve_bytes=500)
    stage.between(alice, bob)
    effects = [effect for _ in range(30) for effect in alice.say(bob, b"x" * 100)]
    sent = [effect for effect in effects if isinstance(effect, Send)]
    assert len(sent) == 2_000 // 133
    assert {drop.reason for drop in alice.dropped} == {"queue is full"}
    assert len(alice.dropped) == 30 - len(sent)
    urgent = [effect for _ in range(30) for effect in alice.say(bob, b"u" * 100, urgent=True)]
    assert len([effect for effect in urgent if isinstance(effect, Send)]) == 2_500 // 133 - len(sent)
    stage.settle()
    assert len(bob.said) == 2_500 // 133
    assert alice.say(bob, b"there is room again") != []
    assert not isinstance(alice.log[-1], CommandDropped)
    assert not bob.missed


def test_unsendable_commands_are_reported() -> None:
    stage, alice, bob = pair(queue_bytes_max=64 << 20)
    assert alice.step(Say(b"?" * 16, b"x")) == [CommandDropped(b"?" * 16, b"x", "no session")]
    big = bytes(FRAME_BYTES_MAX)
    assert alice.step(Say(bob.instance, big)) == [CommandDropped(bob.instance, big, "larger than a frame")]
    largest = bytes(FRAME_BYTES_MAX - 33)
    alice.say(bob, largest)
    stage.settle()
    assert bob.heard() == [largest]
    assert alice.core.counts["dropped"] == 2
    with pytest.raises(ValueError, match="empty"):
        alice.say(bob, b"")


def test_introduction_changed_during_a_handshake_keeps_the_session() -> None:
    """Bob's first words are under way when they change: whoever changed them says so in the session."""
    stage = Stage()
    alice, bob = stage.node("alice"), stage.node("bob")
    bob.step(Introduce(("old",), 1, {}))
    alice.meet(bob)
    stage.connect()
    stage.deliver(stage.between(alice, bob))
    stage.connect()
    bob.step(Introduce(("new",), 2, {}))
    stage.settle()
    assert [met.hello.pools for met in alice.met] == [("old",)]
    assert len(bob.met) == 1
    alice.say(bob, b"heard")
    stage.settle()
    assert bob.heard() == [b"heard"]


def test_introduction_that_no_greeting_can_contain_raises() -> None:
    stage = Stage()
    alice = stage.node("alice")
    with pytest.raises(ValueError, match="link's own"):
        alice.step(Introduce((), 0, {"chaplain.key": "x"}))
    with pytest.raises(ValueError, match="visible"):
        alice.step(Introduce(("no spaces",), 0, {}))


def test_sessions_and_calls_are_bounded() -> None:
    stage = Stage()
    small = stage.node("small", sessions_max=1, calls_max=2)
    bob, carol = stage.node("bob"), stage.node("carol")
    bob.meet(small)
    stage.settle()
    carol.meet(small)
    stage.settle()
    assert small.sessions == {bob.instance}
    assert small.reasons("greeting refused") == ["too many sessions"]
    small.step(Meet("tcp://127.0.0.1:9001"))
    assert small.reasons("meeting refused") == ["too many calls"]


def test_clients_cannot_displace_nodes_nor_one_client_another() -> None:
    stage = Stage()
    small = stage.node("small", sessions_max=3, sessions_per_client_max=2)
    pinned = frozenset({small.core.identity.key})
    greedy = stage.client("greedy", pinned)
    again = [stage.client(f"again {number}", pinned, identity=greedy.core.identity) for number in range(2)]
    other, late = stage.client("other", pinned), stage.client("late", pinned)
    small.step(Register({client.core.identity.key: client.name for client in (greedy, other, late)}))
    for client in (greedy, *again, other, late):
        client.meet(small)
        stage.settle()
    assert small.sessions == {greedy.instance, again[0].instance, other.instance}
    assert small.reasons("greeting refused")[:2] == ["too many sessions"] * 2
    bob = stage.node("bob")
    bob.meet(small)
    stage.settle()
    assert bob.instance in small.sessions


def test_equal_inputs_give_equal_effects() -> None:
    logs = []
    for _ in range(2):
        stage, alice, bob = pair()
        alice.say(bob, b"x")
        stage.cut(stage.between(bob, alice))
        stage.run(5 * SECOND_NS)
        logs.append((alice.log, bob.log))
    assert logs[0] == logs[1]


def test_session_parts_at_most_once() -> None:
    stage, alice, bob = pair()
    for turn in range(6):
        first, second = (alice, bob) if turn % 2 else (bob, alice)
        stage.cut(stage.between(first, second), told=turn % 3 != 0)
        stage.run(7 * SECOND_NS)
        assert alice.sessions == {bob.instance}
        assert bob.sessions == {alice.instance}
    assert all(isinstance(parted, Parted) for parted in alice.parted)


def test_settings_out_of_range_are_refused() -> None:
    from chaplain.errors import ConfigError

    for wrong in ({"cluster": ""}, {"cluster": "a b"}, {"seal": "rot13"}, {"endpoint": "tcp://x:0"}, {"endpoint": "x"}):
        with pytest.raises(ConfigError):
            LinkSettings(**{"cluster": "c", **wrong})
