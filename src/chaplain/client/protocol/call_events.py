"""The outcomes of calls, which are the same for all kinds of requests."""

from __future__ import annotations

from enum import Enum

from chaplain.core import Frozen


class Failure(Enum):
    """Why a call failed. The clients map each kind to its own exception."""

    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    BUSY = "busy"
    CLOSED = "closed"
    INVALID = "invalid"
    MISSING = "missing"
    DISK_FULL = "disk_full"
    STATEMENT = "statement"
    DROPPED = "dropped"
    NOT_EXECUTOR = "not_executor"
    NO_RIGHT = "no_right"
    LEASE_LOST = "lease_lost"
    CONFLICT = "conflict"


_RIGHTS = (Failure.NO_RIGHT.value, "not_allowed")
"""Kinds of refusal, as nodes name them, for a client that lacks a right, or is no admin."""


def refusal(kind: str) -> Failure:
    """The failure of a request that a node refused with this kind."""
    if kind == Failure.LEASE_LOST.value:
        return Failure.LEASE_LOST
    return Failure.NO_RIGHT if kind in _RIGHTS else Failure.REFUSED


class Cancelled(Frozen, frozen=True):
    """The caller no longer waits for this call; a subscription ends."""

    call: int


class Returned(Frozen, frozen=True):
    """The call succeeded."""

    call: int
    payload: bytes


class Raised(Frozen, frozen=True):
    """The call failed."""

    call: int
    failure: Failure
    reason: str
    request: tuple[int, int] | None = None
    """UNKNOWN: lane and id of the write, if the call was a write."""
    kind: str = ""
    """STATEMENT: the kind of failure that a dry run found. CONFLICT: the kind of refusal."""
    offset: int = 0
    """CONFLICT: the offset that violated the condition."""
