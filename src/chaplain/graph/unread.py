"""UnreadMessages: who has confirmed which events of one stream, and when an event counts as read.

A confirmation covers all ancestors: whoever has an event has them, too. So has the author of an event whose parents
they are: its own events confirm what is below them. Decides when an event has become read; refuses to know signatures
(what comes in is checked) and the disk (read is shown when it is on disk).

Invariants: a member counts once, and never for its own event; a member that counts for an event counts for all its
watched ancestors; what is not watched any more is read.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.graph.model import Model


class UnreadMessages:
    def __init__(self, model: Model, members: dict[bytes, int], watched_max: int) -> None:
        self._model = model
        self._members = members
        """The bit of each member that ever confirmed, shared by all streams."""
        self._watched_max = watched_max
        self.masks: dict[int, int] = {}
        """Watched events: who has confirmed each. All unread ones are watched; read ones for a while."""
        self.proofs: dict[int, dict[bytes, bytes]] = {}
        """Signed words that were given for exactly this event."""
        self.counts = bytearray()
        """By number: how many had confirmed the event when it was last counted; 255 means that or more."""

    def bit_of(self, member: bytes) -> int:
        return 1 << self._members.setdefault(member, len(self._members))

    def watch(self, number: int) -> None:
        assert number == len(self.counts), "events are watched in the order of their numbers"
        self.masks[number] = 0
        self.counts.append(0)

    def has(self, member: bytes, number: int) -> bool:
        """Whether the member is known to have the event; True of events that are not watched any more."""
        mask = self.masks.get(number)
        return mask is None or bool(mask & self.bit_of(member))

    def confirm(self, member: bytes, number: int, read_at: int) -> list[int]:
        """The member has this event and its ancestors. Returns those that have enough confirmations now."""
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
        author = self._members.get(self._model.author_of(number))
        return (mask & ~(1 << author) if author is not None else mask).bit_count()

    def keep(self, member: bytes, number: int, signature: bytes) -> None:
        """Hold a member's word, to pass it on."""
        if number in self.masks:
            self.proofs.setdefault(number, {})[member] = signature

    def drop(self, members: Iterable[bytes]) -> None:
        """These are members no longer: their words do not count for what is unread."""
        bits = sum(map(self.bit_of, members))
        for number, mask in self.masks.items():
            if mask & bits and not self._model.is_read(number):
                self.masks[number] = left = mask & ~bits
                self.counts[number] = min(self._count(number, left), 255)

    def recount(self, read_at: int) -> list[int]:
        """The cluster has another size now: which events have enough."""
        model = self._model
        return [one for one, mask in self.masks.items() if self._count(one, mask) >= read_at and not model.is_read(one)]

    def settle(self, numbers: Iterable[int], others: int) -> None:
        """Watch no longer what is read and has been confirmed by everybody else."""
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
        self.proofs.pop(number, None)
