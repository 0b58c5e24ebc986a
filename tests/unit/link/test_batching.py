"""Commands of one wake-up share a frame; nothing else about them changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaplain.core import Arrived, Drained, Flushed, Send, Woken
from chaplain.errors import ConfigError, Malformed
from chaplain.link.events import CommandDropped, Forget, Missed, Say
from chaplain.link.sessions import batching
from chaplain.link.sessions.aead import BUNDLED, HEADER, HEADER_BYTES
from chaplain.link.settings import BUNDLE_BYTES_MAX, LinkSettings
from chaplain.link.zmq.fragments import PIECE_BYTES_MAX
from tests.support.link_stage import Actor, Stage, pair


def frames_of(actor: Actor, *commands: bytes, to: Actor) -> list[bytes]:
    """What leaves when all this is said in one wake-up."""
    effects = [effect for each in commands for effect in actor.step(Say(to.instance, each))]
    effects += actor.step(Drained())
    return [effect.frame for effect in effects if isinstance(effect, Send)]


def kinds(frames: list[bytes]) -> list[tuple[bool, int]]:
    """Of each frame: whether it is a bundle, and its counter."""
    return [(bool(frame[0] & BUNDLED), HEADER.unpack_from(frame)[1]) for frame in frames]


@pytest.mark.parametrize("seal", ["aes-256-gcm", "hmac-sha256"])
def test_commands_of_one_wake_up_share_a_frame(seal: str) -> None:
    stage, alice, bob = pair(seal=seal)
    frames = frames_of(alice, b"a", b"bb", b"ccc", to=bob)
    assert kinds(frames) == [(True, 4)]  # the nod was 1
    assert kinds(frames_of(alice, b"d", to=bob)) == [(False, 5)]
    stage.settle()
    assert bob.heard() == [b"a", b"bb", b"ccc", b"d"]
    assert not bob.missed


def test_link_requests_a_wake_up_and_sends_when_it_ends() -> None:
    _, alice, bob = pair()
    assert alice.step(Say(bob.instance, b"x")) == []
    assert alice.core.deadline() == 0
    (send,) = alice.step(Woken())
    assert isinstance(send, Send)
    assert alice.core.deadline() != 0
    assert alice.step(Drained()) == []


def test_each_peer_receives_its_commands_in_order() -> None:
    stage = Stage()
    alice, bob, carol = (stage.node(name) for name in ("alice", "bob", "carol"))
    alice.meet(bob)
    alice.meet(carol)
    stage.settle()
    for to, command in ((carol, b"c1"), (bob, b"b1"), (carol, b"c2")):
        alice.step(Say(to.instance, command))
    sends = alice.step(Drained())
    dials = [stage.between(alice, to).dial for to in (carol, bob)]
    assert [send.channel for send in sends if isinstance(send, Send)] == dials
    stage.settle()
    assert (bob.heard(), carol.heard()) == ([b"b1"], [b"c1", b"c2"])


def test_full_bundle_is_sent_at_once_and_fits_one_message() -> None:
    stage, alice, bob = pair()
    said = [b"%d" % number * 200 for number in range(1000)]
    frames = frames_of(alice, *said, to=bob)
    assert len(frames) > 3
    assert max(map(len, frames)) <= PIECE_BYTES_MAX
    stage.settle()
    assert bob.heard() == said


def test_long_command_is_sent_alone_after_earlier_ones() -> None:
    stage, alice, bob = pair()
    said = [b"a", b"b", bytes(100_000), b"c", b"d"]
    assert kinds(frames_of(alice, *said, to=bob)) == [(True, 3), (False, 4), (True, 6)]
    stage.settle()
    assert bob.heard() == said


def test_command_is_sent_at_once_without_bundles() -> None:
    _, alice, bob = pair(bundle_bytes_max=0)
    assert [type(effect) for effect in alice.step(Say(bob.instance, b"x"))] == [Send]
    assert alice.core.deadline() != 0


def test_lost_bundle_is_counted_in_commands() -> None:
    stage, alice, bob = pair()
    frames_of(alice, b"a", b"b", b"c", to=bob)
    stage.between(alice, bob).there.clear()
    frames_of(alice, b"d", b"e", to=bob)
    stage.settle()
    assert [missed.count for missed in bob.missed] == [3]
    assert bob.heard() == [b"d", b"e"]


def test_waiting_commands_are_unconfirmed_when_the_session_ends() -> None:
    stage, alice, bob = pair()
    alice.say(bob, b"arrives")
    stage.settle()
    bob.say(alice, b"confirms it")
    stage.settle()
    frames_of(alice, b"sealed", b"sealed too", to=bob)
    alice.step(Say(bob.instance, b"waits"))
    stage.cut(stage.between(alice, bob))
    assert [parted.unconfirmed for parted in alice.parted] == [3]
    assert [effect for effect in alice.step(Drained()) if isinstance(effect, Send)] == []


def test_forgetting_a_peer_sends_its_waiting_commands_first() -> None:
    _, alice, bob = pair()
    alice.step(Say(bob.instance, b"good-bye"))
    effects = alice.step(Forget(bob.endpoint))
    assert [type(effect).__name__ for effect in effects] == ["Send", "Parted", "HangUp"]


def test_confirmation_of_a_bundle_covers_all_its_commands() -> None:
    stage, alice, bob = pair()
    frames_of(alice, b"a", b"b", b"c", to=bob)
    stage.settle()
    bob.say(alice, b"heard")
    stage.settle()
    stage.cut(stage.between(alice, bob))
    assert [parted.unconfirmed for parted in alice.parted] == [0]


def test_budget_counts_waiting_commands() -> None:
    stage, alice, bob = pair(queue_bytes_max=1000, reserve_bytes=0)
    alice.step(Flushed(stage.between(alice, bob).dial, 1 << 20))
    effects = [effect for _ in range(20) for effect in alice.step(Say(bob.instance, bytes(100)))]
    assert [type(effect) for effect in effects] == [CommandDropped] * 13
    (send,) = alice.step(Drained())
    assert isinstance(send, Send)
    assert len(send.frame) <= 1000
    assert isinstance(alice.say(bob, bytes(300))[0], CommandDropped)
    alice.step(Flushed(send.channel, len(send.frame)))
    assert isinstance(alice.say(bob, bytes(300))[0], Send)


def forge(alice: Actor, bob: Actor, counter: int, plain: bytes) -> None:
    """Alice herself, who has the keys, writes nonsense to bob."""
    session = alice.core._tables.sessions[bob.instance]
    bob.step(Arrived(alice.core.route, session._closing.close(counter, 0, plain, BUNDLED)))


@pytest.mark.parametrize(
    "plain",
    [
        b"",
        b"\0",
        b"\0\0",
        b"\0\1\0\1x",
        b"\0\2\0\1\0",
        b"\0\2\0\1\0\1x",
        b"\0\2\0\1\0\1xyz",
        b"\0\2\0\2\0\0xy",
        b"\xff\xff" + bytes(2 * 0xFFFF),
    ],
)
def test_malformed_bundle_is_rejected_without_effects(plain: bytes) -> None:
    stage, alice, bob = pair()
    with pytest.raises(Malformed):
        batching.unpack(plain)
    forge(alice, bob, 3, plain)
    assert bob.reasons("frame rejected") == ["malformed bundle"]
    alice.say(bob, b"still here")
    stage.settle()
    assert bob.heard() == [b"still here"]
    assert not bob.missed


def test_bundle_with_old_counters_is_rejected_as_a_replay() -> None:
    stage, alice, bob = pair()
    alice.say(bob, b"x")
    stage.settle()
    forge(alice, bob, 3, batching.pack([b"a", b"b"]))
    assert bob.reasons("frame rejected") == ["replayed"]
    assert bob.heard() == [b"x"]


def test_highest_counter_causes_no_overflow() -> None:
    stage, alice, bob = pair()
    forge(alice, bob, (1 << 64) - 1, batching.pack([b"a", b"b"]))
    assert bob.missed == [Missed(alice.instance, (1 << 64) - 1 - 2 - 1)]
    bob.say(alice, b"how dare you")
    stage.settle()
    assert alice.heard() == []
    assert alice.reasons("frame rejected") == ["confirms what was never said"]


def test_frame_with_another_kind_of_seal_is_rejected() -> None:
    _, alice, bob = pair()
    session = alice.core._tables.sessions[bob.instance]
    bob.step(Arrived(alice.core.route, session._closing.close(2, 0, b"of a later version", 0x40)))
    assert bob.reasons("frame rejected") == ["not sealed"]
    assert bob.heard() == []


def test_command_frame_is_not_accepted_as_a_bundle() -> None:
    _, alice, bob = pair()
    (frame,) = frames_of(alice, batching.pack([b"a", b"b"]), to=bob)
    bob.step(Arrived(alice.core.route, bytes([frame[0] | BUNDLED]) + frame[1:]))
    assert bob.reasons("frame rejected") == ["broken seal"]
    assert len(frame) > HEADER_BYTES


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=2, max_size=40), st.binary(min_size=1, max_size=3))
def test_every_bundle_round_trips_and_trailing_octets_are_malformed(commands: list[bytes], more: bytes) -> None:
    packed = batching.pack(commands)
    assert batching.unpack(packed) == tuple(commands)
    for spoilt in (packed + more, packed[:-1]):
        with pytest.raises(Malformed):
            batching.unpack(spoilt)


@pytest.mark.parametrize("size", [-1, BUNDLE_BYTES_MAX + 1])
def test_bundle_size_setting_has_bounds(size: int) -> None:
    with pytest.raises(ConfigError, match="bundle_bytes_max"):
        LinkSettings("test", bundle_bytes_max=size)
