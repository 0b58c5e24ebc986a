"""The methods of a client as data: what to send, how long to wait, and how to decode the answer.

Both clients are built from these calls, so they cannot differ. Wrong arguments raise `Misused` here, before anything is
sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from chaplain.client.protocol.events import ClientCall, ClientInput, Connect, Measure
from chaplain.client.types import validation
from chaplain.client.types.results import Acknowledgement, Answer, Delivery, Member, Question
from chaplain.client_service.limits import IDENTIFIER_END
from chaplain.client_service.messages import (
    ROTATION_NS,
    AnswerQuestions,
    AskQuestion,
    ClientRequest,
    FireAndWait,
    FireEvent,
    GetMembers,
    GetStatus,
    GiveAnAnswer,
    JoinAPool,
    ListenEvents,
    ListenMessages,
    ListenNews,
    RotateKeys,
    SendToMember,
    ShoutToPool,
)
from chaplain.errors import Malformed, Misused
from chaplain.gossip.events import BUILT_IN
from chaplain.gossip.settings import CONTENT_BYTES_MAX
from chaplain.wire.limits import FRAME_BYTES_MAX
from chaplain.wire.packed import UNREADABLE

T = TypeVar("T")

PAYLOAD_BYTES_MAX = FRAME_BYTES_MAX - 4096
"""Largest payload of one message: a frame, less its seal, command, parcel header and names."""
ANSWER_TIMEOUT_S = 5.0
"""Default time limit of a question and of an acknowledged event."""
GRACE_S = 5.0
"""The client waits for this much longer than the node, so that the node's answer can arrive."""
_NS = 1_000_000_000


class PreparedCall(Generic[T]):
    """A call to be made. `build` takes the call's number and its timeout in ns; `read` decodes the answer."""

    __slots__ = ("build", "read", "timeout_s")

    def __init__(
        self, build: Callable[[int, int], ClientInput], read: Callable[[Any], T], timeout_s: float | None = None
    ) -> None:
        self.build = build
        self.read = read
        self.timeout_s = timeout_s


def connect(timeout_s: float) -> PreparedCall[str]:
    return PreparedCall(Connect, bytes.decode, timeout_s)


def ping() -> PreparedCall[float]:
    return PreparedCall(Measure, lambda payload: int.from_bytes(payload, "big") / _NS)


def status() -> PreparedCall[dict[str, Any]]:
    return _request(GetStatus, _plain)


def members() -> PreparedCall[list[Member]]:
    return _request(GetMembers, _members)


def ask(question: str, timeout_s: float | None, content: bytes) -> PreparedCall[Answer]:
    validation.name("a question", question)
    wait_s = ANSWER_TIMEOUT_S if timeout_s is None else validation.timeout_s(timeout_s)
    sent = check_content("a question", content)
    return _request(lambda call: AskQuestion(call, question, int(wait_s * _NS)), _answer, sent, wait_s + GRACE_S)


def fire(event: str, content: bytes, target: int | None) -> PreparedCall[None]:
    sent, target = _check_event(event, content, target)
    return _request(lambda call: FireEvent(call, event, target), _nothing, sent)


def fire_and_wait(
    event: str, content: bytes, target: int | None, timeout_s: float | None
) -> PreparedCall[Acknowledgement]:
    sent, target = _check_event(event, content, target)
    wait_s = ANSWER_TIMEOUT_S if timeout_s is None else validation.timeout_s(timeout_s)
    return _request(
        lambda call: FireAndWait(call, event, int(wait_s * _NS), target),
        _acknowledgement,
        sent,
        wait_s + GRACE_S,
    )


def _check_event(event: str, content: bytes, target: int | None) -> tuple[bytes, int | None]:
    validation.name("an event's type", event)
    return check_content("an event", content), check_target(target)


def broadcast(pool: str, value: bytes) -> PreparedCall[None]:
    return _request(lambda call: ShoutToPool(call, pool), _nothing, check_payload(value))


def send_to_member(member: int, value: bytes, timeout_s: float | None) -> PreparedCall[Delivery]:
    wait_s = ANSWER_TIMEOUT_S if timeout_s is None else validation.timeout_s(timeout_s)
    return _request(
        lambda call: SendToMember(call, member, int(wait_s * _NS)), _delivery, check_payload(value), wait_s + GRACE_S
    )


def listen_to_messages() -> PreparedCall[None]:
    return _request(ListenMessages, _nothing)


def rotate_keys() -> PreparedCall[dict[str, Any]]:
    """The client waits longer than the node: the node's answer names the members that have not confirmed."""
    return _request(RotateKeys, _plain, timeout_s=ROTATION_NS / _NS + GRACE_S)


def listen(members: bool = False) -> PreparedCall[None]:
    return _request(ListenNews if members else ListenEvents, _nothing)


def join(pool: str) -> PreparedCall[None]:
    return _request(lambda call: JoinAPool(call, pool), _nothing)


def answer(question: str) -> PreparedCall[None]:
    validation.name("a question", question)
    if question in BUILT_IN:
        raise Misused(f"every node answers {question!r} by itself: choose another name")
    return _request(lambda call: AnswerQuestions(call, question), _nothing)


def reply(question: Question, value: bytes) -> PreparedCall[None]:
    if not isinstance(question, Question):
        raise Misused(f"a question that came from `questions` is wanted, not {question!r}")
    return _request(lambda call: GiveAnAnswer(call, question.id), _nothing, check_content("an answer", value))


def check_payload(payload: bytes) -> bytes:
    taken = validation.octets(payload)
    if len(taken) > PAYLOAD_BYTES_MAX:
        raise Misused(f"at most {PAYLOAD_BYTES_MAX} bytes go in one message, not {len(taken)}: send it in parts")
    return taken


def check_content(what: str, content: bytes) -> bytes:
    """Check the size of an event, a question or an answer: gossip forwards it to every node."""
    taken = check_payload(content)
    if len(taken) > CONTENT_BYTES_MAX:
        raise Misused(f"{what} holds at most {CONTENT_BYTES_MAX} bytes, not {len(taken)}: write it to a stream")
    return taken


def check_target(target: int | None) -> int | None:
    return None if target is None else check_member("a target", target)


def check_member(what: str, member: int) -> int:
    requirement = "is a node's id or its 32-bit identifier"
    return validation.number(what, member, 0, IDENTIFIER_END - 1, requirement)


def _request(
    make: Callable[[int], ClientRequest],
    read: Callable[[bytes], T],
    payload: bytes = b"",
    timeout_s: float | None = None,
) -> PreparedCall[T]:
    return PreparedCall(lambda call, timeout_ns: ClientCall(make(call), payload, timeout_ns), read, timeout_s)


def reader(kind: type[T]) -> Callable[[bytes], T]:
    """Return a JSON decoder for this type. Call it when the module is imported.

    msgspec inspects a class at its first decode, and the process crashes if two threads do that at once.
    """
    decoder = msgspec.json.Decoder(kind)

    def read(payload: bytes) -> T:
        try:
            return decoder.decode(payload)
        except UNREADABLE as error:
            raise Malformed(f"the node's answer: {error}; are client and node of the same version?") from None

    return read


def _nothing(payload: bytes) -> None:
    return None


_plain = reader(dict[str, Any])
_members = reader(list[Member])
_answer = reader(Answer)
_acknowledgement = reader(Acknowledgement)
_delivery = reader(Delivery)
