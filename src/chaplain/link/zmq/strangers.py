"""Connections that have not proven themselves yet, counted by where they come from.

Decides whose attempts to connect are dropped when there are too many: those of the addresses that have most. An address
that has none yet finds a place while others flood the node. If places run out all the same, everybody is kept out for
a moment but the addresses that the configuration names, which are those of the cluster's other nodes: places are
reserved for them.

Refuses to know sockets: connections are numbers.

Bounds: `places_max` connections, and a quarter as many of members alone.
"""

from __future__ import annotations

from chaplain.core import Frozen

RESERVED_PART = 4
"""One place in so many is for the cluster's nodes."""


class Shut(Frozen, frozen=True):
    """Whose attempts are dropped: those of these addresses, or with `others` those of everybody else."""

    sources: frozenset[str] = frozenset()
    others: bool = False

    def __bool__(self) -> bool:
        return self.others or bool(self.sources)


class Strangers:
    def __init__(self, places_max: int, members: frozenset[str] = frozenset()) -> None:
        self._places_max = places_max
        self._open_places = places_max - places_max // RESERVED_PART
        """For those who are no members; members may take these, too."""
        self._members = members
        self._here: dict[int, tuple[int, str]] = {}
        """When each came, and whence; the oldest first."""
        self._counts: dict[str, int] = {}
        """How many each address has."""
        self._shut = Shut()

    def __len__(self) -> int:
        return len(self._here)

    def came(self, now_ns: int, connection: int, source: str) -> None:
        """A connection was accepted."""
        self.left(connection)  # its number may have been another's
        self._here[connection] = (now_ns, source)
        self._counts[source] = self._counts.get(source, 0) + 1

    def left(self, connection: int) -> None:
        """It has proven itself, or ended."""
        found = self._here.pop(connection, None)
        if found is not None:
            source = found[1]
            self._counts[source] -= 1
            if not self._counts[source]:
                del self._counts[source]

    def expire(self, before_ns: int) -> None:
        """Those who came before this have proven themselves or were ended by ZeroMQ."""
        while self._here:
            connection, (came_ns, _) = next(iter(self._here.items()))
            if came_ns >= before_ns:
                return
            self.left(connection)

    def shut(self) -> Shut:
        """Whose attempts are dropped now. Whoever was kept out is let in again when half of its places are free."""
        others = len(self._here) >= (self._places_max // 2 if self._shut.others else self._places_max)
        if others:
            # A member that floods the node is kept out like anybody else.
            room = len(self._here) < self._places_max + self._places_max // RESERVED_PART
            kept_in = {one for one in self._members if room and self._counts.get(one, 0) < self._places_max // 2}
            self._shut = Shut(frozenset(kept_in), others=True)
            return self._shut
        part = self._open_places // (len(self._counts) + 1)
        full = len(self._here) >= self._open_places
        again = frozenset() if self._shut.others else self._shut.sources
        self._shut = Shut(
            frozenset(
                source
                for source, count in self._counts.items()
                if (full and count >= part) or (source in again and count > self._open_places // 2)
            )
        )
        return self._shut
