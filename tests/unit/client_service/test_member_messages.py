"""Messages of clients to the clients of one member: their fate, and who gets them."""

from __future__ import annotations

import json

import pytest

from chaplain.client_service import member_messages
from chaplain.client_service.events import ClientServiceEffect, ClientServiceSettings, RightsChanged
from chaplain.client_service.limits import Limits
from chaplain.client_service.member_messages import Ack, Message
from chaplain.client_service.messages import Cancel, Done, Failed, ListenMessages, MessageItem, SendToMember, Started
from chaplain.core import Report, Woken
from chaplain.mesh.events import Entered, Exited, Gapped, Whisper, Whispered
from chaplain.rights import RequiredRight, Right, refusal
from tests.unit.client_service.client_service_stage import ANN, BOB, NODE, OWN, CoreHost, reply


def _sent_message(host: CoreHost, member: int = NODE.identifier, call: int = 5) -> Message:
    """Ann sends to a node with which there is a session; the message to it."""
    host.step(Entered(NODE, {}))
    (sent,) = host.ask(ANN, SendToMember(call, member, 10**9), b"hi")
    assert isinstance(sent, Whisper)
    assert sent.instance == NODE.instance
    message, payload = member_messages.decode(sent.content, OWN)
    assert isinstance(message, Message)
    assert (message.client, payload) == ("ann", b"hi")
    return message


def _from_node(message: Message | Ack, payload: bytes = b"", node: int = NODE.identifier) -> Whispered:
    return Whispered(NODE, member_messages.encode(node, message, payload))


def _fate(effects: list[ClientServiceEffect]) -> dict[str, object]:
    (done,) = effects
    peer, answered, payload = reply(done)
    assert (peer, answered) == (ANN.instance, Done(5))
    found: dict[str, object] = json.loads(payload)
    return found


@pytest.mark.parametrize(
    ("listeners", "outcome", "reason"),
    [(2, "delivered", ""), (0, "dropped", "no client listens to messages at node 300")],
)
def test_message_to_a_member_ends_with_its_acknowledgement(listeners: int, outcome: str, reason: str) -> None:
    host = CoreHost()
    message = _sent_message(host)
    (report,) = host.step(Whispered(BOB, member_messages.encode(BOB.identifier, Ack(message.number, 1))))
    assert isinstance(report, Report), "a client acknowledges nothing"
    fate = _fate(host.step(_from_node(Ack(message.number, listeners))))
    assert fate == {"outcome": outcome, "listeners": listeners, "reason": reason}
    assert host.step(_from_node(Ack(message.number, 1))) == [], "it has ended"


def test_message_to_a_member_expires_at_its_time_out() -> None:
    host = CoreHost()
    message = _sent_message(host)
    due_ns = host.core.deadline()
    assert due_ns == 10**9
    fate = _fate(host.core.step(due_ns, Woken()))
    assert fate["outcome"] == "expired"
    assert host.core.deadline() is None
    assert host.step(_from_node(Ack(message.number, 1))) == []


def test_message_to_a_member_expires_with_the_session() -> None:
    host = CoreHost()
    _sent_message(host)
    assert _fate(host.step(Exited(NODE, "silent")))["outcome"] == "expired"


def test_message_to_a_member_without_a_session_is_dropped() -> None:
    host = CoreHost()
    fate = _fate(host.ask(ANN, SendToMember(5, NODE.identifier, 10**9), b"hi"))
    assert fate["outcome"] == "dropped"
    assert "no session" in str(fate["reason"])


def test_message_of_another_member_goes_to_every_listener_and_is_acknowledged() -> None:
    host = CoreHost()
    host.ask(ANN, ListenMessages(1))
    host.ask(BOB, ListenMessages(2))
    host.step(Gapped(BOB, 3, outgoing=True))
    to_ann, to_bob, ack = host.step(_from_node(Message(9, "carl"), b"hi"))
    assert reply(to_ann) == (ANN.instance, MessageItem(1, NODE.identifier, "carl", 0), b"hi")
    assert reply(to_bob) == (BOB.instance, MessageItem(2, NODE.identifier, "carl", 3), b"hi")
    assert isinstance(ack, Whisper)
    assert member_messages.decode(ack.content, OWN)[0] == Ack(9, 2)
    host.ask(ANN, Cancel(1))
    host.ask(BOB, Cancel(2))
    (ack,) = host.step(_from_node(Message(10, "carl"), b"hi"))
    assert isinstance(ack, Whisper)
    assert member_messages.decode(ack.content, OWN)[0] == Ack(10, 0)


def test_message_to_the_own_node_is_delivered_at_once() -> None:
    host = CoreHost()
    host.ask(BOB, ListenMessages(2))
    item, done = host.ask(ANN, SendToMember(5, OWN, 10**9), b"hi")
    assert reply(item) == (BOB.instance, MessageItem(2, OWN, "ann", 0), b"hi")
    assert _fate([done])["outcome"] == "delivered"


def test_messages_to_a_member_need_rights_and_stay_within_the_bounds() -> None:
    rights = {"member/7"}
    host = CoreHost(
        ClientServiceSettings(calls_max=1),
        may=lambda key, want: want.stream in rights,
        limits=Limits(broadcast_bytes_max=4),
    )
    host.step(Entered(NODE, {}))
    (refused,) = host.ask(ANN, SendToMember(1, NODE.identifier, 1), b"hi")
    assert reply(refused)[1] == Failed(1, "no_right", refusal(RequiredRight(Right.WRITE, "member/300")))
    (refused,) = host.ask(ANN, SendToMember(2, OWN, 1), b"12345")
    assert "at most 4 bytes" in reply(refused)[1].reason
    assert reply(host.ask(ANN, ListenMessages(3))[0])[1] == Started(3)
    rights |= {"member/300"}
    rights.discard("member/7")
    (told,) = host.step(RightsChanged())
    assert reply(told)[1] == Failed(3, "no_right", refusal(RequiredRight(Right.READ, "member/7")))
    assert isinstance(host.ask(ANN, SendToMember(4, NODE.identifier, 10**9))[0], Whisper)
    (refused,) = host.ask(ANN, SendToMember(5, NODE.identifier, 10**9))
    assert "1 calls are open already" in reply(refused)[1].reason
    host.step(Exited(ANN, "closed"))
    assert host.core.deadline() is None, "nothing is kept of a client that left"


@pytest.mark.parametrize("content", [b"", b"noise", member_messages.encode(OWN, Message(1, "x"))])
def test_malformed_message_of_a_member_is_reported(content: bytes) -> None:
    (report,) = CoreHost().step(Whispered(NODE, content))
    assert isinstance(report, Report)
