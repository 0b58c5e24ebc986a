"""Each way to get a frame or a greeting past the link that must not work."""

from __future__ import annotations

import random

import pytest

from chaplain.core import Arrived
from chaplain.link.auth.hello import GREETING_NODE
from chaplain.link.auth.identity import Identity, route_of
from chaplain.link.auth.keyring import KeyRing, key_id_of
from chaplain.link.events import InstallKey, Meet, RemoveKey, Said, UseKey
from chaplain.link.sessions.aead import HEADER
from chaplain.wire import command as commands
from chaplain.wire.limits import FRAME_BYTES_MAX
from tests.support.link_stage import CLUSTER_KEY, SECOND_NS, Stage, greetings, inject, pair, sealed, unharmed

SEALS = pytest.mark.parametrize("seal", ["aes-256-gcm", "hmac-sha256"])


def test_unsealed_frame_is_rejected() -> None:
    stage, alice, bob = pair()
    inject(bob, alice, commands.encode(commands.Ping(2)))
    inject(bob, alice, b"")
    assert bob.heard() == []
    assert bob.reasons("frame rejected") == ["not sealed", "not sealed"]
    assert bob.reports[0].peer == f"{alice.core.identity.identifier:08x}"
    unharmed(stage, alice, bob)


@SEALS
def test_frame_with_one_flipped_bit_is_rejected(seal: str) -> None:
    stage, alice, bob = pair(seal=seal)
    frame = sealed(alice, bob, b"pay 1")
    for position in range(8 * len(frame)):
        off = bytearray(frame)
        off[position // 8] ^= 1 << position % 8
        inject(bob, alice, bytes(off))
    assert bob.heard() == []
    assert bob.core.counts["frames_rejected"] + bob.core.counts["greetings_refused"] == 8 * len(frame)
    inject(bob, alice, frame)
    assert bob.heard() == [b"pay 1"]
    unharmed(stage, alice, bob)


@SEALS
def test_frame_truncated_at_any_length_is_rejected(seal: str) -> None:
    stage, alice, bob = pair(seal=seal)
    frame = sealed(alice, bob, b"pay 1")
    for size in range(len(frame)):
        inject(bob, alice, frame[:size])
    inject(bob, alice, frame + b"\0")
    assert bob.heard() == []
    assert bob.core.counts["frames_rejected"] == len(frame) + 1
    inject(bob, alice, frame)
    unharmed(stage, alice, bob)


def test_frame_of_another_session_is_rejected() -> None:
    """A frame of another session, under the same cluster key, with the right counter."""
    stage, alice, bob = pair()
    carol = stage.node("carol")
    carol.meet(bob)
    stage.settle()
    inject(bob, alice, sealed(carol, bob, b"as alice"))
    assert bob.heard() == []
    assert bob.reasons("frame rejected") == ["broken seal"]
    unharmed(stage, alice, bob)


def test_dial_with_a_wrong_cluster_key_is_refused() -> None:
    stage = Stage()
    alice, bob = stage.node("alice", ring=KeyRing(b"other key" + bytes(23))), stage.node("bob")
    alice.meet(bob)
    stage.run(3 * SECOND_NS)
    assert set(bob.refused) == {"unknown cluster key"}
    assert alice.sessions == set()


def test_greeting_under_a_removed_key_is_refused_while_its_session_continues() -> None:
    """A greeting under a removed key is refused, though the session made with it lives on."""
    stage, alice, bob = pair()
    new = bytes(32)
    for actor in (alice, bob):
        actor.step(InstallKey(new))
        actor.step(UseKey(key_id_of(new)))
    bob.step(RemoveKey(key_id_of(CLUSTER_KEY)))
    alice.step(UseKey(key_id_of(CLUSTER_KEY)))
    alice.say(bob, b"old sessions live")
    stage.settle()
    assert bob.heard() == [b"old sessions live"]
    stage.cut(stage.between(alice, bob))
    stage.run(2 * SECOND_NS)
    assert "unknown cluster key" in bob.refused
    assert alice.sessions == set()
    for frame in greetings(stage.between(bob, alice))[:1]:
        inject(bob, alice, frame)
    assert bob.reasons("greeting refused") == ["unknown cluster key"]


def test_key_holder_cannot_speak_as_another_node() -> None:
    """Mallory holds the cluster key and a recording of alice's greetings, and dials under alice's routing id."""
    stage, alice, bob = pair()
    mallory = Identity.generate(random.Random(9))
    impostor = stage.node("mallory", identity=mallory)
    impostor.core._tables.instance = alice.instance
    impostor.core.route = route_of(alice.instance)
    impostor.meet(bob)
    stage.connect()
    wire = stage.between(impostor, bob)
    bob.step(Arrived(alice.core.route, wire.there.popleft()))
    assert bob.reasons("greeting refused") == ["instance belongs to another key"]
    unharmed(stage, alice, bob)


def test_member_that_claims_another_address_disturbs_no_session() -> None:
    """Mallory, an honest key but a false address, greets alice over and over: her session with bob stays."""
    stage, alice, bob = pair()
    mallory = stage.node("mallory", port=9009)
    mallory.core._handshake._address = ("127.0.0.1", int(bob.endpoint.rpartition(":")[2]))
    for _ in range(3):
        mallory.meet(alice)
        stage.settle()
        stage.cut(stage.between(mallory, alice))
        stage.run(SECOND_NS)
    assert set(alice.reasons("greeting refused")) == {"endpoint belongs to another key"}
    assert mallory.sessions == set()
    unharmed(stage, alice, bob)


def test_greeting_with_another_nodes_key_needs_its_signature() -> None:
    """Mallory's greeting carries alice's key and instance, a MAC of the cluster key, and mallory's signature."""
    from chaplain.link.auth import hello as codec
    from chaplain.link.auth.key_exchange import KeyOffer

    stage, alice, bob = pair()
    mallory = Identity.generate(random.Random(9))
    (frame, *_) = greetings(stage.between(alice, bob))
    hello = commands.decode(codec.open_envelope(frame).hello)
    assert isinstance(hello, commands.Hello)
    hello.headers["chaplain.turn"] = "99"
    forged = codec.encode(mallory, KeyOffer(random.Random(1), 99, CLUSTER_KEY), hello)
    inject(bob, alice, forged)
    assert bob.reasons("greeting refused") == ["wrong signature"]
    unharmed(stage, alice, bob)


@pytest.mark.parametrize("known", [True, False])
def test_identifier_belongs_to_its_first_key(known: bool) -> None:
    stage = Stage()
    bob = stage.node("bob")
    alice = stage.node("alice")
    owners = bob.core._handshake._checks.owners
    if known:
        # Nobody can grind a colliding key in a test, so the binding is planted.
        owners._known[alice.core.identity.identifier] = b"k" * 32
    alice.meet(bob)
    stage.settle()
    assert bob.sessions == (set() if known else {alice.instance})
    assert bob.reasons("greeting refused") == (["identifier belongs to another key"] if known else [])


def test_oversized_frame_is_rejected() -> None:
    _, alice, bob = pair()
    inject(bob, alice, sealed(alice, bob, b"x")[:1] + bytes(FRAME_BYTES_MAX))
    inject(bob, alice, bytes([GREETING_NODE]) + bytes(200_000))
    assert bob.reasons("frame rejected") == ["oversized"]
    assert bob.reasons("greeting refused") == ["malformed"]
    assert bob.heard() == []


def test_connection_to_itself_is_refused() -> None:
    stage = Stage()
    alice = stage.node("alice")
    stage.listening["tcp://alias:7001"] = alice
    alice.step(Meet("tcp://alias:7001"))
    stage.run(SECOND_NS)
    assert set(alice.refused) == {"ourselves"}
    assert alice.sessions == set()


def test_copy_of_the_own_identity_is_refused() -> None:
    stage = Stage()
    alice = stage.node("alice")
    clone = stage.node("clone", identity=alice.core.identity)
    bob = stage.node("bob")
    bob.meet(clone)
    stage.settle()
    alice.step(Arrived(clone.core.route, greetings(stage.between(clone, bob))[0]))
    assert alice.reasons("greeting refused") == ["our key in another instance"]


def test_version_mismatch_names_both_versions() -> None:
    stage = Stage()
    alice, bob = stage.node("alice", version=(2, 3)), stage.node("bob", version=(1, 7))
    alice.meet(bob)
    stage.settle()
    (report,) = bob.reports
    assert report.event == "greeting refused"
    assert dict(report.detail) == {"reason": "other version", "ours": "1.7", "theirs": "2.3"}
    assert bob.sessions == set()


def test_nodes_of_different_minor_versions_connect() -> None:
    stage = Stage()
    alice, bob = stage.node("alice", version=(1, 3)), stage.node("bob", version=(1, 7))
    alice.meet(bob)
    stage.settle()
    assert alice.sessions == {bob.instance}


@pytest.mark.parametrize(
    ("setting", "reason"), [({"cluster": "elsewhere"}, "other cluster"), ({"seal": "hmac-sha256"}, "other seal")]
)
def test_greeting_of_another_cluster_or_seal_is_refused(setting: dict[str, str], reason: str) -> None:
    stage = Stage()
    alice, bob = stage.node("alice", **setting), stage.node("bob")
    alice.meet(bob)
    stage.settle()
    (report,) = bob.reports
    assert report.detail["reason"] == reason
    assert next(iter(setting.values())) in report.detail.values()
    assert bob.sessions == set()


def test_greeting_with_any_flipped_bit_is_refused() -> None:
    stage = Stage()
    alice, bob = stage.node("alice"), stage.node("bob")
    alice.meet(bob)
    stage.connect()
    frame = stage.between(alice, bob).there.popleft()
    for position in range(8 * len(frame)):
        off = bytearray(frame)
        off[position // 8] ^= 1 << position % 8
        inject(bob, alice, bytes(off))
    assert bob.dials == []
    assert bob.core.counts["greetings_refused"] + bob.core.counts["frames_rejected"] == 8 * len(frame)


def test_greeting_on_an_unknown_channel_is_rejected() -> None:
    stage, alice, bob = pair()
    (frame, *_) = greetings(stage.between(alice, bob))
    for channel in (1, b"", b"\x01short", b"\x02" + alice.instance):
        bob.step(Arrived(channel, frame))
    assert bob.reasons("frame rejected") == ["not a channel for greetings"] * 4


def test_confirmation_of_unsent_commands_is_rejected() -> None:
    _, alice, bob = pair()
    session = alice.core._tables.sessions[bob.instance]
    lie = session._closing.close(session.sent + 1, 1 << 40, b"x")
    inject(bob, alice, lie)
    assert bob.reasons("frame rejected") == ["confirms what was never said"]


def test_gap_is_reported_before_the_next_command() -> None:
    stage, alice, bob = pair()
    sealed(alice, bob, b"lost")
    sealed(alice, bob, b"lost too")
    alice.say(bob, b"arrives")
    stage.settle()
    assert [(missed.instance, missed.count) for missed in bob.missed] == [(alice.instance, 2)]
    assert isinstance(bob.log[-1], Said)
    assert bob.heard() == [b"arrives"]


def test_reports_of_a_flood_are_bounded() -> None:
    stage, alice, bob = pair()
    for _ in range(1_000):
        inject(bob, alice, b"garbage")
    assert len(bob.reports) == 5
    assert bob.core.counts["frames_rejected"] == 1_000
    stage.now_ns += SECOND_NS
    inject(bob, alice, b"garbage")
    assert bob.reports[-1].detail["left_out"] == 995


def test_sessions_and_directions_have_different_keys() -> None:
    """The same command under the same counter looks different each time: nothing can be moved between them."""
    stage, alice, bob = pair()
    frames = [sealed(alice, bob, b"x" * 64), sealed(bob, alice, b"x" * 64)]
    stage.cut(stage.between(alice, bob))
    stage.run(SECOND_NS)
    frames += [sealed(alice, bob, b"x" * 64), sealed(bob, alice, b"x" * 64)]
    assert {HEADER.unpack_from(frame)[1] for frame in frames} == {2}
    assert len({frame[HEADER.size :] for frame in frames}) == 4
