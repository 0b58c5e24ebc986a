"""The Model: the events of one stream, their parent links, and their order.

Decides whether an event may be added, which events are leaves, which authors forked, and the total order. Equal sets of
events have equal orders. The Model does not know disk positions, signatures, peers or confirmations. Event contents
stay on disk; an event takes about 80 bytes here.

Each event has a *number*, its place in this node's arrival order, and a *height*, the length of its longest path to a
first event. The height is the same on every node. The agreed order is by height, then by id.

Invariants: parents have lower numbers and lower heights than their children; all ancestors of a read event are read;
equal leaves mean equal events (above the floor).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from chaplain.graph.messages.event import ParentLink, SignedEvent
from chaplain.graph.messages.ids import IdTable

NONE = 0xFFFFFFFF
"""Marks an absent number or rank."""
LOCATOR_MAX = 128
"""Ids in one locator."""
LOCATOR_LEAVES = 32
"""Leaves in one locator."""
_LOCATOR_GROWTH = 1.25
TIPS_MAX = 64
"""Branches tracked for one author that forks. Further forks are still flagged."""

_OURS, _THEIRS = 2, 1
"""Marks used by `beyond`: one for events that only this node is known to have, one for events that the other side
has.
"""


class Model:
    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        """Events below this height were pruned: a parent below it need not be present."""
        self.ids = IdTable()
        self.leaves: dict[int, None] = {}
        self.read_leaves: dict[int, None] = {}
        self.read_order = array("I")
        """Numbers of read events, in the order in which they became read."""
        self.forks: dict[int, None] = {}
        """Numbers of events whose author had already extended another branch."""
        self.fingerprint = 0
        """XOR of all ids at or above the floor: equal for equal sets."""
        self.authors: list[bytes] = []
        self._author_index: dict[bytes, int] = {}
        self._tips: dict[int, list[int]] = {}
        self._author = array("I")
        self._heights = array("I")
        self._links = array("I")
        """Parents of all events in one array; `_links_end` delimits each event's slice."""
        self._links_end = array("I", [0])
        self._read_rank = array("I")
        self._base = floor
        self._first = array("I")
        """By height above `_base`: the latest event of that height, head of a linked list through `_next`."""
        self._next = array("I")

    def __len__(self) -> int:
        return len(self._heights)

    # Lookup.

    def find(self, event_id: bytes) -> int:
        return self.ids.find(event_id)

    def id_of(self, number: int) -> bytes:
        return self.ids.id_of(number)

    def author_of(self, number: int) -> bytes:
        return self.authors[self._author[number]]

    def height_of(self, number: int) -> int:
        return self._heights[number]

    def link_of(self, number: int) -> ParentLink:
        return ParentLink(self.id_of(number), self._heights[number])

    def parents_of(self, number: int) -> array[int]:
        return self._links[self._links_end[number] : self._links_end[number + 1]]

    def is_read(self, number: int) -> bool:
        return self._read_rank[number] != NONE

    def read_rank(self, number: int) -> int:
        """The event's place among the read events; `NONE` if it is unread."""
        return self._read_rank[number]

    def last_of(self, author: bytes) -> ParentLink | None:
        """The author's latest event on this node."""
        tips = self._tips.get(self._author_index.get(author, -1))
        return None if not tips else self.link_of(tips[-1])

    def leaf_ids(self) -> list[bytes]:
        return [self.id_of(number) for number in self.leaves]

    def height_above(self, count: int) -> int:
        """The greatest height with at least `count` events at or above it."""
        for place in range(len(self._first) - 1, -1, -1):
            count -= sum(1 for _ in self._level(place))
            if count <= 0:
                return self._base + place
        return 0

    def raise_floor(self, floor: int) -> None:
        """Accept parents below this height as given, and remove the events below it from the fingerprint."""
        assert floor >= self.floor, "a floor is never lowered"
        for place in range(max(0, self.floor - self._base), min(floor - self._base, len(self._first))):
            for number in self._level(place):
                self.fingerprint ^= int.from_bytes(self.id_of(number), "big")
        self.floor = floor

    # Adding events.

    def missing(self, event: SignedEvent) -> list[bytes]:
        """Parents that must be added before this event."""
        return [link.id for link in event.links if link.height >= self.floor and self.find(link.id) < 0]

    def problem(self, event: SignedEvent) -> str:
        """Why an event whose parents are present can never be added; empty if it can."""
        for link in event.links:
            number = self.find(link.id)
            if number < 0:
                continue
            if self._heights[number] != link.height:
                return "wrong height"
            if link is event.previous and self.author_of(number) != event.author:
                return "foreign previous event"
        return ""

    def add(self, event: SignedEvent) -> int:
        number = self.ids.add(event.id)
        links = [found for link in event.links if (found := self.find(link.id)) >= 0]
        assert all(link < number and self._heights[link] < event.height for link in links), "a parent comes first"
        self._heights.append(event.height)
        self._links.extend(links)
        self._links_end.append(len(self._links))
        self._read_rank.append(NONE)
        self._add_to_level(number, event.height)
        self._track_author(number, event)
        if event.height >= self.floor:
            self.fingerprint ^= int.from_bytes(event.id, "big")
        for link in links:
            self.leaves.pop(link, None)
        self.leaves[number] = None
        return number

    def _add_to_level(self, number: int, height: int) -> None:
        if not len(self._first):
            self._base = height
        elif height < self._base:
            self._first = array("I", [NONE]) * (self._base - height) + self._first
            self._base = height
        place = height - self._base
        if place >= len(self._first):
            self._first.extend([NONE] * (place + 1 - len(self._first)))
        self._next.append(self._first[place])
        self._first[place] = number

    def _track_author(self, number: int, event: SignedEvent) -> None:
        """Follow the author's chain of previous hashes; an event that does not extend its tip is a fork.

        The pruned part of a chain is unknown. If the previous event is missing, tips below it count as its ancestors.
        Below the floor, a later event may have arrived first, so an earlier one there is not a fork.
        """
        index = self._author_index.get(event.author)
        if index is None:
            index = self._author_index[event.author] = len(self.authors)
            self.authors.append(event.author)
        self._author.append(index)
        tips = self._tips.setdefault(index, [])
        previous, heights = event.previous, self._heights
        before = -1 if previous is None else self.find(previous.id)
        if previous is not None and before < 0:
            tips[:] = [tip for tip in tips if heights[tip] >= previous.height]
        if before in tips:
            tips.remove(before)
        elif event.height < self.floor and any(heights[tip] > event.height for tip in tips):
            return
        elif tips:
            self.forks[number] = None
        tips.append(number)
        del tips[:-TIPS_MAX]

    def mark_read(self, number: int) -> list[int]:
        """Mark the event and its ancestors as read. Return those that were not read before, parents first."""
        found: list[int] = []
        stack = [number]
        rank = self._read_rank
        while stack:
            one = stack.pop()
            if rank[one] == NONE:
                rank[one] = 0  # keeps it off the stack; its true rank follows
                found.append(one)
                stack.extend(self.parents_of(one))
        found.sort()
        for one in found:
            rank[one] = len(self.read_order)
            self.read_order.append(one)
            for parent in self.parents_of(one):
                self.read_leaves.pop(parent, None)
            self.read_leaves[one] = None
        return found

    # Comparison with a peer, and the agreed order.

    def beyond(self, known: Iterable[int]) -> list[int]:
        """Numbers of the events that a peer lacks, given that it has the `known` events and their ancestors. Parents
        first.

        Walks down from the leaves and stops once the peer has everything below: the cost follows the size of the
        difference.
        """
        marks = bytearray(len(self))
        for number in self.leaves:
            marks[number] = _OURS
        for number in known:
            marks[number] = _THEIRS
        pending = sum(1 for number in self.leaves if marks[number] == _OURS)
        links, ends = self._links, self._links_end
        found: list[int] = []
        number = len(self)
        while pending:
            number -= 1
            mark = marks[number]
            if mark == _OURS:
                found.append(number)
                pending -= 1
            elif not mark:
                continue
            for parent in links[ends[number] : ends[number + 1]]:
                old = marks[parent]
                if not old:
                    marks[parent] = mark
                    pending += mark == _OURS
                elif old == _OURS and mark == _THEIRS:
                    marks[parent] = _THEIRS
                    pending -= 1
        found.reverse()
        return found

    def locator(self) -> list[bytes]:
        """A sample of our event ids, dense at the leaves and exponentially sparser below.

        A peer that finds one of them in its own graph knows that we have its ancestors. It sends at most about a
        quarter more than the part above the newest common id, because the distance between samples grows by that
        factor.
        """
        chosen = [self.id_of(number) for number in list(self.leaves)[-LOCATOR_LEAVES:]]
        place, step = float(len(self._first) - 2), 1.0
        while place >= 0 and len(chosen) < LOCATOR_MAX:
            number = self._first[int(place)]
            if number != NONE:
                chosen.append(self.id_of(number))
            place -= step
            step *= _LOCATOR_GROWTH
        return chosen

    def ordered(self, after: ParentLink | None = None) -> Iterator[int]:
        """Numbers in the agreed order, starting after the given event."""
        first = 0 if after is None else max(0, after.height - self._base)
        for place in range(first, len(self._first)):
            level = sorted((self.id_of(number), number) for number in self._level(place))
            for event_id, number in level:
                if after is None or (self._heights[number], event_id) > (after.height, after.id):
                    yield number

    def _level(self, place: int) -> Iterator[int]:
        number = self._first[place]
        while number != NONE:
            yield number
            number = self._next[number]
