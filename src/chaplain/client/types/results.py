"""What calls return. Each is a record: its fields are attributes and items, so that `dict(record)` is its JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias, assert_never

import msgspec

from chaplain.core import Frozen


class Record(Frozen, frozen=True):
    def __getitem__(self, name: str) -> Any:
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__struct_fields__)

    def keys(self) -> tuple[str, ...]:
        return self.__struct_fields__


class Answer(Record, frozen=True):
    """What the members said to a question."""

    question: str
    value: Any
    """What half or more of the members answered; None while undecided."""
    votes: int
    """How many gave that value."""
    members: int
    decided: bool
    voters: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    """Members that did not answer in time."""
    reason: str = ""
    """Why it is undecided: `tie`, `split`, `unknown`, `timeout`, or `refused` (too many questions open)."""
    declined: tuple[int, ...] = ()
    """Members that do not know the question."""
    tally: tuple[tuple[Any, int], ...] = ()
    """Each answer and how many gave it, most first."""


class Acknowledgement(Record, frozen=True):
    """Which nodes have seen an event; whether anybody listens to it there, they do not say."""

    acknowledged: tuple[int, ...]
    missing: tuple[int, ...]
    """Of those it was for, the ones that did not say so in time. They may see it yet."""


class Member(Record, frozen=True):
    """One entry of a node's membership list."""

    id: int
    uri: str
    state: str
    """`alive`, `suspect` or `left`."""
    incarnation: int
    identifier: int = 0
    """The node's 32-bit name in messages."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """What the node says of itself: `[headers]` of its file, if the node that was asked has met it."""

    def __hash__(self) -> int:
        return hash((self.id, self.uri, self.state, self.incarnation))  # a dictionary has no hash


class Event(Record, frozen=True):
    """An event somebody fired."""

    id: str
    type: str
    content: bytes
    sender: int
    """The node that it was fired at."""
    missed: int = 0
    moved: bool = False
    kind: str = "event"


class MemberNews(Record, frozen=True):
    """Something changed about a node, as the one that serves this client sees it."""

    kind: str
    """`enter`, `exit`: it connected, or is gone. `join`, `leave`: a pool. `member`: the membership list has it anew."""
    node: int
    pool: str = ""
    """That it joined or left; who is gone has left all of them."""
    state: str = ""
    """Of a member: `alive`, `suspect` or `left`."""
    was: str = ""
    """Its state before; empty if it was not on the list. The same as now: it came back, or contradicted a suspicion."""
    reason: str = ""
    """Why it is gone."""
    missed: int = 0
    moved: bool = False
    """This client changed nodes since the item before: another node tells now, and what changed meanwhile is lost."""


class Question(Record, frozen=True):
    """A question that this client offered to answer; hand it to `reply` with the answer."""

    id: str
    question: str
    content: bytes
    """What the asker sent along."""
    asker: int
    """The node that it was asked at."""
    missed: int = 0
    moved: bool = False


class PoolMessage(Record, frozen=True):
    """A message to a pool that this client has joined."""

    pool: str
    value: bytes
    sender: int
    """The node that it was broadcast at."""
    client: str
    """The registered name of the client that sent it."""
    missed: int = 0
    """Messages lost on the way to here since the one before, as far as they could be counted."""
    moved: bool = False
    """This client changed nodes since the message before: what was sent meanwhile is lost uncounted."""


Heard: TypeAlias = Event | MemberNews | PoolMessage | Question


def size_bytes(item: Heard) -> int:
    match item:
        case PoolMessage():
            return len(item.value)
        case Event() | Question():
            return len(item.content)
        case MemberNews():
            return len(item.pool)
        case _:
            assert_never(item)
