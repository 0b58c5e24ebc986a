"""Authorization: decides whether an identity may write or read a stream. All kinds of streams use these functions.

An identity has two lists of patterns: the streams it may write and those it may read. The configuration stream stores
them. A right applies to a name: an identity that may write `orders` may write the journal, the graph, the sequence and
the pool of that name. This module does not know how identities are authenticated or where the lists are stored.

| kind | write permits | read permits |
|---|---|---|
| journal | a request, staged or not | messages; commands to consumers; queries of its database |
| graph | append | either order of reading |
| sequence | publish | read |
| pool | broadcast | join |
| messages to node N, under the name `member/N` | send | listen |
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Protocol

from chaplain.core import Frozen
from chaplain.wire.limits import STRING_BYTES_MAX

NO_RIGHT = "no_right"
"""The `kind` of a refusal because of a missing right, for programs."""
NOT_EXECUTOR = "not_executor"
"""The `kind` of a refusal by a node that executes no statements. Programs then ask another node."""
NO_ROLE = "this node is no executor: go to another"
"""The text of that refusal, for people, from a node that could be an executor."""


def message_stream(node_id: int) -> str:
    """The name under which the rights to messages to the clients of a node are granted."""
    return f"member/{node_id}"


class Right(StrEnum):
    WRITE = "write"
    READ = "read"


class RequiredRight(Frozen, frozen=True):
    """The right that a request needs."""

    right: Right
    stream: str


class Holder(Protocol):
    """The lists of patterns of an identity."""

    @property
    def writes(self) -> tuple[str, ...]: ...

    @property
    def reads(self) -> tuple[str, ...]: ...


def may(holder: Holder, want: RequiredRight) -> bool:
    return covers(holder.writes if want.right is Right.WRITE else holder.reads, want.stream)


def may_write(holder: Holder, stream: str) -> bool:
    return covers(holder.writes, stream)


def may_read(holder: Holder, stream: str) -> bool:
    return covers(holder.reads, stream)


def refusal(want: RequiredRight) -> str:
    """The message for people: the stream, the missing right, and who can grant it."""
    return f"this client may not {want.right} stream {want.stream[:80]!r}: ask an admin for the right"


def covers(patterns: tuple[str, ...], stream: str) -> bool:
    """Whether a pattern matches the stream. A name that is too long for a stream never matches and is not cached."""
    return len(stream) <= STRING_BYTES_MAX and _covers(patterns, stream)


@lru_cache(maxsize=65536)
def _covers(patterns: tuple[str, ...], stream: str) -> bool:
    return any(_fits(pattern, stream) for pattern in patterns)


def _fits(pattern: str, stream: str) -> bool:
    """Match `*` against any characters, including none, and all other characters against themselves.

    The search takes each piece at its first occurrence and never backtracks, so that it is linear. Clients choose the
    names, and a backtracking regular expression with several `*` can take seconds for a hostile name.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return stream == pattern
    *middle, last = rest
    at, end = len(first), len(stream) - len(last)
    if end < at or not stream.startswith(first) or not stream.endswith(last):
        return False
    for piece in middle:
        found = stream.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True
