"""The node's key ring: its file, its use in beacons, and the key of a rotation.

It decides which key a rotation is for. An unfinished rotation, wherever it was started, is resumed; otherwise every
attempt would leave another key on every member's ring. The ring is the only record of a rotation, so that every node
with the new key can resume it, also after a restart (docs/decisions/cluster-key-rotation.md).
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
"""The runtime reads the ring from this file at the next start."""
NOT_ENCRYPTED = "frames can be read on the way here (seal hmac-sha256): put a new key on every node by hand"
"""Why a new key is not sent to other nodes."""
_BEACON_LABEL = b"chaplain beacon"


class KeyRingStore:
    def __init__(self, ring: KeyRing, rng: Random) -> None:
        self.ring = ring
        self._rng = rng

    def rotation(self, call: int, timeout_ns: int, configured: tuple[int, ...]) -> RotateKey:
        key, retire = self._unfinished_rotation() or (self._rng.randbytes(CLUSTER_KEY_BYTES), self.ring.used_id)
        return RotateKey(call, key, key_id_of(key), retire, timeout_ns, configured)

    def _unfinished_rotation(self) -> tuple[bytes, bytes] | None:
        """The new key of a rotation that is unfinished here, and the id of the key to retire."""
        ring = self.ring
        if ring.newer_ids:
            key = ring.get(min(ring.newer_ids))  # nodes with the same newer keys choose the same one
            assert key is not None
            return key, ring.used_id
        return (ring.used, ring.older_ids[0]) if ring.older_ids else None

    def ring_changes(self, change: InstallKey | UseKey | RemoveKey) -> tuple[InstallKey | UseKey | RemoveKey, ...]:
        """The changes of the ring for one rotation step: a key is retired together with all older ones.

        A key that is newer than the used one belongs to another rotation, and this rotation must not undo that one.
        """
        if not isinstance(change, RemoveKey):
            return (change,)
        older = self.ring.older_ids
        return tuple(RemoveKey(key_id) for key_id in older) if change.key_id in older else ()

    def confirmation_of(self, change: InstallKey | UseKey | RemoveKey) -> KeyConfirmed | None:
        """The confirmation to send once the change is on disk; None if the ring refused the change."""
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
    """Beacons are signed with the used key and verified with every installed one."""

    def mac(key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, _BEACON_LABEL + data, "sha256")

    def verify(data: bytes, given: bytes) -> bool:
        keys = [ring.get(key_id) for key_id in ring.ids]
        return any(hmac.compare_digest(mac(key, data), given) for key in keys if key is not None)

    return BeaconKeys(lambda data: mac(ring.used, data), verify)
