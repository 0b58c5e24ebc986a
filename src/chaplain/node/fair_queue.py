"""A fair queue of client requests: clients take turns, and so do the sessions of one client.

It decides which request is next. The node serves one request of a client, then the other clients have their turn, even
if the client has a thousand waiting requests. A client with one request therefore waits for at most one request of each
other client.

A client is light unless it was charged more than `light_per_second` units of cost (`costs`) lately. A client that waits
for at most one request at a time, and does not write through other nodes, may cost `MODEST_FACTOR` times as much: its
rate is bounded by the time of an answer, so a fast machine does not make it heavy. When the node is too busy, the host
serves only light clients; the others wait.

Invariants: requests of one session are served in the order of their arrival; the waiting bytes are bounded for a
session, for a client (an identity, by its key) and for all clients.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from chaplain.client_service.budgets import Budgets

T = TypeVar("T")

ITEM_BYTES = 256
"""The cost of a request beside its octets, so that many small ones reach the bound, too."""
LIGHT_PER_SECOND = 100
LIGHT_BURST_S = 0.2
"""A client that did nothing for this time, or longer, stays light for as many seconds' worth of cost at once."""
MODEST_FACTOR = 5
LIGHT_DEBT_S = 0.8
"""A client that cost more than it may is light again after at most this time. It is long enough that a client that
writes large packs, a few each second, does not become light between two of them."""


class _Owner(Generic[T]):
    """The waiting requests of one client."""

    __slots__ = ("count", "sessions", "size_bytes")

    def __init__(self) -> None:
        self.sessions: dict[bytes, deque[tuple[int, T]]] = {}
        """Sessions with waiting requests, in the order of their turns."""
        self.count = 0
        self.size_bytes = 0


class FairQueue(Generic[T]):
    def __init__(
        self,
        session_bytes_max: int,
        owner_bytes_max: int,
        bytes_max: int,
        light_per_second: int = LIGHT_PER_SECOND,
    ) -> None:
        self._session_bytes_max = session_bytes_max
        self._owner_bytes_max = owner_bytes_max
        self._bytes_max = bytes_max
        self._owners: dict[bytes, _Owner[T]] = {}
        """Clients with waiting requests, in the order of their turns."""
        self._session_bytes: dict[bytes, int] = {}
        self._budgets = Budgets(light_per_second, LIGHT_BURST_S, LIGHT_DEBT_S)
        self._modest_budgets = Budgets(MODEST_FACTOR * light_per_second, LIGHT_BURST_S, LIGHT_DEBT_S)
        """The budgets of the same clients while they wait for at most one request."""
        self._elsewhere = Budgets(1, 0.0, 1.0)
        """Clients that wrote through other nodes in the last second owe something here."""
        self._light: tuple[int, bytes | None] | None = None
        """The time of the last search for a light owner, and what it found. None after any change."""
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._owners)

    def put(self, owner: bytes, session: bytes, item: T, size_bytes: int) -> bool:
        """Add a request. If too many bytes wait already, return False and do not add it."""
        size_bytes += ITEM_BYTES
        found = self._owners.get(owner)
        of_session = self._session_bytes.get(session, 0) + size_bytes
        of_owner = size_bytes + (0 if found is None else found.size_bytes)
        if (
            of_session > self._session_bytes_max
            or of_owner > self._owner_bytes_max
            or self.size_bytes + size_bytes > self._bytes_max
        ):
            return False
        if found is None:
            found = self._owners[owner] = _Owner()
        self._light = None
        found.count += 1
        found.sessions.setdefault(session, deque()).append((size_bytes, item))
        found.size_bytes = of_owner
        self._session_bytes[session] = of_session
        self.size_bytes += size_bytes
        return True

    def charge(self, now_ns: int, owner: bytes, units: int, *, elsewhere: bool = False) -> None:
        """A request of this owner was served, here or elsewhere, and costs the cluster this much."""
        if elsewhere:
            self._elsewhere.charge(now_ns, owner, 1)
        self._light = None
        self._budgets.charge(now_ns, owner, units)
        self._modest_budgets.charge(now_ns, owner, units)

    def is_light(self, now_ns: int, owner: bytes) -> bool:
        """Whether this owner, with or without waiting requests, is light."""
        if not self._budgets.owes(now_ns, owner):
            return True
        found = self._owners.get(owner)
        has_one = (found is None or found.count <= 1) and not self._elsewhere.owes(now_ns, owner)
        return has_one and self.is_modest(now_ns, owner)

    def is_modest(self, now_ns: int, owner: bytes) -> bool:
        """Whether this owner would be light with one request at a time."""
        return not self._modest_budgets.owes(now_ns, owner)

    def has_light(self, now_ns: int) -> bool:
        """Whether a request of a light owner waits."""
        return self._next_light(now_ns) is not None

    def _next_light(self, now_ns: int) -> bytes | None:
        if self._light is None or self._light[0] != now_ns:
            found = next((owner for owner in self._owners if self.is_light(now_ns, owner)), None)
            self._light = (now_ns, found)
        return self._light[1]

    def take(self, now_ns: int = 0, light: bool = False) -> T | None:
        """Remove and return the next request, or the next of a light owner; None if there is none."""
        owner = self._next_light(now_ns) if light else next(iter(self._owners), None)
        if owner is None:
            return None
        self._light = None
        found = self._owners[owner]
        session, waiting = next(iter(found.sessions.items()))
        size_bytes, item = waiting.popleft()
        # The served session and client move to the end of their queues if more of their requests wait.
        del found.sessions[session]
        if waiting:
            found.sessions[session] = waiting
        del self._owners[owner]
        if found.sessions:
            self._owners[owner] = found
        self._subtract(found, session, size_bytes)
        return item

    def drop(self, owner: bytes, session: bytes) -> int:
        """Discard the waiting requests of a session. Returns their number."""
        self._light = None
        found = self._owners.get(owner)
        waiting = None if found is None else found.sessions.pop(session, None)
        if found is None or waiting is None:
            return 0
        for size_bytes, _ in waiting:
            self._subtract(found, session, size_bytes)
        if not found.sessions:
            del self._owners[owner]
        return len(waiting)

    def _subtract(self, owner: _Owner[T], session: bytes, size_bytes: int) -> None:
        owner.count -= 1
        owner.size_bytes -= size_bytes
        self.size_bytes -= size_bytes
        self._session_bytes[session] -= size_bytes
        if not self._session_bytes[session]:
            del self._session_bytes[session]
