"""UnreadMessages: which members confirmed which events of one stream, and when an event counts as read.

A confirmation covers all ancestors: a node that has an event has its ancestors, too. An event is also its author's
confirmation of its parents. Decides when an event becomes read. Does not know signatures (its inputs are verified) or
the disk (readers see an event as read once the READ mark is on disk).

Invariants: a member counts once, and never for its own event; a member that counts for an event counts for all its
watched ancestors; events that are no longer watched are read.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.graph.model import Model


class UnreadMessages:
    def __init__(self, model: Model, members: dict[bytes, int], watched_max: int) -> None:
        self._model = model
        self._members = members
        """The bit of each member that ever confirmed an event; all streams share it."""
        self._watched_max = watched_max
        self.masks: dict[int, int] = {}
        """Watched events: a bit mask of the members that confirmed each. All unread events are watched, and read ones
        until all members have confirmed them or `watched_max` is reached.
        """
        self.signatures: dict[int, dict[bytes, bytes]] = {}
        """By event number and member: signatures over exactly this event, kept to be forwarded."""
        self.counts = bytearray()
        """By number: confirmations when the event was last counted; 255 means 255 or more."""

    def bit_of(self, member: bytes) -> int:
        return 1 << self._members.setdefault(member, len(self._members))

    def watch(self, number: int) -> None:
        assert number == len(self.counts), "events are watched in the order of their numbers"
        self.masks[number] = 0
        self.counts.append(0)

    def has_event(self, member: bytes, number: int) -> bool:
        """True if the member is known to have the event, or the event is no longer watched."""
        mask = self.masks.get(number)
        return mask is None or bool(mask & self.bit_of(member))

    def confirm(self, member: bytes, number: int, read_at: int) -> list[int]:
        """Record that the member has this event and its ancestors. Return those that now have enough confirmations."""
        bit = self.bit_of(member)
        enough: list[int] = []
        stack = [number]
        while stack:
            one = stack.pop()
            mask = self.masks.get(one)
            if mask is None or mask & bit:
                continue
            self.masks[one] = mask = mask | bit
            count = self._count(one, mask)
            self.counts[one] = min(count, 255)
            if count >= read_at and not self._model.is_read(one):
                enough.append(one)
            stack.extend(self._model.parents_of(one))
        return enough

    def _count(self, number: int, mask: int) -> int:
        """Confirmations of the event by others than its author."""
        author = self._members.get(self._model.author_of(number))
        return (mask & ~(1 << author) if author is not None else mask).bit_count()

    def keep_signature(self, member: bytes, number: int, signature: bytes) -> None:
        """Keep a member's signature of this event to forward it."""
        if number in self.masks:
            self.signatures.setdefault(number, {})[member] = signature

    def drop_members(self, members: Iterable[bytes]) -> None:
        """Remove the confirmations of former members from unread events."""
        bits = sum(map(self.bit_of, members))
        for number, mask in self.masks.items():
            if mask & bits and not self._model.is_read(number):
                self.masks[number] = left = mask & ~bits
                self.counts[number] = min(self._count(number, left), 255)

    def recount(self, read_at: int) -> list[int]:
        """The unread events that have enough confirmations for a new cluster size."""
        model = self._model
        return [one for one, mask in self.masks.items() if self._count(one, mask) >= read_at and not model.is_read(one)]

    def stop_watching(self, numbers: Iterable[int], others: int) -> None:
        """Stop watching read events that all `others` confirmed; above `watched_max`, also the oldest read events."""
        for number in numbers:
            mask = self.masks.get(number)
            if mask is not None and self._model.is_read(number) and self._count(number, mask) >= others:
                self._forget(number)
        if len(self.masks) > self._watched_max:
            read = [number for number in self.masks if self._model.is_read(number)]
            for number in read[: len(self.masks) - self._watched_max // 2]:
                self._forget(number)

    def _forget(self, number: int) -> None:
        del self.masks[number]
        self.signatures.pop(number, None)
