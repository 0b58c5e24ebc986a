"""Remembers idempotency keys: a write that is repeated with its key has one effect. Pure: callers give the time.

    (new) ──begin──▶ running ──written──▶ answered ──after `remember_s`──▶ (forgotten)
                        │  └──unknown──▶ uncertain ──begin──▶ running, with the id of the first write
                        └──failed──▶ (forgotten: nothing was written)

A repetition of an answered write gets the same receipt. A repetition of an uncertain one retries the first write with
its id, which the cluster executes at most once. Keys are forgotten when the gateway ends, because the client library
assigns the id of a write only when it sends it: there is nothing to store beforehand. Keys are never forgotten early:
at a bound new ones are refused.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

from chaplain.gateway.problems import BUSY, IN_PROGRESS, KEY_REUSED, RATE_LIMITED, Problem

R = TypeVar("R")
RequestId = tuple[int, int]
Key = tuple[str, str]
"""The token's id and the key."""


class _Entry(Generic[R]):
    __slots__ = ("fingerprint", "receipt", "request", "running")

    def __init__(self, fingerprint: bytes) -> None:
        self.fingerprint = fingerprint
        self.running = True
        self.receipt: R | None = None
        self.request: RequestId | None = None
        """The id of a write whose outcome is unknown."""


class IdempotencyKeys(Generic[R]):
    """The keys of all tokens. A fingerprint is a hash of everything that defines the write."""

    def __init__(self, remember_s: float, keys_max: int, keys_per_token_max: int) -> None:
        self._remember_s = remember_s
        self._keys_max = keys_max
        self._keys_per_token_max = keys_per_token_max
        self._entries: dict[Key, _Entry[R]] = {}
        self._ending: dict[Key, float] = {}
        """When entries without a running request are forgotten, in this order."""
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self, now_s: float, key: Key, fingerprint: bytes) -> R | RequestId | None:
        """Begin a write. Returns the receipt if it is written, or the id to retry it with, or None if it is new.

        Raises `Problem` if the key is in use, belongs to a different write, or does not fit.
        """
        self._forget(now_s)
        entry = self._entries.get(key)
        if entry is None:
            self._check_room(key[0])
            self._entries[key] = _Entry(fingerprint)
            self._counts[key[0]] += 1
            return None
        if entry.fingerprint != fingerprint:
            raise Problem(KEY_REUSED, "use a new Idempotency-Key for each write")
        if entry.running:
            raise Problem(IN_PROGRESS, "wait for the answer to the first request")
        if entry.receipt is not None:
            return entry.receipt
        entry.running = True
        self._ending.pop(key)
        return entry.request

    def written(self, now_s: float, key: Key, receipt: R) -> None:
        """The write is in the log."""
        self._entries[key].receipt = receipt
        self._end(now_s, key)

    def unknown(self, now_s: float, key: Key, request: RequestId) -> None:
        """The outcome of the write with this id is unknown."""
        self._entries[key].request = request
        self._end(now_s, key)

    def failed(self, key: Key) -> None:
        """Nothing was written, and nothing will be."""
        if key in self._entries:
            self._remove(key)

    def lost(self, now_s: float, key: Key) -> None:
        """Nothing is known about the write, not even its id: its key stays in use."""
        self._ending[key] = now_s + self._remember_s

    def _end(self, now_s: float, key: Key) -> None:
        self._entries[key].running = False
        self._ending[key] = now_s + self._remember_s

    def _forget(self, now_s: float) -> None:
        while self._ending and self._ending[first := next(iter(self._ending))] <= now_s:
            del self._ending[first]
            self._remove(first)

    def _remove(self, key: Key) -> None:
        del self._entries[key]
        self._counts[key[0]] -= 1
        if not self._counts[key[0]]:
            del self._counts[key[0]]

    def _check_room(self, token: str) -> None:
        if len(self._entries) >= self._keys_max:
            raise Problem(BUSY, f"{self._keys_max} idempotency keys are remembered: try again later")
        if self._counts[token] >= self._keys_per_token_max:
            raise Problem(RATE_LIMITED, f"{self._keys_per_token_max} idempotency keys of this token are remembered")
