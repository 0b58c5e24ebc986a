"""An incremental hash of a set: adding or removing one element hashes that element alone, however large the set is.

The hash is the sum of the elements' hashes modulo 2^2048 (AdHash; Bellare and Micciancio, "A New Paradigm for
Collision-Free Hashing", 1997), so it does not depend on the order of changes. The modulus is this wide because of
Wagner's generalised birthday attack, which finds colliding sums modulo 2^n in about 2^(2 * sqrt(n)) steps: 2^90 here,
but only 2^32 with 256 bits.

`MappingHash` hashes the items of a dictionary only when a digest is needed. Until then, `note` stores the value that an
item had when it was last hashed. An item that changes a thousand times between two digests is hashed once. At most
`PENDING_MAX` items wait, which bounds the work of one digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256, shake_256
from typing import Generic, TypeVar

import msgspec

K = TypeVar("K")
V = TypeVar("V")

WIDTH_BYTES = 256
PENDING_MAX = 256
"""Bound of changed items that wait to be hashed. At the bound, all of them are hashed."""
_MASK = (1 << 8 * WIDTH_BYTES) - 1
_encode = msgspec.msgpack.Encoder().encode


class SetHash:
    """A set whose elements are added and removed one by one."""

    def __init__(self) -> None:
        self._sum = 0
        self.hashed = 0
        """Number of element hashes computed so far, for tests and measurements."""

    def add(self, element: object) -> None:
        self._sum = (self._sum + self._hash(element)) & _MASK

    def remove(self, element: object) -> None:
        self._sum = (self._sum - self._hash(element)) & _MASK

    def digest(self) -> bytes:
        return sha256(self._sum.to_bytes(WIDTH_BYTES, "big")).digest()

    def _hash(self, element: object) -> int:
        self.hashed += 1
        return int.from_bytes(shake_256(_encode(element)).digest(WIDTH_BYTES), "big")


class MappingHash(SetHash, Generic[K, V]):
    """The items of a dictionary that its owner changes. The owner calls `note` before each change."""

    def __init__(self, items: Callable[[], Mapping[K, V]]) -> None:
        super().__init__()
        self._items = items
        self._pending: dict[K, V | None] = {}
        """The value of each changed item when it was last hashed; None if the item did not exist."""

    def note(self, key: K) -> None:
        """Record the old value of an item that the caller is about to add, change or remove."""
        if key not in self._pending:
            if len(self._pending) >= PENDING_MAX:
                self._settle()
            self._pending[key] = self._items().get(key)

    def digest(self) -> bytes:
        self._settle()
        return super().digest()

    def _settle(self) -> None:
        items = self._items()
        for key, before in self._pending.items():
            after = items.get(key)
            if before is after:
                continue
            if before is not None:
                self.remove((key, before))
            if after is not None:
                self.add((key, after))
        self._pending.clear()
