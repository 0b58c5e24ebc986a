"""Flow control for clients: a window of bytes that moves on as requests are answered.

Decides which clients have to wait. It only counts; `admission` refuses packs that exceed the credit.

Invariants: the unanswered bytes of all clients stay within `bytes_max`. A client's credit never decreases.
"""

from __future__ import annotations

ANNOUNCED_SHARE = 8
"""A client learns of new credit in steps of this part of its window. With larger steps it stops and starts: it waits
for credit while the nodes wait for its packs.
"""


class _Account:
    """The window of one session."""

    __slots__ = ("announced", "granted", "released", "used")

    def __init__(self, window_bytes: int) -> None:
        self.used = 0
        self.granted = self.announced = window_bytes
        self.released = 0
        """Answered bytes that are not granted again yet, because too many bytes of all clients wait."""


class CreditBook:
    """Credit of all sessions. Credit is a total since the session began, not a difference."""

    def __init__(self, window_bytes: int, bytes_max: int) -> None:
        self._window_bytes = window_bytes
        self._bytes_max = bytes_max
        self._accounts: dict[bytes, _Account] = {}
        self.released: dict[bytes, _Account] = {}
        """Accounts with released bytes that are not granted again yet."""
        self.waiting_bytes = 0
        """Unanswered bytes of all clients."""
        self.waiting = 0
        """Number of unanswered requests of all clients."""

    def open(self, instance: bytes) -> int:
        """Open an account if there is none, and return its credit."""
        return self._accounts.setdefault(instance, _Account(self._window_bytes)).granted

    def close(self, instance: bytes) -> None:
        self._accounts.pop(instance, None)
        self.released.pop(instance, None)

    def spend(self, instance: bytes, size_bytes: int) -> bool:
        """True if the bytes are within the credit. Bytes beyond it are counted, too, until `release` subtracts them."""
        account = self._accounts[instance]
        account.used += size_bytes
        self.waiting_bytes += size_bytes
        self.waiting += 1
        return account.used <= account.granted and self.waiting_bytes <= self._bytes_max

    def release(self, instance: bytes, size_bytes: int) -> None:
        """A request was answered: its bytes no longer wait."""
        self.waiting_bytes -= size_bytes
        self.waiting -= 1
        assert self.waiting_bytes >= 0, "more was answered than was sent"
        account = self._accounts.get(instance)
        if account is not None:
            account.released += size_bytes
            self.released[instance] = account

    def take_announcements(self) -> list[tuple[bytes, int]]:
        """Grant released bytes again, and return the sessions whose credit has grown by 1/`ANNOUNCED_SHARE` of the
        window, with the new credit. While more than half of `bytes_max` waits, nothing is granted.
        """
        if self.waiting_bytes > self._bytes_max // 2:
            return []
        released, self.released = self.released, {}
        announcements: list[tuple[bytes, int]] = []
        for instance, account in released.items():
            account.granted, account.released = account.granted + account.released, 0
            if account.granted - account.announced >= self._window_bytes // ANNOUNCED_SHARE:
                account.announced = account.granted
                announcements.append((instance, account.granted))
        return announcements
