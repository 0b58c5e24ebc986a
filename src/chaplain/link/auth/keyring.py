"""The cluster keys that a node accepts, and the one with which it authenticates.

The ring decides which changes are allowed, and records which keys are newer and which are older than the used one. It
does not know which other nodes have a key. The requester of a change ensures that every member has the new key before
the old one is removed.

Invariants: there is always a used key; the used key is installed; each other key is older or newer than it; at most
`KEYS_MAX` keys; no `repr` shows a key.
Text format: docs/identity.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from chaplain.errors import Malformed
from chaplain.link.auth.identity import from_text, to_text
from chaplain.link.errors import GreetingRefused

CLUSTER_KEY_BYTES = 32
KEY_ID_BYTES = 4
KEYS_MAX = 8

_FIRST_LINE = "chaplain keyring 1"
_KEY, _NEXT = "key", "next"


def key_id_of(key: bytes) -> bytes:
    """The public name of a cluster key: the first four octets of its SHA-256."""
    return hashlib.sha256(key).digest()[:KEY_ID_BYTES]


class KeyRing:
    """Starts with one used key, older keys that are still accepted, and newer keys that are not used yet."""

    __slots__ = ("_keys", "_newer", "used", "used_id")

    def __init__(self, used: bytes, others: Iterable[bytes] = (), newer: Iterable[bytes] = ()) -> None:
        self._keys: dict[bytes, bytes] = {}
        newer = tuple(newer)
        for key in (used, *others, *newer):
            if len(key) != CLUSTER_KEY_BYTES:
                raise ValueError(f"a cluster key has {CLUSTER_KEY_BYTES} octets, not {len(key)}")
            self._keys[key_id_of(key)] = key
        if len(self._keys) > KEYS_MAX:
            raise ValueError(f"a ring holds at most {KEYS_MAX} keys")
        self.used, self.used_id = used, key_id_of(used)
        self._newer = dict.fromkeys(key_id_of(key) for key in newer if key != used)
        """Keys that were installed after the used key came into use."""

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(key_id.hex() for key_id in self._keys)}; uses {self.used_id.hex()})"

    @property
    def ids(self) -> tuple[bytes, ...]:
        return tuple(self._keys)

    @property
    def newer_ids(self) -> tuple[bytes, ...]:
        """Keys that were installed and are not used yet: a rotation is unfinished."""
        return tuple(self._newer)

    @property
    def older_ids(self) -> tuple[bytes, ...]:
        """Keys from before the used one came into use. They only wait for their removal."""
        return tuple(key_id for key_id in self._keys if key_id != self.used_id and key_id not in self._newer)

    def get(self, key_id: bytes) -> bytes | None:
        return self._keys.get(key_id)

    def install(self, key: bytes) -> None:
        if len(key) != CLUSTER_KEY_BYTES:
            raise GreetingRefused("not a cluster key", octets=len(key))
        key_id = key_id_of(key)
        if self._keys.get(key_id, key) != key:
            raise GreetingRefused("another key has this id", key=key_id.hex())
        if len(self._keys) >= KEYS_MAX and key_id not in self._keys:
            raise GreetingRefused("the ring is full", keys_max=KEYS_MAX)
        if key_id not in self._keys:
            self._keys[key_id] = key
            self._newer[key_id] = None

    def use(self, key_id: bytes) -> None:
        key = self._keys.get(key_id)
        if key is None:
            raise GreetingRefused("the key is not installed", key=key_id.hex())
        if key_id != self.used_id:
            self.used, self.used_id = key, key_id
            self._newer.clear()

    def remove(self, key_id: bytes) -> None:
        if key_id not in self._keys:
            raise GreetingRefused("the key is not installed", key=key_id.hex())
        if key_id == self.used_id:
            raise GreetingRefused("the key is in use", key=key_id.hex())
        del self._keys[key_id]
        self._newer.pop(key_id, None)
        assert self.used_id in self._keys

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """Read the content of a key ring file: the used key first, then the others."""
        lines = text.split("\n")
        if lines[0] != _FIRST_LINE or lines[-1] or not 3 <= len(lines) <= KEYS_MAX + 2:
            raise Malformed(f"key ring: the first line must be {_FIRST_LINE!r}, then 1 to {KEYS_MAX} lines of key")
        keys: dict[str, list[bytes]] = {_KEY: [], _NEXT: []}
        for line in lines[1:-1]:
            word, _, value = line.partition(" ")
            if word not in keys or (word == _NEXT and not keys[_KEY]):
                raise Malformed(f"key ring: each line after the first must be {_KEY!r}, or later {_NEXT!r}, and a key")
            keys[word].append(from_text(value, CLUSTER_KEY_BYTES, "key ring: key"))
        used, *others = keys[_KEY]
        return cls(used, others, keys[_NEXT])

    def text(self) -> str:
        """The content of a key ring file. It contains secrets, so the file's mode must be 0600."""
        lines = [_FIRST_LINE]
        for word, key_ids in ((_KEY, (self.used_id, *self.older_ids)), (_NEXT, self.newer_ids)):
            lines += [f"{word} {to_text(self._keys[key_id])}" for key_id in key_ids]
        return "\n".join([*lines, ""])
