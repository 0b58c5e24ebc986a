"""Breaks: the violations that a verification reports, each of them once.

This module decides which of several breaks at one place is reported. It does not search for breaks.
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
    "tree",
    "sequence chain",
)
"""Kinds of breaks, causes before consequences: of two breaks at one place, the one listed first is reported."""


class Break(Frozen, frozen=True):
    """A violation. `offset` is an offset of `stream`, or, if `stream` is empty, the index of a cluster message."""

    stream: str
    offset: int
    kind: str
    expected: str
    found: str
    node: int = 0
    """The node whose log has the break; 0 if unknown."""
    file: str = ""
    """The segment file, if known."""
    last: int = -1
    """The last offset concerned, if the break concerns a range that begins with `offset`; -1 if only `offset`."""


def break_fields(one: Break) -> dict[str, str | int]:
    """Return the fields to print; `node`, `file` and `last` only if they are known."""
    where = {name: getattr(one, name) for name in ("node", "file") if getattr(one, name)}
    return {name: getattr(one, name) for name in FIELDS} | ({"last": one.last} if one.last > one.offset else {}) | where


def deduplicate(breaks: Iterable[Break]) -> list[Break]:
    """Keep one break for each place of a node's log, sorted by place. Breaks of the whole log come first."""
    kept: dict[tuple[str, int, int], Break] = {}
    for one in breaks:
        place = (one.stream, one.offset, one.node)
        other = kept.get(place)
        if other is None or KINDS.index(one.kind) < KINDS.index(other.kind):
            kept[place] = one
    return [kept[place] for place in sorted(kept)]
