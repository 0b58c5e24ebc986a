"""Messages of clients to the clients of one other member: ALIVE of mesh.txt with a user's content.

The node that serves the sender sends the message to the member, which delivers it to all clients that listen there, and
acknowledges with their number. Decides when a message has expired. Does not know clients or rights.

Invariants: every message that was sent ends once, in an acknowledgement, at its time-out or with the session; an
acknowledgement counts only if it comes from the session to which the message went.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.wire import parcel
from chaplain.wire.packed import unpack
from chaplain.wire.parcel import Layer, Parcel

CLIENT_NAME_MAX = 255
"""Longest name of a client."""


class Message(Frozen, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """A message for the clients of the receiving node; its value is the payload."""

    number: int
    client: str
    """The name of the client that sent it."""


class Ack(Frozen, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """The message with this number went to so many clients."""

    number: int
    listeners: int


MemberParcel: TypeAlias = Message | Ack

_decoder: msgspec.msgpack.Decoder[MemberParcel] = msgspec.msgpack.Decoder(MemberParcel)
_encoder = msgspec.msgpack.Encoder()


def encode(node: int, message: MemberParcel, payload: bytes = b"") -> bytes:
    return parcel.encode(Parcel(node, Layer.CLIENT, _encoder.encode(message), payload))


def decode(content: bytes, speaker: int) -> tuple[MemberParcel, bytes]:
    """Decode a parcel of this node. Raises `Malformed` if it names another node as its sender."""
    opened = parcel.decode(content)
    if opened.node != speaker:
        raise Malformed(f"member message: {speaker:08x} speaks for {opened.node:08x}")
    message = unpack(_decoder, opened.body, "member message")
    if isinstance(message, Message) and len(message.client.encode()) > CLIENT_NAME_MAX:
        raise Malformed(f"member message: a client's name has at most {CLIENT_NAME_MAX} octets")
    return message, opened.payload


class _Sent(NamedTuple):
    instance: bytes
    member: int
    due_ns: int


class SentMessages:
    """The messages that were sent to other members and have not ended. Each is an open call of a client."""

    def __init__(self) -> None:
        self._sent: dict[int, _Sent] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def deadline(self) -> int | None:
        return min((sent.due_ns for sent in self._sent.values()), default=None)

    def add(self, number: int, instance: bytes, member: int, due_ns: int) -> None:
        self._sent[number] = _Sent(instance, member, due_ns)

    def forget(self, number: int) -> None:
        self._sent.pop(number, None)

    def acknowledged(self, instance: bytes, number: int) -> int | None:
        """End a message. Returns the member; None if no such message was sent to this session."""
        sent = self._sent.get(number)
        if sent is None or sent.instance != instance:
            return None
        del self._sent[number]
        return sent.member

    def expired(self, now_ns: int) -> list[int]:
        """End the messages whose time is over, and return their numbers."""
        return self._end([number for number, sent in self._sent.items() if now_ns >= sent.due_ns])

    def session_ended(self, instance: bytes) -> list[int]:
        """End the messages that went to this session, and return their numbers."""
        return self._end([number for number, sent in self._sent.items() if sent.instance == instance])

    def _end(self, numbers: list[int]) -> list[int]:
        for number in numbers:
            del self._sent[number]
        return numbers


def fate(outcome: str, listeners: int = 0, reason: str = "") -> dict[str, object]:
    """The result of a call, as JSON: `delivered`, `dropped` or `expired`."""
    return {"outcome": outcome, "listeners": listeners, "reason": reason}


def acknowledged_fate(member: int, listeners: int) -> dict[str, object]:
    if listeners > 0:
        return fate("delivered", listeners)
    return fate("dropped", reason=f"no client listens to messages at node {member}")
