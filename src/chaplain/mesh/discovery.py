"""Discovery by beacon: decides when to send our beacon, and which nodes to dial because of theirs.

It does not know sessions; the core tells it which peers are present and which endpoints the layers above want.

Invariants:
- a beacon never ends a session, because any holder of the cluster key can forge one for another node. A beacon that
  announces a leave only stops dialling, and only when there is no session;
- it forgets only endpoints that it requested itself;
- of each instance it processes only beacons with a later time than the last one;
- it remembers at most `beacons_max` neighbours, and forgets each after `beacon_age_ns` without a beacon.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Callable

from chaplain.core import Cast, Heard, Report
from chaplain.errors import Malformed
from chaplain.link.endpoint import split_endpoint
from chaplain.link.events import Forget, Meet, Peer
from chaplain.mesh import beacon as codec
from chaplain.mesh.beacon import Beacon, BeaconKeys, Sighting
from chaplain.mesh.settings import MeshSettings
from chaplain.units import SECOND_NS

DiscoveryEffect = Cast | Meet | Forget | Report


class BeaconDiscovery:
    def __init__(
        self,
        settings: MeshSettings,
        rng: random.Random,
        own: Peer,
        *,
        keys: BeaconKeys,
        counts: Counter[str],
        is_known: Callable[[bytes, str], bool],
    ) -> None:
        """`is_known(instance, endpoint)`: a session with either is up, or the layers above want the endpoint."""
        self._settings = settings
        self._rng = rng
        self._own = own
        self._address, self._port = split_endpoint(own.endpoint)
        self._cluster = codec.cluster_hash(settings.cluster)
        self._keys = keys
        self._counts = counts
        self._is_known = is_known
        self._sightings: OrderedDict[bytes, Sighting] = OrderedDict()
        self._due_ns: int | None = 0
        self._cast_time_ns = 0
        self._window_ns = 0
        self._window_count = 0

    def deadline(self) -> int | None:
        return self._due_ns

    def on_woken(self, now_ns: int) -> list[DiscoveryEffect]:
        if self._due_ns is None or now_ns < self._due_ns:
            return []
        # A jitter of up to a tenth of the interval. Otherwise nodes that started together would always send together.
        self._due_ns = now_ns + self._settings.beacon_ns + self._rng.randrange(self._settings.beacon_ns // 10 + 1)
        return [self._cast(now_ns, self._port), *self._expire(now_ns)]

    def on_stopping(self, now_ns: int) -> list[DiscoveryEffect]:
        self._due_ns = None
        return [self._cast(now_ns, 0)]

    def on_parted(self, instance: bytes) -> list[DiscoveryEffect]:
        """The session has ended. If the node announced that it is leaving, do not dial it again."""
        sighting = self._sightings.get(instance)
        return self._remove(instance, sighting) if sighting is not None and sighting.leaving else []

    def on_forgotten(self, instance: bytes) -> None:
        """The core removed the silent node and stopped dialling it. Its next beacon counts as its first."""
        self._sightings.pop(instance, None)

    def on_beacon(self, now_ns: int, heard: Heard) -> list[DiscoveryEffect]:
        beacon = self._read(now_ns, heard)
        if beacon is None:
            return []
        last = self._sightings.get(beacon.instance)
        if last is not None and beacon.time_ns <= last.time_ns:
            self._counts["beacons_replayed"] += 1
            return []
        self._counts["beacons_heard"] += 1
        return self._on_leaving(now_ns, beacon, last) if beacon.port == 0 else self._on_present(now_ns, beacon, last)

    def _cast(self, now_ns: int, port: int) -> Cast:
        self._cast_time_ns = max(now_ns + self._settings.epoch_ns, self._cast_time_ns + 1)
        self._counts["beacons_cast"] += 1
        own = self._own
        beacon = Beacon(self._cluster, own.instance, own.identifier, self._cast_time_ns, self._address, port)
        return Cast(codec.encode(beacon, self._keys.sign))

    def _expire(self, now_ns: int) -> list[DiscoveryEffect]:
        effects: list[DiscoveryEffect] = []
        while self._sightings:
            instance, sighting = next(iter(self._sightings.items()))
            if sighting.seen_ns + self._settings.beacon_age_ns > now_ns:
                break
            effects += self._remove(instance, sighting)
        return effects

    def _remove(self, instance: bytes, sighting: Sighting) -> list[DiscoveryEffect]:
        del self._sightings[instance]
        return self._forget(instance, sighting.endpoint)

    def _forget(self, instance: bytes, endpoint: str) -> list[DiscoveryEffect]:
        """Stop dialling, unless another instance uses the endpoint: a restarted node has a new instance there."""
        others = (seen for other, seen in self._sightings.items() if other != instance)
        in_use = any(seen.endpoint == endpoint and not seen.leaving for seen in others)
        return [] if in_use or self._is_known(instance, endpoint) else [Forget(endpoint)]

    def _read(self, now_ns: int, heard: Heard) -> Beacon | None:
        """Decode the beacon. Returns None if it is malformed, old, of another cluster, or our own."""
        if self._too_many(now_ns):
            self._counts["beacons_over_rate"] += 1
            return None
        try:
            beacon = codec.decode(heard.datagram, self._keys.verify)
        except Malformed:
            self._counts["beacons_malformed"] += 1
            return None
        if beacon.instance == self._own.instance or beacon.endpoint == self._own.endpoint:
            return None
        age_ns = now_ns + self._settings.epoch_ns - beacon.time_ns
        if beacon.cluster != self._cluster or abs(age_ns) > self._settings.beacon_age_ns:
            self._counts["beacons_foreign_or_old"] += 1
            return None
        return beacon

    def _too_many(self, now_ns: int) -> bool:
        if now_ns - self._window_ns >= SECOND_NS:
            self._window_ns, self._window_count = now_ns, 0
        self._window_count += 1
        return self._window_count > self._settings.beacons_per_second_max

    def _on_present(self, now_ns: int, beacon: Beacon, last: Sighting | None) -> list[DiscoveryEffect]:
        if last is None and len(self._sightings) >= self._settings.beacons_max:
            self._counts["beacons_over_bound"] += 1
            return []
        self._sightings[beacon.instance] = Sighting(now_ns, beacon.time_ns, beacon.endpoint, leaving=False)
        self._sightings.move_to_end(beacon.instance)
        if last is not None and last.endpoint == beacon.endpoint and not last.leaving:
            return []
        effects: list[DiscoveryEffect] = []
        if last is not None and last.endpoint != beacon.endpoint:
            effects += self._forget(beacon.instance, last.endpoint)
        if not self._is_known(beacon.instance, beacon.endpoint):
            effects.append(Meet(beacon.endpoint))
        return effects

    def _on_leaving(self, now_ns: int, beacon: Beacon, last: Sighting | None) -> list[DiscoveryEffect]:
        if last is None:
            return []
        gone = Sighting(now_ns, beacon.time_ns, last.endpoint, leaving=True)
        self._sightings[beacon.instance] = gone
        self._sightings.move_to_end(beacon.instance)
        # The entry remains until it expires, so that a late copy of an earlier beacon does not make us dial again.
        return [] if last.leaving else self._forget(beacon.instance, last.endpoint)
