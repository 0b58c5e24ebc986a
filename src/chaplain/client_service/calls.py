"""Calls that other layers have not answered yet: the client of each, and the client's own number for it."""

from __future__ import annotations

from typing import NamedTuple

from chaplain.client_service.sessions import ConnectedClient
from chaplain.rights import RequiredRight


class OpenCall(NamedTuple):
    """One call that another layer has not answered yet."""

    client: ConnectedClient
    call: int
    """The client's own number for it."""
    layer: int | None
    """The layer that has to be informed when the client no longer waits; None if there is no such layer."""
    right: RequiredRight | None
    """The right that the call needs, if any."""


class OpenCalls:
    """Open calls by a number of our own: two clients may use the same number."""

    def __init__(self) -> None:
        self._open: dict[int, OpenCall] = {}
        self._by_session: dict[bytes, dict[int, int]] = {}
        """By session and our number: the client's own number."""
        self._last = 0

    def open(
        self, client: ConnectedClient, call: int, layer: int | None = None, right: RequiredRight | None = None
    ) -> int:
        """Register a call and return its number."""
        self._last += 1
        self._open[self._last] = OpenCall(client, call, layer, right)
        self._by_session.setdefault(client.instance, {})[self._last] = call
        client.waiting += 1
        return self._last

    def close(self, number: int) -> OpenCall | None:
        """Remove and return a call; None if its client no longer waits."""
        entry = self._open.pop(number, None)
        if entry is not None:
            entry.client.waiting -= 1
            mine = self._by_session[entry.client.instance]
            del mine[number]
            if not mine:
                del self._by_session[entry.client.instance]
        return entry

    def with_rights(self) -> list[tuple[int, OpenCall, RequiredRight]]:
        """All calls that need a right, and the right."""
        return [(number, entry, entry.right) for number, entry in self._open.items() if entry.right is not None]

    def of(self, client: ConnectedClient, call: int | None = None) -> list[int]:
        """The open calls of a client: all, or those under one of its own numbers."""
        mine = self._by_session.get(client.instance, {})
        return [number for number, own in mine.items() if call is None or call == own]
