"""The messages that a worker of a queue has leased, delivered and finished.

Decides which messages to read and deliver, and which commands to send. Knows neither the connection nor the
application.

Invariants: a message is delivered once for each lease. `Finish` contains only messages that the application has
acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.client.protocol.consumers.state import ConsumerState
from chaplain.journal.messages.consumer import RANGES_MAX, UNDELIVERED, Fetch, Finish, Return

DELAYS_MAX = 16
RETURNED_MAX = 64
"""One request returns messages with at most `DELAYS_MAX` delays, `RETURNED_MAX` ranges each, so that it fits into a
pack. The next request returns the others.
"""


class QueueProgress:
    """The leased messages of one worker."""

    def __init__(self, name: str, token: int, prefetch: int) -> None:
        self.name = name
        self.token = token
        self._prefetch = prefetch
        self.deliveries: dict[int, int] = {}
        """Leased offsets, each with its number of deliveries."""
        self.delivered: set[int] = set()
        """Those of them that the application has."""
        self._finished: set[int] = set()
        """Acknowledged offsets that are not in a command yet."""
        self._sent: set[int] = set()
        """Offsets in commands that are not answered."""
        self._returned: dict[int, int] = {}
        """Returned offsets that are not in a command yet, each with its delay in ms."""
        self.lost = 0
        """Messages that were delivered and whose lease ended before they were acknowledged."""

    def assign(self, state: ConsumerState) -> list[tuple[int, int]]:
        """Apply the cluster's decision about the leases. Returns the ranges to read and deliver."""
        leased = {
            offset: deliveries
            for first, last, token, _, deliveries in state.spans
            if token == self.token
            for offset in range(first, last + 1)
        }
        gone = self.deliveries.keys() - leased.keys() - self._sent
        # A lease that ended and began again is a new delivery: an acknowledgement of the former one would count for it.
        again = {
            offset
            for offset, deliveries in leased.items()
            if self.deliveries.get(offset, deliveries) != deliveries and offset not in self._sent
        }
        self.lost += len((gone | again) & (self.delivered | self._finished))
        for offset in gone | again:
            self._forget(offset)
        new = sorted(offset for offset in leased if offset not in self.deliveries)
        self.deliveries.update((offset, leased[offset]) for offset in new)
        return joined(new)

    def _forget(self, offset: int) -> None:
        self.deliveries.pop(offset, None)
        self.delivered.discard(offset)
        self._finished.discard(offset)
        self._returned.pop(offset, None)

    def acknowledge(self, offset: int, deliveries: int) -> bool:
        """The application has processed a message. False if its lease was lost."""
        if self.deliveries.get(offset) != deliveries or offset not in self.delivered:
            return False
        self.delivered.discard(offset)
        self._finished.add(offset)
        return True

    def give_back(self, offset: int, deliveries: int, delay_ms: int) -> bool:
        """The application returned a message."""
        if self.deliveries.get(offset) != deliveries or offset not in self.delivered:
            return False
        self.delivered.discard(offset)
        self._returned[offset] = delay_ms
        return True

    def together(self, offset: int, deliveries: int) -> Finish | None:
        """The acknowledgement of one message, to be sent with statements; None if its lease was lost."""
        if self.deliveries.get(offset) != deliveries or offset not in self.delivered:
            return None
        return Finish(self.name, self.token, ((offset, offset),))

    @property
    def in_hand(self) -> bool:
        """True if the application, or a buffer, has messages."""
        return bool(self.deliveries)

    @property
    def pending(self) -> bool:
        """True if messages were acknowledged or returned that are not in a command yet."""
        return bool(self._finished or self._returned)

    def to_send(self) -> list[Finish | Return]:
        """The commands to send now."""
        commands: list[Finish | Return] = []
        if self._finished:
            ranges = joined(sorted(self._finished))[:RANGES_MAX]
            self._mark_sent(ranges)
            commands.append(Finish(self.name, self.token, tuple(ranges)))
        for delay_ms in sorted(set(self._returned.values()))[:DELAYS_MAX]:
            ranges = joined(sorted(offset for offset, delay in self._returned.items() if delay == delay_ms))
            self._mark_sent(ranges[:RETURNED_MAX])
            commands.append(Return(self.name, self.token, delay_ms, 0, tuple(ranges[:RETURNED_MAX])))
        return commands

    def _mark_sent(self, ranges: Iterable[tuple[int, int]]) -> None:
        for first, last in ranges:
            for offset in range(first, last + 1):
                self._sent.add(offset)
                self._finished.discard(offset)
                self._returned.pop(offset, None)

    def answered(self, commands: Iterable[Finish | Return]) -> None:
        """The commands were executed."""
        for command in commands:
            for first, last in command.ranges:
                for offset in range(first, last + 1):
                    self._sent.discard(offset)
                    self._forget(offset)

    def refused(self, commands: Iterable[Finish | Return]) -> None:
        """A command may not have counted: acknowledge again the messages that the worker still has. Call `assign` next,
        with a state that shows what it has.
        """
        for command in commands:
            for first, last in command.ranges:
                for offset in range(first, last + 1):
                    self._sent.discard(offset)
                    if offset not in self.deliveries:
                        continue
                    if isinstance(command, Finish):
                        self._finished.add(offset)
                    else:
                        self._returned[offset] = command.delay_ms

    def to_fetch(self) -> Fetch | None:
        """Lease more if less than half of the prefetched messages are left."""
        left = len(self.deliveries) - len(self._finished) - len(self._returned) - len(self._sent)
        return Fetch(self.name, self.token, self._prefetch - left) if 2 * left <= self._prefetch else None

    def to_give_back(self) -> Return | None:
        """When the worker leaves: the messages to return, because the application has not seen them."""
        unseen = self.deliveries.keys() - self.delivered - self._finished - self._returned.keys() - self._sent
        ranges = tuple(joined(sorted(unseen))[:RANGES_MAX])
        return Return(self.name, self.token, 0, UNDELIVERED, ranges) if ranges else None


def joined(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Merge rising offsets into ranges; both ends are included."""
    ranges: list[tuple[int, int]] = []
    for offset in offsets:
        if ranges and ranges[-1][1] + 1 == offset:
            ranges[-1] = (ranges[-1][0], offset)
        else:
            ranges.append((offset, offset))
    return ranges
