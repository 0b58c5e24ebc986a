"""The result of a drill: broken promises and counts, for each kind of stream."""

from __future__ import annotations

from chaplain.core import Frozen

JOURNAL, GRAPH, SEQUENCE, POOL = "journal", "graph", "sequence", "pool"
KINDS = (JOURNAL, GRAPH, SEQUENCE, POOL)


class BrokenPromise(Frozen, frozen=True):
    """A guarantee that the cluster did not keep."""

    kind: str
    """`lost`, `doubled`, `moved`, `phantom`, `foreign`, `disordered`, `overtaken`, `different`, `gap`,
    `stuck`, `unreadable` or `unverified`."""
    offset: int | None
    """The offset in a journal, or the number in a sequence or pool. Events of a graph have none."""
    detail: str
    stream_kind: str = JOURNAL


class KindVerdict(Frozen, frozen=True):
    """The result for one kind of stream."""

    stream_kind: str
    acknowledged: int
    unknown: int
    refused: int
    breaks: tuple[BrokenPromise, ...] = ()
    left_out: tuple[str, ...] = ()
    """Something that could not be checked, and why that breaks no promise."""
    lost: int = 0
    """Pools only: broadcasts that at least one listener did not receive, counted for each such listener."""
    reported: int = 0
    """Pools only: how often a listener was informed of a gap."""
    unreported: int = 0
    """Pools only: losses while no fault was active that the listener was not informed of."""


def shown(value: bytes) -> str:
    """Return the beginning of a value, for messages."""
    return value[:40].decode(errors="replace")
