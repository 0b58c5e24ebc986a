"""The values that client methods return.

Each value is a record: `record.field`, `record["field"]` and `dict(record)` work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, assert_never

import msgspec

from chaplain.core import Frozen

SHOWN_BYTES_MAX = 64
"""`repr` shows longer values in part: a message may have megabytes."""


def brief(value: Any) -> str:
    """The `repr` of a field, shortened if it is long."""
    if not isinstance(value, bytes) or len(value) <= SHOWN_BYTES_MAX:
        return repr(value)
    return f"<{len(value)} bytes: {value[:SHOWN_BYTES_MAX]!r}...>"


class ResultRecord(Frozen, frozen=True):
    """A frozen struct whose fields are also items."""

    def __getitem__(self, name: str) -> Any:
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__struct_fields__)

    def keys(self) -> tuple[str, ...]:
        return self.__struct_fields__

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={brief(getattr(self, name))}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({fields})"


class Answer(ResultRecord, frozen=True):
    """The members' answer to a question."""

    question: str
    value: Any
    """The answer of at least half of the members; None if undecided."""
    votes: int
    """How many members gave this value; if undecided, the most votes that any answer got."""
    members: int
    """Number of members when the question was decided."""
    decided: bool
    voters: tuple[int, ...] = ()
    """Members that gave any answer."""
    missing: tuple[int, ...] = ()
    """Members that did not answer in time."""
    reason: str = ""
    """Why it is undecided: `tie`, `split`, `unknown`, `timeout`, or `refused` (too many questions open)."""
    declined: tuple[int, ...] = ()
    """Members that do not know the question."""
    tally: tuple[tuple[Any, int], ...] = ()
    """Each answer with its number of votes, most votes first."""


class Acknowledgement(ResultRecord, frozen=True):
    """Which nodes have seen an event. It does not tell whether a client listens there."""

    acknowledged: tuple[int, ...]
    missing: tuple[int, ...]
    """Addressed nodes that have not confirmed in time. They may still see the event."""


class Member(ResultRecord, frozen=True):
    """One entry of a node's membership list."""

    id: int
    uri: str
    state: str
    """`alive`, `suspect` or `left`."""
    incarnation: int
    identifier: int = 0
    """The node's 32-bit name in messages."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """The node's description of itself: `[headers]` of its file. Empty if the queried node has not met it."""
    failed: bool = False
    """True if its state is `left` because it was silent, as after a kill. False if it was stopped or removed."""

    def __hash__(self) -> int:
        return hash((self.id, self.uri, self.state, self.incarnation))  # a dict is not hashable


class Event(ResultRecord, frozen=True):
    """An event that was fired."""

    id: str
    type: str
    content: bytes
    sender: int
    """The node at which it was fired."""
    missed: int = 0
    """Items lost before this one, as far as they could be counted."""
    moved: bool = False
    """True if this client changed nodes since the previous item: items in between are lost uncounted."""
    kind: str = "event"


class MemberNews(ResultRecord, frozen=True):
    """A change of a node, as seen by the node that serves this client."""

    kind: str
    """`enter` or `exit`: the node connected or disconnected. `join` or `leave`: it joined or left a pool. `member`: its
    entry in the membership list changed.
    """
    node: int
    pool: str = ""
    """The pool that it joined or left. A node that disconnects has left all its pools."""
    state: str = ""
    """For `member`: `alive`, `suspect` or `left`."""
    was: str = ""
    """The previous state; empty if the node was not on the list. If it equals `state`, the node returned or refuted a
    suspicion.
    """
    reason: str = ""
    """Why the node disconnected."""
    missed: int = 0
    """Items lost before this one, as far as they could be counted."""
    moved: bool = False
    """True if this client changed nodes since the previous item: the item describes the view of another node, and
    changes in between are lost.
    """


class Question(ResultRecord, frozen=True):
    """A question for this client to answer: pass it to `reply` together with the answer."""

    id: str
    question: str
    content: bytes
    """The bytes that the asker sent along."""
    asker: int
    """The node at which it was asked."""
    missed: int = 0
    """Items lost before this one, as far as they could be counted."""
    moved: bool = False
    """True if this client changed nodes since the previous item: items in between are lost uncounted."""


class PoolMessage(ResultRecord, frozen=True):
    """A message to a pool that this client has joined."""

    pool: str
    value: bytes
    sender: int
    """The node at which it was broadcast."""
    client: str
    """The registered name of the client that sent it."""
    missed: int = 0
    """Messages lost before this one, as far as they could be counted."""
    moved: bool = False
    """True if this client changed nodes since the previous message: messages in between are lost uncounted."""


class MemberMessage(ResultRecord, frozen=True):
    """A message that a client sent to the clients of the node that serves this client."""

    value: bytes
    sender: int
    """The node of the client that sent it."""
    client: str
    """The registered name of that client."""
    missed: int = 0
    """Items lost before this one, as far as they could be counted."""
    moved: bool = False
    """True if this client changed nodes since the previous message: it now gets the messages to another node."""


class Delivery(ResultRecord, frozen=True):
    """The fate of a message to a member."""

    outcome: str
    """`delivered`: the member passed it to its listeners. `dropped`: it was not sent, or no client listens there.
    `expired`: the member did not acknowledge it in time; it may have arrived.
    """
    listeners: int
    """How many clients it was passed to."""
    reason: str = ""
    """Why it was dropped or expired."""


ListenerItem: TypeAlias = Event | MemberNews | PoolMessage | MemberMessage | Question


def size_bytes(item: ListenerItem) -> int:
    match item:
        case PoolMessage() | MemberMessage():
            return len(item.value)
        case Event() | Question():
            return len(item.content)
        case MemberNews():
            return len(item.pool)
        case _:
            assert_never(item)
