"""Bytes that are queued for clients: for each identity, over all its sessions, and for all clients.

Decides whether more may be queued for a client that does not read. Each session's channel has its own bound; this one
is needed because one key may have many sessions.

A session that keeps up is never affected: `FLOOR_BYTES` may always be queued on its channel. When all clients together
reach their bound, each identity is limited to an equal share of it, so that clients which do not read cannot take the
space of those which do.
"""

from __future__ import annotations

from chaplain.link.settings import LinkSettings

FLOOR_BYTES = 64 * 1024
"""Bytes that may always be queued on one channel."""


class ClientQueues:
    def __init__(self, settings: LinkSettings) -> None:
        self._identity_bytes_max = settings.identity_queue_bytes_max
        self._bytes_max = settings.clients_queue_bytes_max
        self._by_identity: dict[bytes, int] = {}
        self.total_bytes = 0

    def has_room(self, key: bytes, channel_bytes: int, size_bytes: int) -> bool:
        """Whether `size_bytes` more may be queued for this identity, on a channel with `channel_bytes` queued."""
        if channel_bytes + size_bytes <= FLOOR_BYTES:
            return True
        after = self._by_identity.get(key, 0) + size_bytes
        if self.total_bytes + size_bytes <= self._bytes_max:
            return after <= self._identity_bytes_max
        identities = len(self._by_identity) + (key not in self._by_identity)
        return after <= min(self._identity_bytes_max, self._bytes_max // identities)

    def add(self, key: bytes, size_bytes: int) -> None:
        """Add to the queued bytes of an identity; a negative size subtracts."""
        self.total_bytes += size_bytes
        waiting = self._by_identity.get(key, 0) + size_bytes
        assert waiting >= 0, "more left than waited"
        if waiting:
            self._by_identity[key] = waiting
        else:
            self._by_identity.pop(key, None)
