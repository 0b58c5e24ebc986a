"""The guard's result for a PostgreSQL statement: why it is denied, or what the runner must check."""

from __future__ import annotations

import msgspec


class Denied(Exception):
    """A statement that is not allowed in a request or query."""


class Weight(msgspec.Struct, frozen=True):
    """An upper bound of a row count: a factor times the row counts of some tables."""

    factor: int = 1
    """Rows that the statement's text itself contains."""
    tables: tuple[tuple[str, int], ...] = ()


class GuardResult(msgspec.Struct, frozen=True):
    """Checks that the runner must make when it executes an allowed statement."""

    kind: str
    target: str = ""
    """The table that is changed, created or altered."""
    weight: Weight = Weight()
    parts: int = 0
    """Upper bound of the work per row."""
    ordered: bool = False
    """True if the statement's text orders its rows."""
    gives_rows: bool = False
    name: str = ""
    """Name of an index, or the new name of a table."""
    if_exists: bool = False
    """True if the statement may have nothing to do."""
    refers: frozenset[str] = frozenset()
    """Tables that a constraint references."""
    uses_random: bool = False
    """True if the statement uses random values."""
    computed: frozenset[str] = frozenset()
    """Columns that an UPDATE sets to values that may differ from row to row."""

    @property
    def reshapes(self) -> bool:
        return self.kind not in ("select", "insert", "update", "delete")
