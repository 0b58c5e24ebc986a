"""One node's disk: what is written, what is synced, and what is left after a crash.

A `Persist` goes through three moments. It is *begun*, then *written* (the operating system has it, and a power cut may
lose any part), then *synced* (durable, with everything else that is written); then the host reports it to the core. A
power cut keeps some of what was written and not synced: any subset of the 512-byte sectors of each `WriteAt`, of any
ticket, and a prefix of the other operations (a file system keeps the order of name changes; `Replace` is atomic). A
killed process loses nothing that was written.

A lazy write is durable with the next sync of its file; until then a power cut may lose it.

A sync that fails leaves any part of its writes on the disk. The page cache may still contain all of them: then a
process that starts on the same boot reads them, no later sync writes them, and a power cut loses them.

A disk may also lie: it reports a write to a segment as synced that never happened (`LOST_WRITE`), or that went to
another place (`MISDIRECTED`). The lie takes effect when the process gets the report. A power cut before the next sync
undoes it: a lost write that nothing on the disk refers to cannot be distinguished from one that was never made, and no
node claims to (docs/protocol/journal-order.md).

A sector may become unreadable: a process that starts reads zeros there, as the runtime passes them to a core. Writing
to the sector makes it readable again.

The disk does not know time: the world calls each moment when it comes.

Invariants: synced data survives any crash unchanged, unless the disk lied about it; after a failure no later ticket
succeeds in the same process, because `Persisted` covers all tickets before it.
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
LOST_WRITE = "lost write"
MISDIRECTED = "misdirected segment write"
UNREADABLE = b"cannot be read"

Files = dict[str, bytearray]


def segments_of(files: Mapping[str, bytes | bytearray]) -> Iterator[tuple[int, bytes]]:
    """The log's segments among a node's files, by sequence number."""
    for name in sorted(files):
        try:
            _, sequence, free = parse_name(name)
        except Malformed:
            continue
        if not free:
            yield sequence, bytes(files[name])


class Disk:
    __slots__ = (
        "_cached",
        "_durable",
        "_lazy",
        "_lost",
        "_pending",
        "_rng",
        "_unnamed",
        "cache_is_lost",
        "failed",
        "lie_next",
        "misdirect_next",
    )

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._durable: Files = {}
        self._pending: deque[_Ticket] = deque()
        self._lazy: list[WriteAt] = []
        """Writes that were reported as done and are not synced."""
        self.cache_is_lost = 0.3
        """Probability that the page cache, too, loses the writes of a failed sync."""
        self.failed = ""
        """Why every further ticket fails until a restart."""
        self.misdirect_next = False
        """The next write silently goes to a wrong place."""
        self.lie_next = ""
        """How the disk lies about the next write to a segment: `LOST_WRITE` or `MISDIRECTED`."""
        self._lost: list[WriteAt] = []
        """Writes that the last sync reported and that did not happen."""
        self._cached: Files | None = None
        """What processes on this boot read, if a failed sync left more in the page cache than on the disk."""
        self._unnamed: list[Operation] = []
        """Name changes that a failed sync left only in the page cache; the next name change writes them, too."""

    # The three moments of a ticket.

    def begin(self, persist: Persist) -> None:
        self._pending.append(_Ticket(persist))

    def write(self) -> None:
        """Pass the oldest unwritten ticket to the operating system."""
        ticket = next(ticket for ticket in self._pending if not ticket.written)
        if self.misdirect_next:
            self.misdirect_next = False
            ticket.operations = tuple(self._misdirected(operation) for operation in ticket.operations)
        if self.lie_next:
            self._lie(ticket)
        ticket.written = True

    def _lie(self, ticket: _Ticket) -> None:
        """Lose or misdirect the ticket's writes to segments: all of them, or one. Its other writes happen."""
        places = [place for place, operation in enumerate(ticket.operations) if _is_segment_write(operation)]
        if not places:
            return
        chosen = places if self._rng.random() < 0.5 else [self._rng.choice(places)]
        kept: list[Operation] = []
        for place, operation in enumerate(ticket.operations):
            if place not in chosen:
                kept.append(operation)
                continue
            assert isinstance(operation, WriteAt)
            ticket.lost.append(operation)
            if self.lie_next == MISDIRECTED:
                kept.append(self._misdirected(operation))
        ticket.operations = tuple(kept)
        self.lie_next = ""

    def sync(self) -> list[int]:
        """Make everything written durable. Return the ticket numbers."""
        assert not self.failed
        tickets = self._take_written()
        self._lost = [write for ticket in tickets for write in ticket.lost]
        for ticket in tickets:
            for operation in ticket.operations:
                if isinstance(operation, WriteAt) and operation.lazy:
                    self._lazy.append(operation)
                    continue
                self._sync_lazy(operation)
                self._apply(operation)
        return [ticket.number for ticket in tickets]

    @property
    def lied(self) -> bool:
        """True if the last sync reported a write that did not happen."""
        return bool(self._lost)

    def _apply(self, operation: Operation) -> None:
        """Write the operation to the disk and to the page cache."""
        if self._unnamed and not isinstance(operation, WriteAt):
            for earlier in self._unnamed:
                apply(self._durable, earlier)
            self._unnamed = []
        apply(self._durable, operation)
        if self._cached is not None:
            apply(self._cached, operation)

    def _take_written(self) -> list[_Ticket]:
        """Remove and return the written tickets. Tickets are written in order, so these come first."""
        tickets: list[_Ticket] = []
        while self._pending and self._pending[0].written:
            tickets.append(self._pending.popleft())
        return tickets

    def _sync_lazy(self, operation: Operation) -> None:
        """Apply the lazy writes of the operation's file: a file is synced as a whole."""
        for lazy in [lazy for lazy in self._lazy if lazy.file == operation.file]:
            self._lazy.remove(lazy)
            self._apply(lazy)

    def fail(self, reason: str) -> list[int]:
        """Fail everything written; any part may have reached the disk. Return the ticket numbers.

        The page cache keeps the writes, or loses them.
        """
        tickets = self._take_written()
        operations = _operations(tickets)
        if self._cached is None:
            self._cached = {name: bytearray(data) for name, data in self._durable.items()}
        unnamed = self._tear(operations)
        for operation in operations:
            apply(self._cached, operation)
        if self._rng.random() < self.cache_is_lost:
            self._cached, self._unnamed = None, []
        else:
            self._unnamed += unnamed
        self.failed = reason
        return [ticket.number for ticket in tickets]

    # Crashes.

    def killed(self) -> None:
        """The process died but the machine did not: the operating system will sync what was written."""
        for lazy in self._lazy:
            self._apply(lazy)
        for operation in _operations(self._take_written()):
            self._apply(operation)
        self._restart()

    def power_cut(self) -> None:
        self._cached, self._unnamed = None, []
        for lost in self._lost:
            apply(self._durable, lost)
        self._lost = []
        self._tear(tuple(self._lazy))
        self._tear(_operations(self._take_written()))
        self._restart()

    def wipe(self) -> None:
        """Replace the disk with an empty one."""
        self._durable.clear()
        self._cached, self._unnamed, self._lost = None, [], []
        self._restart()

    def flip_bit(self) -> str:
        """Flip one bit of one synced file (bit rot). Return the place, or nothing if there is no file."""
        names = [name for name, data in self._durable.items() if data]
        if not names:
            return ""
        name = self._rng.choice(names)
        data = self._durable[name]
        position = self._rng.randrange(len(data))
        data[position] ^= 1 << self._rng.randrange(8)
        return f"{name} at {position}"

    def lose_sector(self) -> str:
        """Make one sector of one synced file unreadable: the core reads zeros in its place.

        Of a small file the core reads `UNREADABLE` (see `runtime/disk/log_files.py`). Returns the place, or nothing if
        there was no file to damage.
        """
        names = [name for name, data in self._durable.items() if data]
        if not names:
            return ""
        name = self._rng.choice(names)
        data = self._durable[name]
        if not name.endswith(".segment"):
            data[:] = UNREADABLE
            return name
        used = len(data.rstrip(b"\0"))
        sector = self._rng.randrange(used // SECTOR_BYTES + 1) * SECTOR_BYTES
        data[sector : sector + SECTOR_BYTES] = bytes(len(data[sector : sector + SECTOR_BYTES]))
        return f"{name} at {sector}"

    def file(self, name: str) -> bytes | None:
        """The durable content of a file."""
        data = self._durable.get(name)
        return None if data is None else bytes(data)

    def holds(self, octets: bytes, suffix: str) -> bool:
        """True if a synced file with this suffix contains these bytes. The latest files are searched first, without a
        copy.
        """
        files = self._durable
        return any(octets in files[name] for name in sorted(files, reverse=True) if name.endswith(suffix))

    @property
    def diverged(self) -> bool:
        """True if processes read data that is only in the page cache."""
        return self._cached is not None

    def durable(self) -> dict[str, bytes]:
        """The synced files: what a power cut would leave of them."""
        return {name: bytes(data) for name, data in self._durable.items()}

    def contents(self) -> dict[str, bytes]:
        """The files that a starting process finds."""
        files = self._durable if self._cached is None else self._cached
        return {name: bytes(data) for name, data in files.items()}

    def _restart(self) -> None:
        self._pending.clear()
        self._lazy.clear()
        self.failed = ""
        self.misdirect_next = False
        self.lie_next = ""

    def _tear(self, operations: tuple[Operation, ...]) -> list[Operation]:
        """Apply any part that a power cut may leave. Return the name changes that it loses."""
        named = [operation for operation in operations if not isinstance(operation, WriteAt)]
        first = kept = self._rng.randint(0, len(named))
        for operation in operations:
            if isinstance(operation, WriteAt):
                for sector in sectors(operation):
                    if self._rng.random() < 0.5:
                        apply(self._durable, sector)
            elif kept:
                kept -= 1
                apply(self._durable, operation)
        return list(named[first:])

    def _misdirected(self, operation: Operation) -> Operation:
        if not isinstance(operation, WriteAt):
            return operation
        names = [*self._durable, operation.file]
        return WriteAt(self._rng.choice(names), self._rng.randrange(operation.position + 4096), operation.data)


class _Ticket:
    __slots__ = ("lost", "number", "operations", "written")

    def __init__(self, persist: Persist) -> None:
        self.number = persist.ticket
        self.operations = persist.operations
        self.written = False
        self.lost: list[WriteAt] = []
        """Writes that will be reported as synced although they did not happen."""


def _is_segment_write(operation: Operation) -> bool:
    return isinstance(operation, WriteAt) and operation.file.endswith(".segment")


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
    """The write, split at sector boundaries."""
    pieces: list[WriteAt] = []
    start, end = operation.position, operation.position + len(operation.data)
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        data = operation.data[start - operation.position : stop - operation.position]
        pieces.append(WriteAt(operation.file, start, data))
        start = stop
    return pieces
