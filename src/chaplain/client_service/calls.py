"""The calls that other layers have yet to answer: who asked, and under which number of the client's own."""

from __future__ import annotations

from typing import NamedTuple

from chaplain.client_service.sessions import ConnectedClient
from chaplain.rights import RequiredRight


class OpenCall(NamedTuple):
    guest: ConnectedClient
    call: int
    """The client's own number for it."""
    layer: int | None
    """Which layer is told when nobody waits any more, if any."""
    want: RequiredRight | None
    """The right that it takes, if any."""


class OpenCalls:
    """Numbers are ours: two clients may use the same one."""

    def __init__(self) -> None:
        self._open: dict[int, OpenCall] = {}
        self._by_guest: dict[bytes, dict[int, int]] = {}
        """By session and number: the client's own number for it."""
        self._last = 0

    def open(
        self, guest: ConnectedClient, call: int, layer: int | None = None, want: RequiredRight | None = None
    ) -> int:
        self._last += 1
        self._open[self._last] = OpenCall(guest, call, layer, want)
        self._by_guest.setdefault(guest.instance, {})[self._last] = call
        guest.waiting += 1
        return self._last

    def close(self, number: int) -> OpenCall | None:
        """Whose it was; None if nobody waits for it any more."""
        entry = self._open.pop(number, None)
        if entry is not None:
            entry.guest.waiting -= 1
            mine = self._by_guest[entry.guest.instance]
            del mine[number]
            if not mine:
                del self._by_guest[entry.guest.instance]
        return entry

    def with_rights(self) -> list[tuple[int, OpenCall, RequiredRight]]:
        """All that take a right, and which."""
        return [(number, entry, entry.want) for number, entry in self._open.items() if entry.want is not None]

    def of(self, guest: ConnectedClient, call: int | None = None) -> list[int]:
        """What this client has open: all of it, or under one of its numbers."""
        mine = self._by_guest.get(guest.instance, {})
        return [number for number, own in mine.items() if call is None or call == own]
