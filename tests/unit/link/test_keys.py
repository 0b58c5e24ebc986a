"""The key ring: unit rules, and rotation under traffic."""

from __future__ import annotations

import random

import pytest

from chaplain.errors import Malformed
from chaplain.link.auth.identity import Identity, from_text, identifier_of, to_text, verify
from chaplain.link.auth.keyring import KEYS_MAX, KeyRing, key_id_of
from chaplain.link.errors import GreetingRefused
from chaplain.link.events import InstallKey, RemoveKey, UseKey
from tests.support.link_stage import CLUSTER_KEY, SECOND_NS, Stage, pair

NEW = bytes(range(32, 64))


def test_rotation_with_traffic_loses_no_command() -> None:
    stage = Stage()
    nodes = [stage.node(name) for name in ("alice", "bob", "carol")]
    for one in nodes:
        for other in nodes:
            if one is not other:
                one.meet(other)
    stage.settle()
    said = 0
    steps = [InstallKey(NEW), UseKey(key_id_of(NEW)), RemoveKey(key_id_of(CLUSTER_KEY))]
    for step in steps:
        for node in nodes:
            node.step(step)
            for other in nodes:
                if other is not node:
                    node.say(other, b"%d" % said)
            said += 1
            stage.settle()
    for node in nodes:
        assert len(node.said) == 2 * len(steps)
        assert node.parted == []
        assert node.missed == []
        assert node.reports == []
        assert node.core.ring.ids == (key_id_of(NEW),)
    # And new greetings work under the new key alone.
    stage.cut(stage.between(nodes[0], nodes[1]))
    stage.run(SECOND_NS)
    assert nodes[1].instance in nodes[0].sessions


def test_handshake_succeeds_when_both_sides_use_different_installed_keys() -> None:
    """One side already uses the new key, the other still the old one: both have both."""
    stage = Stage()
    alice = stage.node("alice", ring=KeyRing(CLUSTER_KEY, [NEW]))
    bob = stage.node("bob", ring=KeyRing(NEW, [CLUSTER_KEY]))
    alice.meet(bob)
    stage.settle()
    alice.say(bob, b"old")
    bob.say(alice, b"new")
    stage.settle()
    assert (alice.heard(), bob.heard()) == ([b"new"], [b"old"])


@pytest.mark.parametrize("moves", range(5))
def test_handshake_succeeds_when_the_used_key_changes_during_it(moves: int) -> None:
    stage = Stage()
    alice, bob = (stage.node(name, ring=KeyRing(CLUSTER_KEY, [NEW])) for name in ("alice", "bob"))
    alice.meet(bob)
    stage.connect()
    for _ in range(moves):
        for wire in list(stage.wires):
            if wire.there:
                stage.deliver(wire)
                stage.connect()
                break
    for actor in (alice, bob):
        actor.step(UseKey(key_id_of(NEW)))
        actor.step(RemoveKey(key_id_of(CLUSTER_KEY)))
    stage.run(SECOND_NS)
    alice.say(bob, b"x")
    stage.settle()
    assert bob.heard() == [b"x"]


def test_used_key_and_last_key_cannot_be_removed() -> None:
    _, alice, _ = pair()
    alice.step(RemoveKey(key_id_of(CLUSTER_KEY)))
    alice.step(RemoveKey(b"none"))
    alice.step(UseKey(b"none"))
    alice.step(InstallKey(b"short"))
    reasons = alice.reasons("key ring change refused")
    assert reasons == ["the key is in use", "the key is not installed", "the key is not installed", "not a cluster key"]
    assert alice.core.ring.used == CLUSTER_KEY


def test_key_ring_is_bounded() -> None:
    ring = KeyRing(bytes(32))
    for number in range(1, KEYS_MAX):
        ring.install(bytes([number]) * 32)
    ring.install(bytes(32))
    with pytest.raises(GreetingRefused, match="full"):
        ring.install(b"x" * 32)


def test_key_ring_and_identity_files_round_trip_and_reprs_hide_secrets() -> None:
    ring = KeyRing(CLUSTER_KEY, [NEW])
    again = KeyRing.parse(ring.text())
    assert (again.used, again.ids) == (ring.used, ring.ids)
    identity = Identity.generate(random.Random(4))
    read = Identity.parse(identity.text())
    assert read.key == identity.key
    assert read.sign(b"l", b"m") == identity.sign(b"l", b"m")
    for thing in (ring, identity):
        for secret in (to_text(CLUSTER_KEY), CLUSTER_KEY.hex(), identity.text().split()[4]):
            assert secret not in repr(thing)
        assert repr(CLUSTER_KEY) not in repr(thing)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "chaplain identity 1\n",
        "chaplain identity 2\nsecret x\nkey y\n",
        f"chaplain identity 1\nsecret {to_text(bytes(32))}\nkey {to_text(bytes(32))}\n",
        f"chaplain identity 1\nkey {to_text(bytes(32))}\nsecret {to_text(bytes(32))}\n",
        f"chaplain identity 1\nsecret {to_text(bytes(31))}\nkey {to_text(bytes(32))}\n",
    ],
)
def test_invalid_identity_files_are_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        Identity.parse(text)


@pytest.mark.parametrize(
    "text", ["", "chaplain keyring 1\n", "chaplain keyring 1\nkey x\n", f"chaplain keyring 1\nlock {to_text(NEW)}\n"]
)
def test_invalid_key_ring_files_are_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        KeyRing.parse(text)


def test_signature_is_valid_for_one_label_only_and_identifier_follows_from_the_key() -> None:
    identity = Identity.generate(random.Random(4))
    signature = identity.sign(b"greeting", b"m")
    assert verify(identity.key, b"greeting", b"m", signature)
    assert not verify(identity.key, b"knock", b"m", signature)
    assert not verify(identity.key, b"greeting", b"n", signature)
    assert not verify(bytes(32), b"greeting", b"m", signature)
    assert not verify(b"short", b"greeting", b"m", signature)
    assert identity.identifier == identifier_of(identity.key)
    with pytest.raises(ValueError, match="32"):
        Identity(b"short")


def test_octets_have_one_text_form() -> None:
    text = to_text(bytes(16))
    assert from_text(text, 16, "x") == bytes(16)
    for wrong in (text + "=", text[:-1], text[:-1] + "B", text[:-1] + "!", "é" * 22, text + "A"):
        with pytest.raises(Malformed):
            from_text(wrong, 16, "x")
