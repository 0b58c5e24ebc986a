"""How many bytes wait for clients: of each identity, whatever the number of its sessions, and of all together.

Decides whether something more may wait for a client that does not read what it is sent. The bytes of a session's own
channel have a bound of their own; this one is needed because one key may have many sessions.

A session that keeps up is never affected: up to `FLOOR_BYTES` may always wait on its channel. When all clients together
are at their bound, each identity keeps an equal part of it, so that those who do not read cannot take the place of
those who do.
"""

from __future__ import annotations

from chaplain.link.settings import LinkSettings

FLOOR_BYTES = 64 * 1024


class ClientQueues:
    def __init__(self, settings: LinkSettings) -> None:
        self._identity_bytes_max = settings.identity_queue_bytes_max
        self._bytes_max = settings.clients_queue_bytes_max
        self._by_identity: dict[bytes, int] = {}
        self.total_bytes = 0

    def has_room(self, key: bytes, channel_bytes: int, size_bytes: int) -> bool:
        """Whether so many bytes more may wait for this identity, on a channel with `channel_bytes` waiting."""
        if channel_bytes + size_bytes <= FLOOR_BYTES:
            return True
        after = self._by_identity.get(key, 0) + size_bytes
        if self.total_bytes + size_bytes <= self._bytes_max:
            return after <= self._identity_bytes_max
        identities = len(self._by_identity) + (key not in self._by_identity)
        return after <= min(self._identity_bytes_max, self._bytes_max // identities)

    def add(self, key: bytes, size_bytes: int) -> None:
        """So many bytes more wait, or fewer, if it is negative."""
        self.total_bytes += size_bytes
        waiting = self._by_identity.get(key, 0) + size_bytes
        assert waiting >= 0, "more left than waited"
        if waiting:
            self._by_identity[key] = waiting
        else:
            self._by_identity.pop(key, None)
