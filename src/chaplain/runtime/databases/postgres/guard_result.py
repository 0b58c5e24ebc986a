"""What the guard finds in a statement for PostgreSQL: why it is denied, or what to see to when it is executed."""

from __future__ import annotations

import msgspec


class Denied(Exception):
    """A statement that no request, or no query, may hold."""


class Weight(msgspec.Struct, frozen=True):
    """How many rows something may give: a number times the rows of some tables."""

    factor: int = 1
    """Rows that the text itself gives."""
    tables: tuple[tuple[str, int], ...] = ()


class GuardResult(msgspec.Struct, frozen=True):
    """What is to be seen to when an allowed statement is executed."""

    kind: str
    target: str = ""
    """The table that is changed, made or altered."""
    weight: Weight = Weight()
    parts: int = 0
    """How much there may be to do for each row."""
    ordered: bool = False
    """Whether its rows come in an order that the text gives."""
    gives_rows: bool = False
    name: str = ""
    """Of an index, or the new one of a table that is renamed."""
    if_exists: bool = False
    """Whether it may have nothing to do."""
    refers: frozenset[str] = frozenset()
    """Tables that a constraint refers to."""
    draws: bool = False
    """Whether chance has a part in it."""
    computed: frozenset[str] = frozenset()
    """Columns that an UPDATE sets to what may differ from row to row."""

    @property
    def reshapes(self) -> bool:
        return self.kind not in ("select", "insert", "update", "delete")
