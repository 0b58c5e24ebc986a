"""Decides which key ring a node starts with: the configured file, or the rotated one in the data directory.

Both are the same file in the layout of `cluster up`. If they are two files, the rotated ring wins, because rotation has
retired the keys of the configured one. But an operator may have replaced the configured file because a key leaked; the
node must not silently continue with the leaked key (docs/decisions/cluster-key-rotation.md).
`keyring.origin` distinguishes the two cases: it contains the ids of the keys that were configured when rotation
began. If the configured file has changed since then and shares no key with the rotated ring, the node refuses to
start.
"""

from __future__ import annotations

from pathlib import Path

from chaplain import durable
from chaplain.errors import ConfigError
from chaplain.link.auth.keyring import KeyRing
from chaplain.node.keyring_store import KEYRING_FILE
from chaplain.runtime.secret_files import read_keyring

ORIGIN_FILE = "keyring.origin"
"""The ids of the keys that were configured when rotation began. Key ids are not secret."""


def choose_keyring(configured: Path, data: Path) -> KeyRing:
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
            conflict = f"{configured} was replaced, but {rotated} takes precedence since keys were rotated"
            raise ConfigError(f"{conflict}: remove {rotated} to use the new key, or restore the former {configured}")
    return ring


def _ids(ring: KeyRing) -> str:
    return "".join(f"{key_id.hex()}\n" for key_id in ring.ids)
