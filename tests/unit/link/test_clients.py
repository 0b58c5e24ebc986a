"""Clients: pinned nodes, registered keys, and the session both ways over one connection."""

from __future__ import annotations

import random

import pytest

from chaplain.core import Arrived, HangUp, Send
from chaplain.link.auth import hello as greeting
from chaplain.link.auth.identity import Identity, to_text
from chaplain.link.auth.key_exchange import KeyOffer
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.events import Dismiss, InstallKey, Meet, PinNodeKeys, Register
from chaplain.link.settings import LinkSettings
from chaplain.wire import command as commands
from tests.support.link_stage import SECOND_NS, Actor, Stage


def stage_with_client(**settings: object) -> tuple[Stage, Actor, Actor]:
    stage = Stage()
    node = stage.node("node", **settings)
    identity = Identity.generate(random.Random(77))
    client = stage.client("client", frozenset({node.core.identity.key}), identity, **settings)
    node.step(Register({identity.key: "meter"}))
    return stage, node, client


@pytest.mark.parametrize("seal", ["aes-256-gcm", "hmac-sha256"])
def test_client_and_node_share_one_connection(seal: str) -> None:
    stage, node, client = stage_with_client(seal=seal)
    client.meet(node)
    stage.settle()
    assert [met.peer.client for met in node.met] == ["meter"]
    assert node.met[0].peer.endpoint == ""
    assert client.met[0].peer.key == node.core.identity.key
    client.say(node, b"ask")
    node.say(client, b"answer")
    stage.settle()
    assert (node.heard(), client.heard()) == ([b"ask"], [b"answer"])
    assert node.dials == []
    stage.run(60 * SECOND_NS)
    assert client.sessions == {node.instance}
    assert not node.reports
    assert not client.reports


def test_dismissed_client_starts_a_new_session() -> None:
    """As one that stood still so long that it was given up, and goes on."""
    stage, node, client = stage_with_client()
    client.meet(node)
    stage.settle()
    node.say(client, b"before")
    node.step(Dismiss(client.instance))
    client.say(node, b"into a session that is over")
    stage.settle()
    assert client.heard() == [b"before"]
    assert node.heard() == []
    assert [(parted.reason, parted.unconfirmed) for parted in client.parted] == [("greeted anew", 1)]
    assert client.sessions == {node.instance}
    assert node.sessions == {client.instance}
    client.say(node, b"after")
    stage.settle()
    assert node.heard() == [b"after"]
    stage.run(60 * SECOND_NS)
    assert node.sessions == {client.instance}


def test_dismissed_client_that_is_gone_leaves_no_state() -> None:
    stage, node, client = stage_with_client()
    client.meet(node)
    stage.settle()
    node.step(Dismiss(client.instance))
    (wire,) = stage.wires
    wire.back.clear()
    stage.run(11 * SECOND_NS)
    assert node.core._tables.outgoing_channels == {}
    assert node.core._tables.half_greeted == {}


def test_client_refuses_a_node_whose_key_is_not_pinned() -> None:
    stage, node, _ = stage_with_client()
    identity = Identity.generate(random.Random(78))
    node.step(Register({identity.key: "careful"}))
    careful = stage.client("careful", frozenset({b"p" * 32}), identity)
    careful.meet(node)
    stage.settle()
    assert careful.sessions == set()
    assert careful.reasons("greeting refused") == ["key not pinned"]
    assert node.sessions == set()


def test_unregistered_client_is_refused_at_admission_and_at_the_greeting() -> None:
    stage, node, client = stage_with_client()
    client.meet(node)
    stage.connect()
    (frame,) = stage.between(client, node).there
    node.step(Register({}))
    node.step(Arrived(client.core.route, frame))
    assert node.reasons("greeting refused") == ["unknown client"]
    stage.wires.clear()
    client.meet(node)
    stage.run(15 * SECOND_NS)
    assert "unknown client" in node.refused
    assert client.sessions == set()


def test_removed_client_is_disconnected() -> None:
    stage, node, client = stage_with_client()
    client.meet(node)
    stage.settle()
    node.say(client, b"unconfirmed")
    effects = node.step(Register({}))
    assert HangUp(client.core.route) in effects
    assert node.parted[0].reason == "client removed"
    assert node.parted[0].unconfirmed == 1
    assert node.sessions == set()
    node.step(Arrived(client.core.route, stage.rng.randbytes(50)))
    assert node.reasons("frame rejected") == ["no session"]


def test_other_clients_stay_when_one_is_removed() -> None:
    stage, node, client = stage_with_client()
    other = stage.client("other", frozenset({node.core.identity.key}))
    node.step(Register({client.core.identity.key: "meter", other.core.identity.key: "other"}))
    for actor in (client, other):
        actor.meet(node)
    stage.settle()
    node.step(Register({other.core.identity.key: "other"}))
    assert node.sessions == {other.instance}


def test_client_removed_during_its_greeting_is_disconnected() -> None:
    stage, node, client = stage_with_client()
    client.meet(node)
    stage.connect()
    stage.deliver(stage.between(client, node))
    assert HangUp(client.core.route) in node.step(Register({}))
    assert node.core._tables.outgoing_channels == {}


def test_client_reconnects_after_a_lost_connection() -> None:
    stage, node, client = stage_with_client()
    client.meet(node)
    stage.settle()
    client.say(node, b"lost")
    stage.cut(stage.between(client, node))
    assert (client.parted[0].unconfirmed, node.parted[0].unconfirmed) == (1, 0)
    stage.run(SECOND_NS)
    assert client.sessions == {node.instance}
    assert node.sessions == {client.instance}
    client.say(node, b"back")
    stage.settle()
    assert node.heard() == [b"back"]


def test_client_that_reconnects_unnoticed_replaces_its_session() -> None:
    stage, node, client = stage_with_client()
    client.meet(node)
    stage.settle()
    stage.cut(stage.between(client, node), told=False)
    stage.run(SECOND_NS)
    assert node.parted[0].reason == "greeted anew"
    assert node.sessions == {client.instance}
    node.say(client, b"hello again")
    stage.settle()
    assert client.heard() == [b"hello again"]


def test_two_processes_of_one_client_have_separate_sessions() -> None:
    stage, node, client = stage_with_client()
    twin = stage.client("twin", frozenset({node.core.identity.key}), client.core.identity)
    for actor in (client, twin):
        actor.meet(node)
    stage.settle()
    assert node.sessions == {client.instance, twin.instance}


def test_client_has_sessions_with_two_nodes() -> None:
    stage, node, _ = stage_with_client()
    second = stage.node("second")
    identity = Identity.generate(random.Random(79))
    client = stage.client("both", frozenset({node.core.identity.key, second.core.identity.key}), identity)
    for server in (node, second):
        server.step(Register({identity.key: "both"}))
        client.meet(server)
    stage.settle()
    assert client.sessions == {node.instance, second.instance}


def test_half_greeted_clients_are_bounded_and_time_out() -> None:
    stage = Stage()
    node = stage.node("node", half_greeted_max=2)
    clients = [stage.client(f"c{number}", frozenset({b"p" * 32})) for number in range(3)]
    node.step(Register({client.core.identity.key: client.name for client in clients}))
    for client in clients:
        client.meet(node)
    stage.settle()
    assert node.hung_up == [clients[0].core.route]
    assert len(node.core._tables.half_greeted) == 2
    stage.actors = {"node": node}
    stage.run(11 * SECOND_NS)
    assert node.core._tables.outgoing_channels == {}
    assert len(node.hung_up) == 3


def test_client_of_another_version_learns_both_versions() -> None:
    stage = Stage()
    node = stage.node("node", version=(1, 0))
    client = stage.client("client", frozenset({node.core.identity.key}))
    node.step(Register({client.core.identity.key: "old"}))
    client.meet(node)
    stage.settle()
    for actor, ours, theirs in ((node, "1.0", "2.0"), (client, "2.0", "1.0")):
        (report,) = actor.reports
        assert dict(report.detail) == {"reason": "other version", "ours": ours, "theirs": theirs}
    assert node.core._tables.offers == {}


def test_client_has_no_key_ring_and_is_never_dialled() -> None:
    stage, node, client = stage_with_client()
    client.step(InstallKey(bytes(32)))
    assert client.reasons("key ring change refused") == ["a client has no key ring"]
    identity = Identity.generate(random.Random(1))
    with pytest.raises(ValueError, match="a client neither"):
        type(client.core)(identity, bytes(16), LinkSettings("c"), random.Random(1), ring=KeyRing(bytes(32)))
    client.meet(node)
    stage.settle()
    client.step(Arrived(node.core.route, stage.rng.randbytes(100)))
    client.step(Arrived(b"\x01" + node.instance, b"\x12" + bytes(200)))
    assert set(client.reasons("frame rejected")) == {"no session", "not a channel for greetings"}


def test_two_endpoints_of_one_node_give_one_session() -> None:
    stage, node, client = stage_with_client()
    stage.listening["tcp://alias:7001"] = node
    client.meet(node)
    stage.settle()
    client.step(Meet("tcp://alias:7001"))
    stage.run(30 * SECOND_NS)
    assert len(client.met) == 1
    assert client.parted == []
    assert set(client.reasons("greeting refused")) == {"another endpoint leads there"}


def test_commands_to_a_client_count_against_the_budget() -> None:
    stage, node, client = stage_with_client(queue_bytes_max=1_000)
    client.meet(node)
    stage.settle()
    sent = [effect for _ in range(20) for effect in node.say(client, b"x" * 100) if isinstance(effect, Send)]
    assert len(sent) == 1_000 // 133
    stage.settle()
    assert len(client.said) == len(sent)
    assert isinstance(node.say(client, b"y")[0], Send)


def test_client_that_greets_endlessly_and_reads_nothing_is_bounded() -> None:
    stage, node, client = stage_with_client(queue_bytes_max=5_000)
    client.meet(node)
    stage.connect()
    wire = stage.between(client, node)
    outgoing = client.core._tables.outgoing_channels[1]
    for _ in range(100):
        client.core._tables.drop_offer(outgoing)
        client.core._tables.begin_step()
        client.core._handshake.greet(stage.now_ns, outgoing)
        node.step(Arrived(client.core.route, client.core._tables.out[-1].frame))
    assert "queue is full" in node.reasons("greeting refused")
    assert node.core._tables.outgoing_channels[client.core.route].queued_bytes < 6_000
    assert sum(map(len, wire.back)) < 6_000


def test_greetings_of_another_version_are_answered_at_a_bounded_rate() -> None:
    stage = Stage()
    node = stage.node("node", version=(1, 0))
    client = stage.client("client", frozenset({node.core.identity.key}))
    node.step(Register({client.core.identity.key: "old"}))
    client.meet(node)
    stage.connect()
    (frame,) = stage.between(client, node).there
    for _ in range(100):
        node.step(Arrived(client.core.route, frame))
    assert len(stage.between(client, node).back) == 5


def test_client_greeting_and_answer_with_any_flipped_bit_are_refused() -> None:
    stage, node, client = stage_with_client()
    client.meet(node)
    stage.connect()
    wire = stage.between(client, node)
    for receiver, channel, frames in ((node, client.core.route, wire.there), (client, 1, wire.back)):
        frame = frames.popleft()
        before = len(receiver.log)
        for position in range(8 * len(frame)):
            off = bytearray(frame)
            off[position // 8] ^= 1 << position % 8
            receiver.step(Arrived(channel, bytes(off)))
        assert {type(effect).__name__ for effect in receiver.log[before:]} == {"Report"}
        receiver.step(Arrived(channel, frame))
    assert client.sessions == {node.instance}
    stage.settle()
    assert node.sessions == {client.instance}


@pytest.mark.parametrize(
    ("header", "value", "reason"),
    [
        ("role", "node", "other role"),
        ("key", to_text(bytes(32)), "identifier is not the key's"),
        ("identifier", "00000000", "identifier is not the key's"),
        ("instance", to_text(bytes(16)), "instance is not the route's"),
        ("turn", "0", "malformed"),
        ("echo", "AAAA", "malformed"),
        ("version", "1", "malformed"),
        ("share", to_text(bytes(32)), None),
    ],
)
def test_signed_greeting_that_contradicts_itself_is_refused(header: str, value: str, reason: str | None) -> None:
    stage, node, client = stage_with_client()
    client.meet(node)
    stage.connect()
    hello = commands.decode(greeting.open_envelope(stage.between(client, node).there[0]).hello)
    assert isinstance(hello, commands.Hello)
    hello.headers[f"chaplain.{header}"] = value
    forged = greeting.encode(client.core.identity, KeyOffer(random.Random(1), 1, b""), hello)
    node.step(Arrived(client.core.route, forged))
    assert node.reasons("greeting refused") == ([reason] if reason else [])
    assert node.sessions == set()


def test_greeting_whose_inner_key_differs_from_the_envelope_is_refused() -> None:
    """Both keys are registered, and the identifier is the inner key's: still not the signer's greeting."""
    stage, node, client = stage_with_client()
    other = Identity.generate(random.Random(80))
    node.step(Register({client.core.identity.key: "meter", other.key: "other"}))
    client.meet(node)
    stage.connect()
    hello = commands.decode(greeting.open_envelope(stage.between(client, node).there[0]).hello)
    assert isinstance(hello, commands.Hello)
    hello.headers["chaplain.key"] = to_text(other.key)
    hello.headers["chaplain.identifier"] = f"{other.identifier:08x}"
    forged = greeting.encode(client.core.identity, KeyOffer(random.Random(1), 1, b""), hello)
    node.step(Arrived(client.core.route, forged))
    assert node.reasons("greeting refused") == ["key is not the envelope's"]


def test_key_share_of_low_order_gives_no_session() -> None:
    stage, node, client = stage_with_client()
    client.meet(node)
    stage.connect()
    wire = stage.between(client, node)
    stage.deliver(wire)
    stage.deliver(wire, back=True)
    hello = commands.decode(greeting.open_envelope(wire.there[0]).hello)
    assert isinstance(hello, commands.Hello)
    hello.headers["chaplain.share"] = to_text(bytes(32))
    node.step(
        Arrived(client.core.route, greeting.encode(client.core.identity, KeyOffer(random.Random(1), 1, b""), hello))
    )
    assert node.reasons("greeting refused") == ["share of low order"]
    assert node.sessions == set()
    stage.settle()
    assert node.sessions == {client.instance}


def test_node_pinned_later_is_accepted_until_it_is_unpinned() -> None:
    stage, node, client = stage_with_client()
    second = stage.node("second")
    second.step(Register({client.core.identity.key: "meter"}))
    client.meet(second)
    stage.settle()
    assert client.reasons("greeting refused") == ["key not pinned"]
    key = second.core.identity.key
    client.step(PinNodeKeys(frozenset({key}), frozenset()))
    client.meet(node)
    stage.run(15 * SECOND_NS)
    assert client.sessions == {node.instance, second.instance}
    client.step(PinNodeKeys(frozenset(), frozenset({key})))
    stage.cut(stage.between(client, second))
    stage.run(15 * SECOND_NS)
    assert client.sessions == {node.instance}
    assert set(client.reasons("greeting refused")) == {"key not pinned"}
