"""What does not hold, and how it is told: each thing once.

Decides which of several names for one break is kept. Refuses to look for breaks.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.core import Frozen

FIELDS = ("stream", "offset", "kind", "expected", "found")
KINDS = (
    "genesis",
    "damaged",
    "incomplete",
    "missing",
    "repeated",
    "order",
    "fork",
    "cluster chain",
    "regime",
    "time",
    "header",
    "malformed",
    "verdict",
    "count",
    "digest",
    "signature",
    "stream chain",
    "lane",
    "checkpoint",
)
"""Causes before what follows from them: where two are found at one place, the one that stands first is told."""


class Break(Frozen, frozen=True):
    """Something that does not hold. `offset` is that of a stream, or without a stream the index of a message."""

    stream: str
    offset: int
    kind: str
    expected: str
    found: str
    node: int = 0
    """In whose log; 0: not known."""
    file: str = ""
    """In which segment, where that is known."""
    last: int = -1
    """The last offset that the break may be about, if `offset` is the first of several; -1: it is about `offset`."""


def shown(one: Break) -> dict[str, str | int]:
    """As it is printed: where it is, as far as that is known."""
    where = {name: getattr(one, name) for name in ("node", "file") if getattr(one, name)}
    return {name: getattr(one, name) for name in FIELDS} | ({"last": one.last} if one.last > one.offset else {}) | where


def told(breaks: Iterable[Break]) -> list[Break]:
    """One break for each place of a node's log, in the order of places; those of the log itself come first."""
    kept: dict[tuple[str, int, int], Break] = {}
    for one in breaks:
        place = (one.stream, one.offset, one.node)
        other = kept.get(place)
        if other is None or KINDS.index(one.kind) < KINDS.index(other.kind):
            kept[place] = one
    return [kept[place] for place in sorted(kept)]
