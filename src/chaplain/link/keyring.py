"""The cluster keys a node accepts, and the one it proves itself with.

Decides which changes of the ring are allowed. Does not know who else holds a key: that every member has the new key
before the old one goes is for whoever asks for the change.

Invariants: there is always a used key; the used key is installed; at most `KEYS_MAX` keys; no `repr` shows a key.
Text format: docs/identity.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from chaplain.errors import Malformed
from chaplain.link.identity import from_text, to_text
from chaplain.link.refusal import Refusal

CLUSTER_KEY_BYTES = 32
KEY_ID_BYTES = 4
KEYS_MAX = 8

_FIRST_LINE = "chaplain keyring 1"


def key_id_of(key: bytes) -> bytes:
    """What a cluster key is called in the open: the first four octets of its SHA-256."""
    return hashlib.sha256(key).digest()[:KEY_ID_BYTES]


class KeyRing:
    """Begins with one used key and any others that are accepted beside it."""

    __slots__ = ("_keys", "used", "used_id")

    def __init__(self, used: bytes, others: Iterable[bytes] = ()) -> None:
        self._keys: dict[bytes, bytes] = {}
        for key in (used, *others):
            if len(key) != CLUSTER_KEY_BYTES:
                raise ValueError(f"a cluster key has {CLUSTER_KEY_BYTES} octets, not {len(key)}")
            self._keys[key_id_of(key)] = key
        if len(self._keys) > KEYS_MAX:
            raise ValueError(f"a ring holds at most {KEYS_MAX} keys")
        self.used, self.used_id = used, key_id_of(used)

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(key_id.hex() for key_id in self._keys)}; uses {self.used_id.hex()})"

    @property
    def ids(self) -> tuple[bytes, ...]:
        return tuple(self._keys)

    def get(self, key_id: bytes) -> bytes | None:
        return self._keys.get(key_id)

    def install(self, key: bytes) -> None:
        if len(key) != CLUSTER_KEY_BYTES:
            raise Refusal("not a cluster key", octets=len(key))
        key_id = key_id_of(key)
        if self._keys.get(key_id, key) != key:
            raise Refusal("another key has this id", key=key_id.hex())
        if len(self._keys) >= KEYS_MAX and key_id not in self._keys:
            raise Refusal("the ring is full", keys_max=KEYS_MAX)
        self._keys[key_id] = key

    def use(self, key_id: bytes) -> None:
        key = self._keys.get(key_id)
        if key is None:
            raise Refusal("the key is not installed", key=key_id.hex())
        self.used, self.used_id = key, key_id

    def remove(self, key_id: bytes) -> None:
        if key_id not in self._keys:
            raise Refusal("the key is not installed", key=key_id.hex())
        if key_id == self.used_id:
            raise Refusal("the key is in use", key=key_id.hex())
        del self._keys[key_id]
        assert self.used_id in self._keys

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """Read the content of a key ring file: the used key first, then the others."""
        lines = text.split("\n")
        if lines[0] != _FIRST_LINE or lines[-1] or not 3 <= len(lines) <= KEYS_MAX + 2:
            raise Malformed(f"key ring: the first line must be {_FIRST_LINE!r}, then 1 to {KEYS_MAX} lines of key")
        keys = []
        for line in lines[1:-1]:
            word, _, value = line.partition(" ")
            if word != "key":
                raise Malformed("key ring: each line after the first must be 'key' and the key")
            keys.append(from_text(value, CLUSTER_KEY_BYTES, "key ring: key"))
        return cls(keys[0], keys[1:])

    def text(self) -> str:
        """The content of a key ring file. It holds secrets: keep its mode at 0600."""
        others = [key for key_id, key in self._keys.items() if key_id != self.used_id]
        return "\n".join([_FIRST_LINE, *(f"key {to_text(key)}" for key in (self.used, *others)), ""])
