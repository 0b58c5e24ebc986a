"""The node's key ring: what of it goes to disk, into beacons, and into a rotation.

Decides which key a rotation is for: one that was begun anywhere and not finished is gone on with, or every attempt
would leave a key behind on every member's ring. Nothing but the ring is remembered of it, so any node that was given
the new key can go on, also after a restart (decision 0156).
"""

from __future__ import annotations

import hmac
from random import Random

from chaplain.core import Replace
from chaplain.gossip.events import KeyConfirmed, KeyStep, RotateKey
from chaplain.link.auth.keyring import CLUSTER_KEY_BYTES, KeyRing, key_id_of
from chaplain.link.events import InstallKey, RemoveKey, UseKey
from chaplain.mesh.beacon import BeaconKeys

KEYRING_FILE = "keyring"
"""Where the runtime reads the ring at the next start."""
READABLE = "frames can be read on the way here (seal hmac-sha256): put a new key on every node by hand"
"""Why a new key is not sent to anybody."""
_BEACON_LABEL = b"chaplain beacon"


class RingKeeper:
    def __init__(self, ring: KeyRing, rng: Random) -> None:
        self.ring = ring
        self._rng = rng

    def rotation(self, call: int, timeout_ns: int, configured: tuple[int, ...]) -> RotateKey:
        key, retire = self._begun() or (self._rng.randbytes(CLUSTER_KEY_BYTES), self.ring.used_id)
        return RotateKey(call, key, key_id_of(key), retire, timeout_ns, configured)

    def _begun(self) -> tuple[bytes, bytes] | None:
        """A rotation that is not finished here: its new key, and the id of one to retire."""
        ring = self.ring
        if ring.newer_ids:
            key = ring.get(min(ring.newer_ids))  # the same one wherever the same ones are
            assert key is not None
            return key, ring.used_id
        return (ring.used, ring.older_ids[0]) if ring.older_ids else None

    def changes(self, change: InstallKey | UseKey | RemoveKey) -> tuple[InstallKey | UseKey | RemoveKey, ...]:
        """What a step of a rotation is for the ring: with the key to retire go all that are as old.

        One that is newer than the used one is another rotation's, and that is not for this one to undo.
        """
        if not isinstance(change, RemoveKey):
            return (change,)
        older = self.ring.older_ids
        return tuple(RemoveKey(key_id) for key_id in older) if change.key_id in older else ()

    def taken(self, change: InstallKey | UseKey | RemoveKey) -> KeyConfirmed | None:
        """What may be said of a change once it would outlive a restart; nothing if the ring refused it."""
        ring = self.ring
        match change:
            case InstallKey():
                step, key_id = KeyStep.INSTALL, key_id_of(change.key)
                done = ring.get(key_id) == change.key
            case UseKey():
                step, key_id = KeyStep.USE, change.key_id
                done = ring.used_id == key_id
            case RemoveKey():
                step, key_id = KeyStep.REMOVE, change.key_id
                done = ring.get(key_id) is None
        return KeyConfirmed(step, key_id) if done else None

    def file(self) -> Replace:
        return Replace(KEYRING_FILE, self.ring.text().encode())


def beacon_keys(ring: KeyRing) -> BeaconKeys:
    """Beacons are made with the used key and believed under any installed one."""

    def mac(key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, _BEACON_LABEL + data, "sha256")

    def verify(data: bytes, given: bytes) -> bool:
        keys = [ring.get(key_id) for key_id in ring.ids]
        return any(hmac.compare_digest(mac(key, data), given) for key in keys if key is not None)

    return BeaconKeys(lambda data: mac(ring.used, data), verify)
