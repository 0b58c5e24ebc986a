"""The membership list: present members and those that have left, each with its own signed card.

It decides which card to accept, and what a leave does to the list. It does not know silence timers
(`failure_detector`), sessions or messages. In a simulation many cores may share one list that none of them changes.

Invariants:
- an identifier is bound to the first key that was seen with it, and that key hashes to it;
- a member's incarnation only grows, and only by a card that its owner signed;
- a member leaves only at the incarnation in the list (or a later one that its owner signed);
- at most `members_max` members are present, `hearsay_max` of them not contacted; at most `left_max` are remembered
  after leaving.
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
    """The result of admitting a card."""

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
    """The list's entry of one member."""

    __slots__ = ("card", "contacted", "left_ns", "proof", "state")

    def __init__(self, card: MemberRecord) -> None:
        self.card = card
        self.state = MemberState.ALIVE
        self.contacted = False
        """True if this member had a session with us in this run. Then it exists, and was not invented by another node.
        """
        self.proof: LeaveMessage | None = None
        """Its own signed leave message."""
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
        """All identifiers in the list, sorted."""
        self.present: list[int] = []
        """Members that have not left, sorted. Callers must not change it."""
        self._left: dict[int, None] = {}
        """Members that have left, in the order of leaving."""
        self._hearsay = 0
        """The number of present members that were never contacted."""
        self.expelled: frozenset[bytes] = frozenset()
        """Keys of nodes that were removed from the cluster: none of them is ever present."""
        self.revision = 0
        """A counter that rises whenever `present` or a member's URI changes."""

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
        """Accept a card if it is genuine and newer than ours, and there is room."""
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
        # Known and outdated cards never reach this check, which is the expensive one.
        if not cards.is_genuine(card, self._check):
            return RecordVerdict.FORGED
        if (record is None or record.state is MemberState.LEFT) and not self._has_room(contacted):
            return RecordVerdict.FULL
        return self._add(card) if record is None else self._renew(record, card)

    def is_expelled(self, identifier: int) -> bool:
        record = self._records.get(identifier)
        return record is not None and record.card.key in self.expelled

    def mark_contacted(self, identifier: int) -> None:
        """Record that this member has a session with us."""
        record = self._records.get(identifier)
        if record is not None and not record.contacted:
            record.contacted = True
            self._hearsay -= record.state is not MemberState.LEFT

    def suspect(self, identifier: int) -> bool:
        """Mark a member as suspect. Returns True if it was not."""
        return self._change_state(identifier, MemberState.ALIVE, MemberState.SUSPECT)

    def clear(self, identifier: int) -> bool:
        """End the suspicion. Returns True if the member was a suspect."""
        return self._change_state(identifier, MemberState.SUSPECT, MemberState.ALIVE)

    def lose(self, identifier: int, incarnation: int, now_ns: int) -> None:
        """Mark a silent member as left: it cannot announce its leave itself."""
        record = self._records[identifier]
        assert record.card.incarnation == incarnation, "a leave on behalf counts only at the incarnation it is about"
        assert record.state is not MemberState.LEFT
        self._remove(identifier, record, now_ns)

    def leave_gracefully(self, leave: LeaveMessage, now_ns: int) -> bool:
        """Mark a member as left, by its own verified message. Returns True if it was present."""
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
        """Equal on two nodes with the same present members."""
        return hashlib.sha256(b"".join(identifier.to_bytes(4, "big") for identifier in self.present)).digest()[:16]

    def buckets(self) -> int:
        """The number of equal parts of the identifier space for comparisons."""
        return min(0xFFFF, max(1, -(-len(self._known) // self._settings.sync_bucket)))

    def bucket(self, buckets: int, bucket: int) -> list[ListEntry]:
        """All entries in one part of the identifier space."""
        first = bisect_left(self._known, -(-_SPACE * bucket // buckets))
        end = bisect_left(self._known, -(-_SPACE * (bucket + 1) // buckets))
        return [self._entry(identifier) for identifier in self._known[first:end]]

    def neighbours(self, identifier: int) -> list[int]:
        """Members at distances 1, 2, 4 … in both directions of the ring of sorted identifiers."""
        size = len(self.present)
        own_index = bisect_left(self.present, identifier)
        chosen: dict[int, None] = {}
        distance = 1
        while distance <= size // 2:
            for index in (own_index + distance, own_index - distance):
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
        self._insert_present(card.identifier)
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
        self._insert_present(card.identifier)
        return RecordVerdict.NEW

    def _insert_present(self, identifier: int) -> None:
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

    def _change_state(self, identifier: int, before: MemberState, after: MemberState) -> bool:
        record = self._records.get(identifier)
        if record is None or record.state is not before:
            return False
        record.state = after
        return True

    def _entry(self, identifier: int) -> ListEntry:
        record = self._records[identifier]
        return ListEntry(identifier, record.card.incarnation, record.standing)
