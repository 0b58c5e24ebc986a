"""Maps event ids to numbers, in about 42 bytes per event.

A dictionary would take five times as much. The ids are stored back to back in number order. Hash tables with open
addressing, keyed by the id's hash, contain the numbers. There are 64 small tables, so growing one does not block the
node for long.

Invariants: numbers are dense and never change; a table is at most two thirds full. Python's hash differs between
processes, but it only selects a slot.
"""

from __future__ import annotations

from array import array

from chaplain.graph.messages.event import ID_BYTES

_TABLES = 64
_TABLE_BITS = 6
_SMALLEST = 16
_EMPTY = 0xFFFFFFFF


class IdTable:
    __slots__ = ("_counts", "_ids", "_tables")

    def __init__(self) -> None:
        self._ids = bytearray()
        self._tables = [array("I", [_EMPTY]) * _SMALLEST for _ in range(_TABLES)]
        self._counts = [0] * _TABLES

    def __len__(self) -> int:
        return len(self._ids) // ID_BYTES

    def id_of(self, number: int) -> bytes:
        return bytes(self._ids[number * ID_BYTES : (number + 1) * ID_BYTES])

    def find(self, event_id: bytes) -> int:
        """The event's number, or -1."""
        place = hash(event_id)
        table = self._tables[place & (_TABLES - 1)]
        mask = len(table) - 1
        at = place >> _TABLE_BITS & mask
        ids = self._ids
        while (number := table[at]) != _EMPTY:
            start = number * ID_BYTES
            if ids[start : start + ID_BYTES] == event_id:
                return number
            at = at + 1 & mask
        return -1

    def add(self, event_id: bytes) -> int:
        """Assign the next number to a new id."""
        assert len(event_id) == ID_BYTES
        number = len(self)
        self._ids += event_id
        which = hash(event_id) & (_TABLES - 1)
        self._counts[which] += 1
        if self._counts[which] * 3 > len(self._tables[which]) * 2:
            self._grow(which)
        self._put(self._tables[which], event_id, number)
        return number

    def _put(self, table: array[int], event_id: bytes, number: int) -> None:
        mask = len(table) - 1
        at = hash(event_id) >> _TABLE_BITS & mask
        while table[at] != _EMPTY:
            at = at + 1 & mask
        table[at] = number

    def _grow(self, which: int) -> None:
        old = self._tables[which]
        table = array("I", [_EMPTY]) * (2 * len(old))
        for number in old:
            if number != _EMPTY:
                self._put(table, self.id_of(number), number)
        self._tables[which] = table
