"""The node's key ring: what of it goes to disk, into beacons, and into a rotation.

Decides which key a rotation is for: one that was begun and not finished is gone on with, or every attempt would leave
a key behind on every member's ring.
"""

from __future__ import annotations

import hmac
from random import Random

from chaplain.core import Replace
from chaplain.gossip.events import KeyConfirmed, KeyStep, RotateKey
from chaplain.link.events import InstallKey, RemoveKey, UseKey
from chaplain.link.keyring import CLUSTER_KEY_BYTES, KeyRing, key_id_of
from chaplain.mesh.beacon import BeaconKeys

KEYRING_FILE = "keyring"
"""Where the runtime reads the ring at the next start."""
_BEACON_LABEL = b"chaplain beacon"


class RingKeeper:
    def __init__(self, ring: KeyRing, rng: Random) -> None:
        self.ring = ring
        self._rng = rng
        self._begun: tuple[bytes, bytes] | None = None
        """A rotation that is not known to be finished: the new key, and the id of the one to retire."""

    def rotation(self, call: int, timeout_ns: int, configured: tuple[int, ...]) -> RotateKey:
        if self._begun is None:
            self._begun = (self._rng.randbytes(CLUSTER_KEY_BYTES), self.ring.used_id)
        key, retire = self._begun
        return RotateKey(call, key, key_id_of(key), retire, timeout_ns, configured)

    def done(self) -> None:
        self._begun = None

    def file(self) -> Replace:
        return Replace(KEYRING_FILE, self.ring.text().encode())


def confirmation(change: InstallKey | UseKey | RemoveKey) -> KeyConfirmed:
    """What may be said of a change once it would outlive a restart."""
    match change:
        case InstallKey():
            return KeyConfirmed(KeyStep.INSTALL, key_id_of(change.key))
        case UseKey():
            return KeyConfirmed(KeyStep.USE, change.key_id)
        case RemoveKey():
            return KeyConfirmed(KeyStep.REMOVE, change.key_id)


def beacon_keys(ring: KeyRing) -> BeaconKeys:
    """Beacons are made with the used key and believed under any installed one."""

    def mac(key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, _BEACON_LABEL + data, "sha256")

    def verify(data: bytes, given: bytes) -> bool:
        keys = [ring.get(key_id) for key_id in ring.ids]
        return any(hmac.compare_digest(mac(key, data), given) for key in keys if key is not None)

    return BeaconKeys(lambda data: mac(ring.used, data), verify)
