"""The fingerprint of a database: an incremental hash of its rows.

    key         = MessagePack [table, key value, …]
    row         = MessagePack [column value, …]
    row hash    = SHA-256(size of key, 4 bytes | key | row), as a number
    tally       = number of rows of a table, and the sum of their hashes modulo 2**256
    fingerprint = SHA-256(schema | MessagePack [table, count, sum] …), tables by name

A sum does not depend on the order of changes, so it is updated by adding new rows and subtracting old ones. A consumer
that has only the latest row of every key, such as a fold of the row changes, gets the same sum. This module decides
which values are summed; it does not know where rows come from.

Invariants: equal rows give equal tallies, also after different histories; a table without rows has the sum zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from hashlib import sha256

import msgspec

from chaplain.core import Frozen

MODULUS = 1 << 256
GONE = b""
"""In place of a row: there is no row with this key."""
_encode = msgspec.msgpack.Encoder().encode
SCHEMA_KEY = _encode(("",))
"""The key under which row changes report the schema. No table has an empty name."""


class RowTally(Frozen, frozen=True, array_like=True):
    count: int = 0
    sum: bytes = bytes(32)


class RowChange(Frozen, frozen=True, array_like=True):
    """A row was inserted, replaced or deleted; `before` or `after` is `GONE` if there was or is none."""

    table: str
    key: bytes
    before: bytes
    after: bytes


def by_key(changes: Iterable[RowChange]) -> list[RowChange]:
    """The changes of one request in the order that all database engines report.

    Engines visit rows in different orders. The sort is stable, so the changes of one row stay in order.
    """
    return sorted(changes, key=lambda change: change.key)


def row_hash(key: bytes, row: bytes) -> bytes:
    return sha256(len(key).to_bytes(4, "big") + key + row).digest()


def _total(hashes: Iterable[bytes]) -> int:
    return sum(map(int.from_bytes, hashes))  # big-endian numbers


class Tallies:
    """The tallies of all tables of a database, as integers."""

    def __init__(self, tallies: Mapping[str, RowTally] | None = None) -> None:
        self._counts = {table: tally.count for table, tally in (tallies or {}).items()}
        self._sums = {table: int.from_bytes(tally.sum, "big") for table, tally in (tallies or {}).items()}

    def copy(self) -> Tallies:
        copied = Tallies()
        copied._counts, copied._sums = dict(self._counts), dict(self._sums)
        return copied

    def count(self, table: str) -> int:
        return self._counts.get(table, 0)

    def add(self, changes: Iterable[RowChange]) -> None:
        come: defaultdict[str, list[bytes]] = defaultdict(list)
        gone: defaultdict[str, list[bytes]] = defaultdict(list)
        for change in changes:
            if change.before:
                gone[change.table].append(row_hash(change.key, change.before))
            if change.after:
                come[change.table].append(row_hash(change.key, change.after))
        for table, hashes in come.items():
            self._add(table, len(hashes), _total(hashes))
        for table, hashes in gone.items():
            self._add(table, -len(hashes), -_total(hashes))

    def _add(self, table: str, count: int, total: int) -> None:
        self._counts[table] = self.count(table) + count
        self._sums[table] = self._sums.get(table, 0) + total

    def forget(self, table: str) -> None:
        """Remove a dropped table, whose rows were removed before."""
        assert not self.count(table), "a dropped table still has rows"
        self._counts.pop(table, None)
        self._sums.pop(table, None)

    def values(self) -> dict[str, RowTally]:
        """By table name, without empty tables."""
        found = {}
        for table in sorted(self._counts):
            total = self._sums[table] % MODULUS
            assert self._counts[table] > 0 or (self._counts[table], total) == (0, 0), "more rows deleted than inserted"
            if self._counts[table]:
                found[table] = RowTally(self._counts[table], total.to_bytes(32, "big"))
        return found


def fingerprint_of(schema: bytes, tallies: Mapping[str, RowTally]) -> bytes:
    """The fingerprint of one database; `schema` is a canonical form of its tables."""
    tables = [(table, tallies[table].count, tallies[table].sum) for table in sorted(tallies)]
    return sha256(schema + _encode(tables)).digest()


def combined(fingerprints: Mapping[str, bytes]) -> bytes:
    """The fingerprint of all databases of an executor, by stream."""
    return sha256(_encode([(stream, fingerprints[stream]) for stream in sorted(fingerprints)])).digest()
