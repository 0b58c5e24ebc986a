"""One node's disk: what is written, what is synced, and what is left of it after a crash.

A `Persist` goes through three named moments: it is *begun*, *written* (the operating system has it, a power cut may
take any part) and *synced* (durable, with all else that is written); then the host tells the core. A power cut keeps,
of what was written and not synced, any subset of 512-octet sectors of each `WriteAt`, whatever ticket it is of, and
the first few of the other operations (a file system keeps changes of names in their order; `Replace` happens whole or
not at all). A killed process loses nothing written.

A lazy write is durable with the next sync of its file; until then a power cut may take it.

The disk knows nothing of time: the world calls each moment when it comes.

Invariants: what is synced survives any crash unchanged; after a failure no later ticket succeeds in the same life,
because `Persisted` speaks for all tickets before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from random import Random
from typing import assert_never

from chaplain.core import Operation, Persist, Remove, Rename, Replace, WriteAt
from chaplain.errors import Malformed
from chaplain.segment.layout import parse_name

SECTOR_BYTES = 512

Files = dict[str, bytearray]


def segments_of(files: Mapping[str, bytes | bytearray]) -> Iterator[tuple[int, bytes]]:
    """The log's segments among a node's files, by sequence."""
    for name in sorted(files):
        try:
            _, sequence, free = parse_name(name)
        except Malformed:
            continue
        if not free:
            yield sequence, bytes(files[name])


class Disk:
    __slots__ = ("_durable", "_lazy", "_pending", "_rng", "failed", "misdirect_next")

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._durable: Files = {}
        self._pending: deque[_Ticket] = deque()
        self._lazy: list[WriteAt] = []
        """What was written, told as done, and not synced."""
        self.failed = ""
        """Why every further ticket fails, until a restart."""
        self.misdirect_next = False
        """The next write goes to the wrong place, and the disk says nothing."""

    # The three moments of a ticket.

    def begin(self, persist: Persist) -> None:
        self._pending.append(_Ticket(persist))

    def write(self) -> None:
        """The oldest ticket not yet written is handed to the operating system."""
        ticket = next(ticket for ticket in self._pending if not ticket.written)
        if self.misdirect_next:
            self.misdirect_next = False
            ticket.operations = tuple(self._misdirected(operation) for operation in ticket.operations)
        ticket.written = True

    def sync(self) -> list[int]:
        """All that is written becomes durable. Returns the numbers of its tickets."""
        assert not self.failed
        tickets = self._take_written()
        for ticket in tickets:
            for operation in ticket.operations:
                if isinstance(operation, WriteAt) and operation.lazy:
                    self._lazy.append(operation)
                    continue
                self._sync_lazy(operation)
                apply(self._durable, operation)
        return [ticket.number for ticket in tickets]

    def _take_written(self) -> list[_Ticket]:
        """Tickets are written in their order, so what is written stands in front."""
        tickets: list[_Ticket] = []
        while self._pending and self._pending[0].written:
            tickets.append(self._pending.popleft())
        return tickets

    def _sync_lazy(self, operation: Operation) -> None:
        """A file is synced as a whole."""
        for lazy in [lazy for lazy in self._lazy if lazy.file == operation.file]:
            self._lazy.remove(lazy)
            apply(self._durable, lazy)

    def fail(self, reason: str) -> list[int]:
        """All that is written fails; any part of it may have reached the disk. Returns the numbers of its tickets."""
        tickets = self._take_written()
        self._tear(_operations(tickets))
        self.failed = reason
        return [ticket.number for ticket in tickets]

    # Crashes and what they leave.

    def killed(self) -> None:
        """The process died, the machine did not: what was written will be synced by the system."""
        for lazy in self._lazy:
            apply(self._durable, lazy)
        for operation in _operations(self._take_written()):
            apply(self._durable, operation)
        self._restart()

    def power_cut(self) -> None:
        self._tear(tuple(self._lazy))
        self._tear(_operations(self._take_written()))
        self._restart()

    def wipe(self) -> None:
        """Somebody put an empty disk in."""
        self._durable.clear()
        self._restart()

    def flip_bit(self) -> str:
        """Rot: one bit of one synced file. Returns where, or nothing if there was no file to damage."""
        names = [name for name, data in self._durable.items() if data]
        if not names:
            return ""
        name = self._rng.choice(names)
        data = self._durable[name]
        position = self._rng.randrange(len(data))
        data[position] ^= 1 << self._rng.randrange(8)
        return f"{name} at {position}"

    def file(self, name: str) -> bytes | None:
        """What a process that starts now finds under a name."""
        data = self._durable.get(name)
        return None if data is None else bytes(data)

    def holds(self, octets: bytes, suffix: str) -> bool:
        """Whether they are in a synced file of such a name. The latest come first, and none is copied."""
        files = self._durable
        return any(octets in files[name] for name in sorted(files, reverse=True) if name.endswith(suffix))

    def contents(self) -> dict[str, bytes]:
        """What a process that starts now finds."""
        return {name: bytes(data) for name, data in self._durable.items()}

    def _restart(self) -> None:
        self._pending.clear()
        self._lazy.clear()
        self.failed = ""
        self.misdirect_next = False

    def _tear(self, operations: tuple[Operation, ...]) -> None:
        """Apply any part that a power cut may leave."""
        named = [operation for operation in operations if not isinstance(operation, WriteAt)]
        kept = self._rng.randint(0, len(named))
        for operation in operations:
            if isinstance(operation, WriteAt):
                for sector in sectors(operation):
                    if self._rng.random() < 0.5:
                        apply(self._durable, sector)
            elif kept:
                kept -= 1
                apply(self._durable, operation)

    def _misdirected(self, operation: Operation) -> Operation:
        if not isinstance(operation, WriteAt):
            return operation
        names = [*self._durable, operation.file]
        return WriteAt(self._rng.choice(names), self._rng.randrange(operation.position + 4096), operation.data)


class _Ticket:
    __slots__ = ("number", "operations", "written")

    def __init__(self, persist: Persist) -> None:
        self.number = persist.ticket
        self.operations = persist.operations
        self.written = False


def _operations(tickets: list[_Ticket]) -> tuple[Operation, ...]:
    return tuple(operation for ticket in tickets for operation in ticket.operations)


def apply(files: Files, operation: Operation) -> None:
    match operation:
        case WriteAt(file, position, data):
            held = files.setdefault(file, bytearray())
            held.extend(bytes(max(0, position - len(held))))
            held[position : position + len(data)] = data
        case Replace(file, data):
            files[file] = bytearray(data)
        case Rename(file, to):
            if file in files:
                files[to] = files.pop(file)
        case Remove(file):
            files.pop(file, None)
        case _:
            assert_never(operation)


def sectors(operation: WriteAt) -> list[WriteAt]:
    """The write, cut where the disk's sectors meet."""
    pieces: list[WriteAt] = []
    start, end = operation.position, operation.position + len(operation.data)
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        data = operation.data[start - operation.position : stop - operation.position]
        pieces.append(WriteAt(operation.file, start, data))
        start = stop
    return pieces
