"""Who may do what with a stream, whatever its kind: the one place where that is asked.

An identity has two lists of patterns, of what it may write and of what it may read; the configuration stream keeps
them. A right is about a name: whoever may write `orders` may write the journal, the graph, the sequence and the pool of
that name. Refuses to know who somebody is, and where the lists are kept.

| kind | writes | reads |
|---|---|---|
| journal | a request, staged or not | messages; queries of its database |
| graph | append | either order of reading |
| sequence | publish | read |
| pool | broadcast | join |
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Protocol

from chaplain.core import Frozen
from chaplain.wire.limits import STRING_BYTES_MAX

NO_RIGHT = "no_right"
"""The kind of such a refusal, for programs."""
NOT_EXECUTOR = "not_executor"
"""The kind of a refusal by a node that executes nothing, for programs: they ask another."""
NO_ROLE = "this node is no executor: go to another"
"""What people are told then, if the node could be one."""


class Right(StrEnum):
    WRITE = "write"
    READ = "read"


class RequiredRight(Frozen, frozen=True):
    """The right that a request takes."""

    right: Right
    stream: str


class Holder(Protocol):
    """An identity, as far as rights go."""

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
    """For people: the stream, the right, and who can give it."""
    return f"this client may not {want.right} stream {want.stream[:80]!r}: ask an admin for the right"


def covers(patterns: tuple[str, ...], stream: str) -> bool:
    """A name that is too long for a stream is nobody's, and not remembered."""
    return len(stream) <= STRING_BYTES_MAX and _covers(patterns, stream)


@lru_cache(maxsize=65536)
def _covers(patterns: tuple[str, ...], stream: str) -> bool:
    return any(_fits(pattern, stream) for pattern in patterns)


def _fits(pattern: str, stream: str) -> bool:
    """`*` stands for any characters, also none; everything else for itself.

    Each piece is taken where it comes first and never sought again: names are chosen by whoever asks, and a regular
    expression with some `*` can be kept busy for seconds by one of them.
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
