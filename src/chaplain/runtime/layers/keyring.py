"""Which key ring a node starts with: the one that is configured, or what rotations made of it in the data directory.

Where both are one file, as `cluster up` lays them out, there is nothing to choose. Where they are two, the rotated one
goes before the other, which by then has only keys that are retired; so somebody who replaces the configured one,
because a key leaked, must not be left with the leaked key
(docs/decisions/cluster-key-rotation.md). Key ids beside the rotated ring tell the two
cases apart.
"""

from __future__ import annotations

from pathlib import Path

from chaplain import durable
from chaplain.errors import ConfigError
from chaplain.link.auth.keyring import KeyRing
from chaplain.node.keyring_store import KEYRING_FILE
from chaplain.runtime.secret_files import read_keyring

ORIGIN_FILE = "keyring.origin"
"""The ids of the keys that were configured when the rotated ring was begun. No secret."""


def choose_ring(configured: Path, data: Path) -> KeyRing:
    rotated, origin = data / KEYRING_FILE, data / ORIGIN_FILE
    if configured == rotated.resolve():
        return read_keyring(configured)
    if not rotated.exists():
        ring = read_keyring(configured)
        durable.put(origin, _ids(ring))
        return ring
    ring = read_keyring(rotated)
    began_with = origin.read_text() if origin.exists() else ""
    if configured.exists() and began_with:
        given = read_keyring(configured)
        if _ids(given) != began_with and not {*given.ids} & {*ring.ids}:
            said = f"{configured} was replaced, but {rotated} goes before it since keys were rotated"
            raise ConfigError(f"{said}: remove {rotated} to use the new key, or put the former {configured} back")
    return ring


def _ids(ring: KeyRing) -> str:
    return "".join(f"{key_id.hex()}\n" for key_id in ring.ids)
