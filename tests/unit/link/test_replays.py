"""What was said once, said again: to whom it was for, to others, and after restarts."""

from __future__ import annotations

import random

from chaplain.core import Arrived
from chaplain.link.auth.identity import to_text
from chaplain.wire import command as commands
from tests.support.link_stage import CLUSTER_KEY, SECOND_NS, Stage, greetings, inject, pair, sealed, unharmed


def test_reflected_frame_is_rejected() -> None:
    _, alice, bob = pair()
    frame = sealed(alice, bob, b"to bob")
    inject(alice, bob, frame)
    assert alice.heard() == []
    assert alice.reasons("frame rejected") == ["broken seal"]


def test_reflected_greeting_is_refused() -> None:
    stage, alice, bob = pair()
    for frame in greetings(stage.between(alice, bob)):
        inject(alice, bob, frame)
        alice.step(Arrived(alice.core.route, frame))
    assert set(alice.reasons("greeting refused")) == {"instance is not the route's", "ourselves"}
    unharmed(stage, alice, bob)


def test_replayed_frame_is_rejected() -> None:
    stage, alice, bob = pair()
    alice.say(bob, b"once")
    stage.settle()
    for frame in stage.between(alice, bob).log:
        inject(bob, alice, frame)
    assert bob.heard() == [b"once"]
    assert bob.core.counts["replays_rejected"] == len(stage.between(alice, bob).log)
    unharmed(stage, alice, bob)


def test_replayed_greeting_and_frames_are_refused_in_the_same_run() -> None:
    """All that alice ever said to bob, over two sessions, is played to him again while the second lives."""
    stage, alice, bob = pair()
    recorded: list[bytes] = []
    for number in range(2):
        alice.say(bob, b"%d" % number)
        stage.settle()
        wire = stage.between(alice, bob)
        recorded += wire.log
        if number == 0:
            stage.cut(wire)
            stage.run(SECOND_NS)
    mets = len(bob.met)
    for frame in recorded:
        inject(bob, alice, frame)
        stage.settle()
    assert bob.heard() == [b"0", b"1"]
    assert len(bob.met) == mets
    alice.say(bob, b"2")
    stage.settle()
    assert bob.heard() == [b"0", b"1", b"2"]


def test_replay_to_a_receiver_without_a_session_gives_no_session() -> None:
    """Alice is gone for good; her recorded words make bob dial, and nothing else."""
    stage, alice, bob = pair()
    alice.say(bob, b"once")
    stage.settle()
    recorded = list(stage.between(alice, bob).log)
    stage.drop(alice)
    del stage.listening[alice.endpoint]
    stage.run(60 * SECOND_NS)
    for frame in recorded:
        inject(bob, alice, frame)
        stage.settle()
    assert bob.heard() == [b"once"]
    assert bob.sessions == set()


def test_replay_after_the_receivers_restart_is_refused() -> None:
    stage, alice, bob = pair()
    alice.say(bob, b"once")
    stage.settle()
    recorded = list(stage.between(alice, bob).log)
    again = stage.restart(bob)
    for frame in recorded:
        inject(again, alice, frame)
    stage.settle()
    assert again.heard() == []
    stage.run(SECOND_NS)
    for frame in recorded:
        inject(again, alice, frame)
    stage.settle()
    assert again.heard() == []
    assert again.sessions == {alice.instance}


def test_replay_after_the_senders_restart_is_refused() -> None:
    stage, alice, bob = pair()
    alice.say(bob, b"once")
    stage.settle()
    recorded = list(stage.between(alice, bob).log)
    again = stage.restart(alice)
    again.meet(bob)
    stage.run(SECOND_NS)
    for frame in recorded:
        inject(bob, alice, frame)
        inject(bob, again, frame)
        stage.settle()
    assert bob.heard() == [b"once"]
    assert bob.sessions == {again.instance}


def test_replay_to_a_third_node_is_refused() -> None:
    stage, alice, bob = pair()
    alice.say(bob, b"for bob")
    stage.settle()
    carol = stage.node("carol")
    for frame in stage.between(alice, bob).log:
        inject(carol, alice, frame)
    stage.settle()
    stage.run(SECOND_NS)
    assert carol.heard() == []
    # Carol's answer reached alice, who may well greet her now; but never as part of the session with bob.
    assert bob.instance in alice.sessions
    unharmed_bob = [parted for parted in alice.parted if parted.peer.instance == bob.instance]
    assert unharmed_bob == []


def test_overheard_offer_cannot_be_taken_over() -> None:
    """Carol, a member, hears alice's greeting to bob before he answers and echoes it: the call stays bob's."""
    stage = Stage()
    alice, bob, carol = stage.node("alice"), stage.node("bob"), stage.node("carol")
    alice.meet(carol)
    stage.settle()
    alice.meet(bob)
    stage.connect()
    wire = stage.between(alice, bob)
    overheard = wire.there[0]
    inject(carol, alice, overheard)
    while stage.between(carol, alice).there:
        stage.deliver(stage.between(carol, alice))
    assert alice.sessions == {carol.instance}
    assert [met.peer.instance for met in alice.met] == [carol.instance]
    stage.settle()
    assert alice.sessions == {bob.instance, carol.instance}


def test_echo_for_another_instance_completes_no_handshake() -> None:
    from chaplain.link.auth import hello as codec
    from chaplain.link.auth.key_exchange import KeyOffer

    stage = Stage()
    alice, bob = stage.node("alice"), stage.node("bob")
    alice.meet(bob)
    stage.connect()
    stage.deliver(stage.between(alice, bob))
    stage.connect()
    wire = stage.between(bob, alice)
    hello = commands.decode(codec.open_envelope(wire.there[0]).hello)
    assert isinstance(hello, commands.Hello)
    assert "chaplain.echo" in hello.headers
    hello.headers["chaplain.to"] = to_text(bytes(16))
    genuine = wire.there.popleft()
    inject(alice, bob, codec.encode(bob.core.identity, KeyOffer(random.Random(1), 1, CLUSTER_KEY), hello))
    assert alice.sessions == set()
    inject(alice, bob, genuine)
    assert alice.sessions == {bob.instance}
