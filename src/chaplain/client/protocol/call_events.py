"""How calls end, whatever they ask for."""

from __future__ import annotations

from enum import Enum

from chaplain.core import Frozen


class Failure(Enum):
    """Why a call failed; the faces turn each into its own error."""

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


class Cancelled(Frozen, frozen=True):
    """Nobody waits for this call any more; a listening ends."""

    call: int


class Returned(Frozen, frozen=True):
    call: int
    payload: bytes


class Raised(Frozen, frozen=True):
    call: int
    failure: Failure
    reason: str
    request: tuple[int, int] | None = None
    """UNKNOWN: the lane and id of what was written, if it was a write."""
    kind: str = ""
    """STATEMENT: what it would fail of."""
