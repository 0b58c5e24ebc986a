"""Counts unauthenticated connections by source address, and decides which addresses to block.

When there are too many, connection attempts of the addresses with the most connections are dropped, so that an address
with none still gets a place while others flood the node. If places run out all the same, all attempts are dropped for a
moment, except those of the addresses that the configuration names. These are the cluster's other nodes, for which
places are reserved.

This module does not know sockets: connections are numbers.

Bounds: `places_max` connections of all addresses; beyond them, a quarter of that number from members' addresses.
"""

from __future__ import annotations

from chaplain.core import Frozen

RESERVED_PART = 4
"""One place in this many is reserved for the cluster's nodes."""


class BlockedSources(Frozen, frozen=True):
    """The addresses whose attempts are dropped. With `others`, the attempts of all other addresses are dropped
    instead.
    """

    sources: frozenset[str] = frozenset()
    others: bool = False

    def __bool__(self) -> bool:
        return self.others or bool(self.sources)


class Strangers:
    def __init__(self, places_max: int, members: frozenset[str] = frozenset()) -> None:
        self._places_max = places_max
        self._general_max = places_max - places_max // RESERVED_PART
        """Places for addresses that are not members; members may take these, too."""
        self._members = members
        self._open_since: dict[int, tuple[int, str]] = {}
        """By connection: the time of its acceptance and its source, the oldest first."""
        self._counts: dict[str, int] = {}
        """The number of connections of each address."""
        self._blocked = BlockedSources()

    def __len__(self) -> int:
        return len(self._open_since)

    def add(self, now_ns: int, connection: int, source: str) -> None:
        """A connection was accepted."""
        self.remove(connection)  # the descriptor may have belonged to an earlier connection
        self._open_since[connection] = (now_ns, source)
        self._counts[source] = self._counts.get(source, 0) + 1

    def remove(self, connection: int) -> None:
        """The connection has authenticated itself, or has ended."""
        found = self._open_since.pop(connection, None)
        if found is not None:
            source = found[1]
            self._counts[source] -= 1
            if not self._counts[source]:
                del self._counts[source]

    def expire(self, before_ns: int) -> None:
        """Remove connections accepted before this time: ZeroMQ has ended all that are not authenticated."""
        while self._open_since:
            connection, (accepted_ns, _) = next(iter(self._open_since.items()))
            if accepted_ns >= before_ns:
                return
            self.remove(connection)

    def blocked(self) -> BlockedSources:
        """The addresses to block now. A blocked address is admitted again when half of its places are free."""
        others = len(self._open_since) >= (self._places_max // 2 if self._blocked.others else self._places_max)
        if others:
            # A member that floods the node is blocked like any other address.
            room = len(self._open_since) < self._places_max + self._places_max // RESERVED_PART
            admitted = {one for one in self._members if room and self._counts.get(one, 0) < self._places_max // 2}
            self._blocked = BlockedSources(frozenset(admitted), others=True)
            return self._blocked
        part = self._general_max // (len(self._counts) + 1)
        full = len(self._open_since) >= self._general_max
        still_blocked = frozenset() if self._blocked.others else self._blocked.sources
        self._blocked = BlockedSources(
            frozenset(
                source
                for source, count in self._counts.items()
                if (full and count >= part) or (source in still_blocked and count > self._general_max // 2)
            )
        )
        return self._blocked
