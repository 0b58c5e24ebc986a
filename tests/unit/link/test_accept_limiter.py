"""Knocks: who is let in, once."""

from __future__ import annotations

import random

import pytest

from chaplain.core import Knocked, Refuse
from chaplain.link.auth.connect_token import NonceCache, knock_as_client, knock_as_node
from chaplain.link.auth.identity import Identity
from chaplain.link.auth.keyring import KeyRing, key_id_of
from chaplain.link.errors import GreetingRefused
from chaplain.link.events import InstallKey, Register, RemoveKey, UseKey
from tests.support.link_stage import CLUSTER_KEY, SECOND_NS, START_NS, Actor, Stage

WINDOW_NS = 60 * SECOND_NS


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def bob(stage: Stage) -> Actor:
    return stage.node("bob")


def node_knock(now_ns: int = START_NS, key: bytes = CLUSTER_KEY, seed: int = 1) -> tuple[bytes, bytes]:
    return knock_as_node(KeyRing(key), 0xABCD, now_ns, random.Random(seed))


def client_knock(identity: Identity, now_ns: int = START_NS, seed: int = 1) -> tuple[bytes, bytes]:
    return knock_as_client(identity, now_ns, random.Random(seed))


def test_node_with_the_cluster_key_is_admitted(stage: Stage, bob: Actor) -> None:
    assert stage.knock(bob, *node_knock())
    assert bob.log[-1].user == "node:0000abcd"
    assert all(len(part) <= 255 for part in node_knock())


def test_registered_client_is_admitted_under_its_name(stage: Stage, bob: Actor) -> None:
    identity = Identity.generate(random.Random(5))
    bob.step(Register({identity.key: "meter"}))
    assert stage.knock(bob, *client_knock(identity))
    assert bob.log[-1].user == "client:meter"
    assert all(len(part) <= 255 for part in client_knock(identity))


def test_replayed_token_is_refused(stage: Stage, bob: Actor) -> None:
    identity = Identity.generate(random.Random(5))
    bob.step(Register({identity.key: "meter"}))
    for knock in (node_knock(START_NS + WINDOW_NS), client_knock(identity, START_NS + WINDOW_NS)):
        stage.now_ns = START_NS
        assert stage.knock(bob, *knock)
        assert not stage.knock(bob, *knock)
        assert bob.refused[-1] == "replayed"
        # As long as its time would be accepted it stays used.
        stage.now_ns = START_NS + 2 * WINDOW_NS
        assert not stage.knock(bob, *knock)
        assert bob.refused[-1] == "replayed"
    assert bob.core.counts["replays_rejected"] == 4


@pytest.mark.parametrize("offset_ns", [WINDOW_NS + 1, -WINDOW_NS - 1])
def test_token_outside_the_time_window_is_refused(stage: Stage, bob: Actor, offset_ns: int) -> None:
    assert not stage.knock(bob, *node_knock(START_NS + offset_ns))
    assert bob.refused == ["outside the time window"]
    assert stage.knock(bob, *node_knock(START_NS + offset_ns // abs(offset_ns) * WINDOW_NS))


def test_token_of_an_unknown_client_is_refused(stage: Stage, bob: Actor) -> None:
    assert not stage.knock(bob, *client_knock(Identity.generate(random.Random(5))))
    assert bob.refused == ["unknown client"]


def test_token_with_a_wrong_signature_is_refused(stage: Stage, bob: Actor) -> None:
    meter, other = Identity.generate(random.Random(5)), Identity.generate(random.Random(6))
    bob.step(Register({meter.key: "meter"}))
    name, _ = client_knock(meter)
    for proof in (client_knock(other)[1], b"", other.sign(b"chaplain greeting 1", name), bytes(64)):
        assert not stage.knock(bob, name, proof)
    assert set(bob.refused) == {"wrong proof"}
    assert stage.knock(bob, *client_knock(meter))


def test_token_with_any_flipped_bit_is_refused(stage: Stage, bob: Actor) -> None:
    name, proof = node_knock()
    for position in range(8 * (len(name) + len(proof))):
        off = bytearray(name + proof)
        off[position // 8] ^= 1 << position % 8
        assert not stage.knock(bob, bytes(off[: len(name)]), bytes(off[len(name) :]))
    assert bob.core.counts["tokens_refused"] == 8 * (len(name) + len(proof))
    assert stage.knock(bob, name, proof)


def test_malformed_and_own_tokens_are_refused(stage: Stage, bob: Actor) -> None:
    for name in (b"", b"\x01", b"\x03" + bytes(33), bytes(255)):
        assert not stage.knock(bob, name, b"")
    assert set(bob.refused) == {"malformed"}
    own = knock_as_node(KeyRing(CLUSTER_KEY), bob.core.identity.identifier, START_NS, random.Random(1))
    assert not stage.knock(bob, *own)
    assert bob.refused[-1] == "ourselves"


def test_token_under_any_installed_key_is_admitted_and_under_a_removed_key_refused(stage: Stage, bob: Actor) -> None:
    new = bytes(32)
    assert not stage.knock(bob, *node_knock(key=new, seed=1))
    bob.step(InstallKey(new))
    assert stage.knock(bob, *node_knock(key=new, seed=2))
    assert stage.knock(bob, *node_knock(seed=3))
    bob.step(UseKey(key_id_of(new)))
    bob.step(RemoveKey(key_id_of(CLUSTER_KEY)))
    assert not stage.knock(bob, *node_knock(seed=4))
    assert set(bob.refused) == {"unknown cluster key"}


def test_remembered_tokens_are_bounded_in_total_and_per_client() -> None:
    stage = Stage()
    bob = stage.node("bob", knocks_max=10, knocks_per_client_max=3)
    greedy, modest = Identity.generate(random.Random(5)), Identity.generate(random.Random(6))
    bob.step(Register({greedy.key: "greedy", modest.key: "modest"}))
    admitted = [stage.knock(bob, *client_knock(greedy, seed=seed)) for seed in range(20)]
    assert admitted == [True] * 3 + [False] * 17
    assert bob.refused[-1] == "too many knocks"
    assert stage.knock(bob, *client_knock(modest))
    assert [stage.knock(bob, *node_knock(seed=seed)) for seed in range(12)] == [True] * 10 + [False] * 2
    stage.now_ns += 2 * WINDOW_NS + 1
    assert stage.knock(bob, *client_knock(greedy, stage.now_ns, seed=99))


def test_unproven_tokens_are_not_remembered(stage: Stage, bob: Actor) -> None:
    name, _ = node_knock()
    for _ in range(100):
        stage.knock(bob, name, bytes(32))
    assert len(bob.core._token_checker._by_nodes) == 0


def test_token_memory_forgets_exactly_after_its_window() -> None:
    memory = NonceCache(2, 2, keep_ns=10)
    memory.use(0, b"a", b"n")
    with pytest.raises(GreetingRefused):
        memory.use(10, b"a", b"n")
    memory.use(11, b"a", b"n")
    memory.use(11, b"b", b"n")
    with pytest.raises(GreetingRefused, match="too many"):
        memory.use(11, b"c", b"n")


def test_connection_to_a_client_is_refused() -> None:
    stage = Stage()
    client = stage.client("client", frozenset())
    assert isinstance(client.step(Knocked(b"r", *node_knock(), "127.0.0.1"))[-1], Refuse)
