"""What a drill finds: promises that were not kept, and what was counted, for each kind of stream."""

from __future__ import annotations

from chaplain.core import Frozen

JOURNAL, GRAPH, SEQUENCE, POOL = "journal", "graph", "sequence", "pool"
KINDS = (JOURNAL, GRAPH, SEQUENCE, POOL)


class BrokenPromise(Frozen, frozen=True):
    """A promise that was not kept."""

    kind: str
    """`lost`, `doubled`, `moved`, `phantom`, `foreign`, `disordered`, `overtaken`, `different`, `gap`,
    `stuck`, `unreadable` or `unverified`."""
    offset: int | None
    """Of a journal; of a sequence or a pool it is a number, and events of a graph have none."""
    detail: str
    of: str = JOURNAL
    """The kind of stream."""


class Judged(Frozen, frozen=True):
    """What became of one kind of stream."""

    of: str
    acknowledged: int
    unknown: int
    refused: int
    breaks: tuple[BrokenPromise, ...] = ()
    left_out: tuple[str, ...] = ()
    """What could not be judged, and why that breaks no promise."""
    lost: int = 0
    """A pool's: broadcasts that somebody did not hear."""
    told: int = 0
    """A pool's: how often a listener was told that it had missed something."""
    untold: int = 0
    """A pool's: of those that were lost in calm, how many their listener was not told of."""


def shown(value: bytes) -> str:
    return value[:40].decode(errors="replace")
