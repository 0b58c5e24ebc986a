"""The log of one node: the entries it holds, which of them are decided, and the work set after each.

Decides where entries fit: an entry contains the hash of the entry before it. Does not know peers, time or the owners of
ballots.

Invariants: decided entries never change; `decided` never decreases; the hash chain is unbroken; an entry that changes
the work set is written only when all entries before it are decided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from chaplain.sequence.messages.entry import (
    Ballot,
    EntryKind,
    SequenceEntry,
    WorkSetChange,
    decode_change,
    decode_members,
    entry_hash,
)
from chaplain.sequence.messages.peer import LogLength
from chaplain.sequence.window.entries import EntryBase, HeldEntry
from chaplain.sequence.work_set import WorkSet, changed

NOTHING = EntryBase()


class SequenceLog:
    def __init__(self, base: EntryBase, members: WorkSet = ()) -> None:
        self._base = base
        self._held: deque[HeldEntry] = deque()
        self._bytes = 0
        self.head = LogLength(base.ballot, base.index)
        """The log's length. This and the next three attributes change only with the last entry."""
        self.head_hash = base.hash
        self.next_seat = base.next
        """The seat that writes the next entry under the head's ballot."""
        self.author: int | None = None
        """The author of the last entry, if that entry is held."""
        self.decided = base.index
        self.decided_hash = base.hash
        self.members: WorkSet = members
        """The work set after the last decided entry."""
        self.undecided_bytes = 0
        self.changing = 0
        """Number of undecided entries that change the work set. Nothing is written after such an entry until it is
        decided.
        """

    # Reading.

    @property
    def base(self) -> EntryBase:
        return self._base

    def hash_at(self, index: int) -> bytes | None:
        if index == self.head.index:
            return self.head_hash
        if index == self._base.index:
            return self._base.hash
        held = self.at(index)
        return None if held is None else held.hash

    def at(self, index: int) -> HeldEntry | None:
        place = index - self._base.index - 1
        return self._held[place] if 0 <= place < len(self._held) else None

    def after(self, index: int) -> list[HeldEntry]:
        """The held entries after an index that is itself held."""
        count = self.head.index - index
        return [self._held[place] for place in range(len(self._held) - count, len(self._held))]

    def since(self, index: int) -> Iterator[HeldEntry]:
        """The same as an iterator, for a node that may be far behind."""
        return islice(self._held, index - self._base.index, None)

    def is_near(self, index: int, bytes_max: int) -> bool:
        """True if the entries after this index take at most `bytes_max`."""
        size = 0
        for held in reversed(self._held):
            if held.index <= index or size > bytes_max:
                break
            size += len(held.entry.encoded)
        return size <= bytes_max

    def base_at(self, index: int) -> EntryBase:
        held = self.at(index)
        if held is None:
            assert index == self._base.index
            return self._base
        return EntryBase(index, held.hash, held.entry.ballot, held.entry.next)

    @property
    def undecided(self) -> int:
        return self.head.index - self.decided

    def sets(self) -> list[WorkSet]:
        """The work sets from the last decided entry to the head."""
        if not self.changing:
            return [self.members]
        return sets_after(self.members, [held.entry for held in self.after(self.decided)])

    def required_sets(self, ballot: Ballot) -> list[WorkSet]:
        """The work sets that must have a quorum to decide the head under a ballot.

        Under the head's own ballot these are all sets except the one that the head itself brings. Under a higher ballot
        another entry must follow the head, so that set is required, too.
        """
        sets = self.sets()
        brings = len(sets) > 1 and self._held[-1].entry.kind is EntryKind.CHANGE and self.head.ballot == ballot
        return [one for one in (sets[:-1] if brings else sets) if one]

    def set_for(self, held: HeldEntry) -> WorkSet:
        """The work set that decides an undecided entry. The first entry of a history is decided by the set that it
        names.
        """
        members = self.members or set_after((), held.entry)
        if not self.changing:
            return members
        for before in self.after(self.decided)[: held.index - self.decided - 1]:
            members = set_after(members, before.entry)
        return members

    # Changing the log.

    def append(self, entry: SequenceEntry) -> HeldEntry:
        index = self.head.index + 1
        held = HeldEntry(index, entry, entry_hash(self.head_hash, index, entry.encoded))
        self._hold(held)
        return held

    def _hold(self, held: HeldEntry) -> None:
        entry = held.entry
        size = len(entry.encoded)
        self._held.append(held)
        self.head = LogLength(entry.ballot, held.index)
        self.head_hash, self.next_seat, self.author = held.hash, entry.next, entry.author
        self._bytes += size
        self.undecided_bytes += size
        if entry.kind is not EntryKind.EVENTS:
            self.changing += _changes(entry)

    def cut(self, index: int) -> list[HeldEntry]:
        """Drop all entries after an index, and return them."""
        assert index >= self.decided, "a decided entry is never dropped"
        dropped: list[HeldEntry] = []
        while self._held and self._held[-1].index > index:
            held = self._held.pop()
            self._bytes -= len(held.entry.encoded)
            self.undecided_bytes -= len(held.entry.encoded)
            self.changing -= _changes(held.entry)
            dropped.append(held)
        if dropped:
            last = self.base_at(index)
            self.head = LogLength(last.ballot, last.index)
            self.head_hash, self.next_seat = last.hash, last.next
            self.author = self._held[-1].entry.author if self._held else None
        return dropped[::-1]

    def fit(
        self, previous: int, previous_hash: bytes, entries: list[SequenceEntry]
    ) -> tuple[int, list[SequenceEntry]] | None:
        """Where the entries belong in this log, without those already decided here. None if they do not fit yet."""
        if previous > self.head.index:
            return None
        if previous >= self.decided:
            before = self.head_hash if previous == self.head.index else self.hash_at(previous)
            return (previous, entries) if before == previous_hash else None
        skip = self.decided - previous
        for index, entry in enumerate(entries[:skip], previous + 1):
            previous_hash = entry_hash(previous_hash, index, entry.encoded)
        if len(entries) < skip or previous_hash != self.decided_hash:
            return None
        return self.decided, entries[skip:]

    def attach(self, previous: int, entries: list[SequenceEntry]) -> list[HeldEntry]:
        """Add the entries after `previous`. Drop conflicting entries, and return them."""
        dropped: list[HeldEntry] = []
        before = self.head_hash if previous == self.head.index else self.hash_at(previous)
        assert before is not None
        for index, entry in enumerate(entries, previous + 1):
            here = entry_hash(before, index, entry.encoded)
            held = self.at(index) if index <= self.head.index else None
            if held is not None and held.hash != here:
                dropped += self.cut(index - 1)
                held = None
            if held is None:
                self._hold(HeldEntry(index, entry, here))
            before = here
        return dropped

    def decide_next(self) -> HeldEntry:
        assert self.decided < self.head.index, "only a held entry can be decided"
        held = self._held[self.decided - self._base.index]
        entry = held.entry
        self.decided += 1
        self.decided_hash = held.hash
        self.undecided_bytes -= len(entry.encoded)
        if entry.kind is not EntryKind.EVENTS:
            self.changing -= _changes(entry)
            behind = set_after(self.members, entry)
            if entry.kind is not EntryKind.FOUND:
                assert len(set(behind) ^ set(self.members)) <= 1, "work sets change by one member"
            self.members = behind
        return held

    def trim(self, bytes_max: int, entries_max: int) -> list[HeldEntry]:
        """Drop the oldest decided entries until the window is within its bounds, and return them."""
        forgotten: list[HeldEntry] = []
        while self._held and self._held[0].index < self.decided:
            if self._bytes <= bytes_max and len(self._held) <= entries_max:
                break
            held = self._held.popleft()
            self._bytes -= len(held.entry.encoded)
            self._base = EntryBase(held.index, held.hash, held.entry.ballot, held.entry.next)
            forgotten.append(held)
        return forgotten


def _changes(entry: SequenceEntry) -> bool:
    return entry.kind is EntryKind.FOUND or entry.kind is EntryKind.CHANGE


def set_after(members: WorkSet, entry: SequenceEntry) -> WorkSet:
    """The work set after an entry."""
    match entry.kind:
        case EntryKind.FOUND:
            return decode_members(entry.body)
        case EntryKind.CHANGE:
            return changed(members, decode_change(entry.body))
        case _:
            return members


def sets_after(members: WorkSet, entries: Iterable[SequenceEntry]) -> list[WorkSet]:
    """The given work set, followed by each set that the entries bring."""
    sets = [members]
    for entry in entries:
        behind = set_after(sets[-1], entry)
        if behind != sets[-1]:
            sets.append(behind)
    return sets


def change_of(entry: SequenceEntry) -> WorkSetChange | None:
    return decode_change(entry.body) if entry.kind is EntryKind.CHANGE else None
