"""The membership list: who is here, who has left, each in its owner's own signed words.

Decides which card is believed and what a leave may do to the list. Refuses to know clocks of silence (`suspicion`),
sessions and messages. In a simulation many cores may share one list that nobody changes.

Invariants:
- an identifier is bound to the first key that was seen with it, and that key hashes to it;
- a member's incarnation only grows, and only by a card its owner signed;
- a member leaves only at the incarnation the list holds (or a later one that its owner signed);
- at most `members_max` present, `hearsay_max` of them uncontacted, `left_max` remembered after leaving.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from enum import Enum

from chaplain.gossip import member_record as cards
from chaplain.gossip.codec import EntryStanding, LeaveMessage, ListEntry
from chaplain.gossip.events import MemberState
from chaplain.gossip.member_record import MemberRecord, Verify
from chaplain.gossip.settings import GossipSettings

_SPACE = 1 << 32


class RecordVerdict(Enum):
    """What became of a card."""

    NEW = "a member that was not present"
    NEWER = "a present member's later card"
    KNOWN = "the card we hold"
    STALE = "older than what we hold"
    LEFT = "of one who left at this incarnation or later"
    EXPELLED = "of one who was removed from the cluster"
    FORGED = "not signed by the key that owns the name"
    CONFLICT = "another key under a name already bound"
    FULL = "no room"


BELIEVED = (RecordVerdict.NEW, RecordVerdict.NEWER)


class MemberEntry:
    """What the list holds of one member."""

    __slots__ = ("card", "contacted", "left_ns", "proof", "state")

    def __init__(self, card: MemberRecord) -> None:
        self.card = card
        self.state = MemberState.ALIVE
        self.contacted = False
        """It had a session with us in this run: no invention of somebody else's."""
        self.proof: LeaveMessage | None = None
        """Its own signed good-bye."""
        self.left_ns = 0

    @property
    def standing(self) -> EntryStanding:
        if self.state is not MemberState.LEFT:
            return EntryStanding.PRESENT
        return EntryStanding.LOST if self.proof is None else EntryStanding.GONE


class MemberList:
    def __init__(self, settings: GossipSettings, check: Verify) -> None:
        self._settings = settings
        self._check = check
        self._records: dict[int, MemberEntry] = {}
        self._known: list[int] = []
        """All identifiers on record, sorted."""
        self.present: list[int] = []
        """Those that have not left, sorted. Read it, do not change it."""
        self._left: dict[int, None] = {}
        """Those that have, in the order they did."""
        self._hearsay = 0
        self.expelled: frozenset[bytes] = frozenset()
        """Keys of nodes that were removed from the cluster: none of them is ever present."""
        self.revision = 0
        """Grows whenever `present` or a member's URI changes."""

    def __len__(self) -> int:
        return len(self.present)

    def get(self, identifier: int) -> MemberEntry | None:
        return self._records.get(identifier)

    def is_present(self, identifier: int) -> bool:
        record = self._records.get(identifier)
        return record is not None and record.state is not MemberState.LEFT

    def left(self) -> list[int]:
        return list(self._left)

    def admit(self, card: MemberRecord, *, contacted: bool) -> RecordVerdict:
        """Take a card into the list if it is genuine, newer than what is held, and there is room."""
        if card.key in self.expelled:
            return RecordVerdict.EXPELLED
        record = self._records.get(card.identifier)
        if record is not None:
            if record.card.key != card.key:
                return RecordVerdict.CONFLICT
            if card.incarnation < record.card.incarnation:
                return RecordVerdict.LEFT if record.state is MemberState.LEFT else RecordVerdict.STALE
            if card.incarnation == record.card.incarnation:
                return RecordVerdict.LEFT if record.state is MemberState.LEFT else RecordVerdict.KNOWN
            if record.proof is not None and card.incarnation <= record.proof.incarnation:
                return RecordVerdict.LEFT
        if not cards.is_genuine(card, self._check):
            return RecordVerdict.FORGED
        if (record is None or record.state is MemberState.LEFT) and not self._has_room(contacted):
            return RecordVerdict.FULL
        return self._add(card) if record is None else self._renew(record, card)

    def is_expelled(self, identifier: int) -> bool:
        record = self._records.get(identifier)
        return record is not None and record.card.key in self.expelled

    def contact(self, identifier: int) -> None:
        """Note that this member has a session with us."""
        record = self._records.get(identifier)
        if record is not None and not record.contacted:
            record.contacted = True
            self._hearsay -= record.state is not MemberState.LEFT

    def suspect(self, identifier: int) -> bool:
        """Mark a member; true if that is news."""
        return self._turn(identifier, MemberState.ALIVE, MemberState.SUSPECT)

    def clear(self, identifier: int) -> bool:
        """Take the mark away; true if that is news."""
        return self._turn(identifier, MemberState.SUSPECT, MemberState.ALIVE)

    def lose(self, identifier: int, incarnation: int, now_ns: int) -> None:
        """The member is silent: take it off the list on its behalf."""
        record = self._records[identifier]
        assert record.card.incarnation == incarnation, "a leave on behalf counts only at the incarnation it is about"
        assert record.state is not MemberState.LEFT
        self._remove(identifier, record, now_ns)

    def bid_farewell(self, leave: LeaveMessage, now_ns: int) -> bool:
        """Take a member off the list by its own word (already verified); true if it was present."""
        assert leave.graceful
        record = self._records.get(leave.subject)
        if record is None or leave.key != record.card.key or leave.incarnation < record.card.incarnation:
            return False
        was_present = record.state is not MemberState.LEFT
        record.proof = leave
        if was_present:
            self._remove(leave.subject, record, now_ns)
        return was_present

    def digest(self) -> bytes:
        """Equal on two nodes that hold the same members present."""
        return hashlib.sha256(b"".join(identifier.to_bytes(4, "big") for identifier in self.present)).digest()[:16]

    def buckets(self) -> int:
        """Into how many equal parts of the identifier space a comparison is cut."""
        return min(0xFFFF, max(1, -(-len(self._known) // self._settings.sync_bucket)))

    def bucket(self, buckets: int, bucket: int) -> list[ListEntry]:
        """All we hold of one part."""
        first = bisect_left(self._known, -(-_SPACE * bucket // buckets))
        end = bisect_left(self._known, -(-_SPACE * (bucket + 1) // buckets))
        return [self._entry(identifier) for identifier in self._known[first:end]]

    def neighbours(self, identifier: int) -> list[int]:
        """Members at distances 1, 2, 4 … either way round the ring of sorted identifiers."""
        size = len(self.present)
        place = bisect_left(self.present, identifier)
        chosen: dict[int, None] = {}
        distance = 1
        while distance <= size // 2:
            for index in (place + distance, place - distance):
                chosen[self.present[index % size]] = None
            distance *= 2
        chosen.pop(identifier, None)
        return list(chosen)

    def _has_room(self, contacted: bool) -> bool:
        if len(self.present) >= self._settings.members_max:
            return False
        return contacted or self._hearsay < self._settings.hearsay_max

    def _add(self, card: MemberRecord) -> RecordVerdict:
        self._records[card.identifier] = MemberEntry(card)
        insort(self._known, card.identifier)
        self._appear(card.identifier)
        return RecordVerdict.NEW

    def _renew(self, record: MemberEntry, card: MemberRecord) -> RecordVerdict:
        assert card.incarnation > record.card.incarnation, "an incarnation only grows"
        self.revision += card.uri != record.card.uri
        record.card = card
        record.proof = None
        was_left = record.state is MemberState.LEFT
        record.state = MemberState.ALIVE
        if not was_left:
            return RecordVerdict.NEWER
        del self._left[card.identifier]
        self._appear(card.identifier)
        return RecordVerdict.NEW

    def _appear(self, identifier: int) -> None:
        insort(self.present, identifier)
        self._hearsay += not self._records[identifier].contacted
        self.revision += 1
        assert len(self.present) <= self._settings.members_max

    def _remove(self, identifier: int, record: MemberEntry, now_ns: int) -> None:
        record.state = MemberState.LEFT
        record.left_ns = now_ns
        del self.present[bisect_left(self.present, identifier)]
        self._hearsay -= not record.contacted
        self._left[identifier] = None
        self.revision += 1
        if len(self._left) > self._settings.left_max:
            self._forget(next(iter(self._left)))

    def _forget(self, identifier: int) -> None:
        del self._left[identifier]
        del self._records[identifier]
        del self._known[bisect_left(self._known, identifier)]

    def _turn(self, identifier: int, before: MemberState, after: MemberState) -> bool:
        record = self._records.get(identifier)
        if record is None or record.state is not before:
            return False
        record.state = after
        return True

    def _entry(self, identifier: int) -> ListEntry:
        record = self._records[identifier]
        return ListEntry(identifier, record.card.incarnation, record.standing)
