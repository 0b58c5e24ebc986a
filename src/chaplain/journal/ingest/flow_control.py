"""How much each client may send: a window of octets that moves on as its requests are answered.

Decides who has to wait. Counts only: what a client sends beyond its credit is refused by `ingest`.

Invariants: octets of all clients that wait to be answered stay within the bound; credit never falls.
"""

from __future__ import annotations


class _Account:
    __slots__ = ("announced", "granted", "owed", "used")

    def __init__(self, window_bytes: int) -> None:
        self.used = 0
        self.granted = self.announced = window_bytes
        self.owed = 0
        """Answered, but not granted again while too much waits."""


class CreditBook:
    def __init__(self, window_bytes: int, bytes_max: int) -> None:
        self._window_bytes = window_bytes
        self._bytes_max = bytes_max
        self._accounts: dict[bytes, _Account] = {}
        self._owed: dict[bytes, _Account] = {}
        """Those to whom something was answered that is not granted again yet."""
        self.waiting_bytes = 0
        self.waiting = 0
        """How many requests wait to be answered."""

    def open(self, instance: bytes) -> int:
        """The client's credit, from the beginning if it is new here."""
        return self._accounts.setdefault(instance, _Account(self._window_bytes)).granted

    def close(self, instance: bytes) -> None:
        self._accounts.pop(instance, None)
        self._owed.pop(instance, None)

    @property
    def owes(self) -> bool:
        """Whether something was answered and is not granted again yet."""
        return bool(self._owed)

    def spend(self, instance: bytes, size_bytes: int) -> bool:
        """Whether the client may send this. What it may not is counted all the same, and given back by `answer`."""
        account = self._accounts[instance]
        account.used += size_bytes
        self.waiting_bytes += size_bytes
        self.waiting += 1
        return account.used <= account.granted and self.waiting_bytes <= self._bytes_max

    def answer(self, instance: bytes, size_bytes: int) -> None:
        """Something that was spent waits no longer."""
        self.waiting_bytes -= size_bytes
        self.waiting -= 1
        assert self.waiting_bytes >= 0, "more was answered than was sent"
        account = self._accounts.get(instance)
        if account is not None:
            account.owed += size_bytes
            self._owed[instance] = account

    def news(self) -> list[tuple[bytes, int]]:
        """Clients whose credit has grown enough to be told. Everybody waits while too much waits in all."""
        if self.waiting_bytes > self._bytes_max // 2:
            return []
        owed, self._owed = self._owed, {}
        told: list[tuple[bytes, int]] = []
        for instance, account in owed.items():
            account.granted, account.owed = account.granted + account.owed, 0
            if account.granted - account.announced >= self._window_bytes // 4:
                account.announced = account.granted
                told.append((instance, account.granted))
        return told
