"""The calls that other layers have yet to answer: who asked, and under which number of the client's own."""

from __future__ import annotations

from typing import NamedTuple

from chaplain.desk.guests import Guest


class OpenCall(NamedTuple):
    guest: Guest
    call: int
    """The client's own number for it."""
    layer: int | None
    """Which layer is told when nobody waits any more, if any."""


class OpenCalls:
    """Numbers are ours: two clients may use the same one."""

    def __init__(self) -> None:
        self._open: dict[int, OpenCall] = {}
        self._last = 0

    def open(self, guest: Guest, call: int, layer: int | None = None) -> int:
        self._last += 1
        self._open[self._last] = OpenCall(guest, call, layer)
        guest.waiting += 1
        return self._last

    def close(self, number: int) -> OpenCall | None:
        """Whose it was; None if nobody waits for it any more."""
        entry = self._open.pop(number, None)
        if entry is not None:
            entry.guest.waiting -= 1
        return entry

    def of(self, guest: Guest, call: int | None = None) -> list[int]:
        """What this client has open: all of it, or under one of its numbers."""
        mine = [(number, entry.call) for number, entry in self._open.items() if entry.guest is guest]
        return [number for number, own in mine if call is None or call == own]
