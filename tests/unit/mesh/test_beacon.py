"""Beacons: the datagram, whom it makes us dial, and what nobody can do with one."""

from __future__ import annotations

import hashlib
import hmac
import random

import pytest

from chaplain.core import Cast, Heard, Stopping, Woken
from chaplain.errors import Malformed
from chaplain.link.endpoint import split_endpoint
from chaplain.link.events import Forget, Meet, Met, Parted, Peer
from chaplain.mesh import beacon
from chaplain.mesh.beacon import Beacon, BeaconKeys, cluster_hash
from chaplain.mesh.core import MeshCore
from chaplain.mesh.events import Exited
from chaplain.mesh.settings import MeshSettings
from tests.unit.mesh.mesh_stage import OWN, SECOND, hello, only, peer

ANNA = peer(1)
NOW = 1_000 * SECOND


def sign(data: bytes, key: bytes = b"cluster key") -> bytes:
    return hmac.digest(key, data, hashlib.sha256)


KEYS = BeaconKeys(sign, lambda data, mac: hmac.compare_digest(sign(data), mac))


def make(**settings: int) -> MeshCore:
    return MeshCore(MeshSettings(**settings), random.Random(1), OWN, KEYS)  # type: ignore[arg-type]


def cast(who: Peer = ANNA, time_ns: int = NOW, port: int | None = None, cluster: str = "chaplain") -> Heard:
    address, own_port = split_endpoint(who.endpoint)
    shown = Beacon(
        cluster_hash(cluster), who.instance, who.identifier, time_ns, address, own_port if port is None else port
    )
    return Heard("127.0.0.1", beacon.encode(shown, sign))


def test_beacon_is_sent_at_once_and_then_every_second() -> None:
    core = make()
    assert core.deadline() == 0
    [effect] = core.step(NOW, Woken())
    assert isinstance(effect, Cast)
    shown = beacon.decode(effect.datagram, KEYS.verify)
    assert shown == Beacon(cluster_hash("chaplain"), OWN.instance, OWN.identifier, NOW, "127.0.0.1", 7200)
    due = core.deadline()
    assert due is not None
    assert NOW + SECOND <= due <= NOW + SECOND * 11 // 10
    assert core.step(due - 1, Woken()) == []


def test_no_beacons_are_sent_without_keys() -> None:
    core = MeshCore(MeshSettings(), random.Random(1), OWN)
    assert core.deadline() is None
    assert core.step(NOW, cast()) == []
    assert core.step(NOW, Woken()) == []


def test_new_neighbour_is_dialled_once() -> None:
    core = make()
    assert core.step(NOW, cast()) == [Meet(ANNA.endpoint)]
    assert core.step(NOW + 1, cast(time_ns=NOW + 1)) == []


def test_connected_or_wanted_node_is_not_dialled_for_a_beacon() -> None:
    core = make()
    core.step(NOW, Met(ANNA, hello()))
    assert core.step(NOW, cast()) == []
    core = make()
    core.step(NOW, Meet(ANNA.endpoint))
    assert core.step(NOW, cast()) == []


@pytest.mark.parametrize("age_s", [-61, 61])
def test_beacons_outside_the_time_window_are_ignored(age_s: int) -> None:
    assert make().step(NOW, cast(time_ns=NOW - age_s * SECOND)) == []
    assert make().step(NOW, cast(time_ns=NOW - age_s * SECOND * 59 // 61)) == [Meet(ANNA.endpoint)]


def test_replayed_beacon_is_ignored() -> None:
    core = make()
    core.step(NOW, cast())
    core.step(NOW + 1, cast(time_ns=NOW + 1, port=0))
    assert core.step(NOW + 2, cast()) == []
    assert core.counts["beacons_replayed"] == 1


def test_own_beacons_and_those_of_other_clusters_are_ignored() -> None:
    core = make()
    assert core.step(NOW, cast(OWN)) == []
    assert core.step(NOW, cast(Peer(b"x" * 16, 5, b"", OWN.endpoint))) == [], "never dial ourselves"
    assert core.step(NOW, cast(cluster="other")) == []


def test_forged_and_truncated_beacons_are_counted() -> None:
    core = make()
    whole = cast().datagram
    for position in range(len(whole)):
        broken = whole[:position] + bytes((whole[position] ^ 1,)) + whole[position + 1 :]
        assert core.step(NOW + position * SECOND, Heard("127.0.0.1", broken)) == []
    for size in range(len(whole)):
        assert core.step(NOW + size * SECOND, Heard("127.0.0.1", whole[:size])) == []
    assert core.counts["beacons_malformed"] == 2 * len(whole)
    with pytest.raises(Malformed, match="1201"):
        beacon.decode(bytes(1201), KEYS.verify)


def test_signed_beacon_with_invalid_fields_is_malformed() -> None:
    for signed in (b"CHPB\x01", b"CHPB\x01" + bytes(60), cast().datagram[:-32] + b"more"):
        with pytest.raises(Malformed):
            beacon.decode(signed + sign(signed), KEYS.verify)


def test_leave_beacon_stops_the_dialling() -> None:
    core = make()
    core.step(NOW, cast())
    assert core.step(NOW + 1, cast(time_ns=NOW + 1, port=0)) == [Forget(ANNA.endpoint)]
    assert core.step(NOW + 2, cast(time_ns=NOW + 2, port=0)) == []
    assert core.step(NOW + 3, cast(time_ns=NOW + 3)) == [Meet(ANNA.endpoint)], "it changed its mind"


def test_leave_beacon_ends_no_session_and_is_applied_when_it_ends() -> None:
    core = make()
    core.step(NOW, cast())
    core.step(NOW, Met(ANNA, hello()))
    assert core.step(NOW + 1, cast(time_ns=NOW + 1, port=0)) == []
    assert core.step(NOW + 2, Parted(ANNA, "hung up", 0)) == [Exited(ANNA, "hung up"), Forget(ANNA.endpoint)]


def test_leave_beacon_of_an_unknown_node_has_no_effect() -> None:
    assert make().step(NOW, cast(port=0)) == []


def test_neighbour_without_beacons_is_no_longer_dialled() -> None:
    core = make()
    core.step(NOW, cast())
    assert only(Forget, core.step(NOW + 59 * SECOND, Woken())) == []
    assert only(Forget, core.step(NOW + 61 * SECOND, Woken())) == [Forget(ANNA.endpoint)]


def test_new_instance_at_the_same_endpoint_keeps_being_dialled() -> None:
    core = make()
    core.step(NOW, cast())
    reborn = peer(1, run=1)
    assert core.step(NOW + SECOND, cast(reborn, NOW + SECOND)) == [Meet(ANNA.endpoint)]
    assert only(Forget, core.step(NOW + 60 * SECOND, Woken())) == []
    core.step(NOW + 60 * SECOND, Met(reborn, hello()))
    assert only(Forget, core.step(NOW + 62 * SECOND, Woken())) == []


def test_neighbour_that_moved_is_dialled_at_its_new_endpoint() -> None:
    core = make()
    core.step(NOW, cast())
    moved = cast(Peer(ANNA.instance, 1, b"", "tcp://127.0.0.1:9999"), NOW + 1)
    assert core.step(NOW + 1, moved) == [Forget(ANNA.endpoint), Meet("tcp://127.0.0.1:9999")]


def test_neighbour_that_was_given_up_is_dialled_at_its_next_beacon() -> None:
    core = make(beacon_ns=100 * SECOND)
    core.step(NOW, cast())
    core.step(NOW, Met(ANNA, hello()))
    for second in range(0, 31, 5):
        effects = core.step(NOW + second * SECOND, Woken())
    assert effects[:2] == [Exited(ANNA, "silent"), Forget(ANNA.endpoint)]
    assert core.step(NOW + 31 * SECOND, cast(time_ns=NOW + 31 * SECOND)) == [Meet(ANNA.endpoint)]


def test_neighbours_and_datagrams_are_bounded() -> None:
    core = make(beacons_max=2, beacons_per_second_max=4)
    effects = [core.step(NOW, cast(peer(number))) for number in range(1, 6)]
    assert [len(each) for each in effects] == [1, 1, 0, 0, 0]
    assert core.counts["beacons_over_bound"] == 2
    assert core.counts["beacons_over_rate"] == 1
    assert core.step(NOW + SECOND, cast(peer(1), NOW + 1)) == []
    assert core.counts["beacons_heard"] == 5


def test_stopping_node_sends_a_last_beacon_with_port_zero() -> None:
    core = make()
    core.step(NOW, Woken())
    [effect] = core.step(NOW, Stopping())
    assert isinstance(effect, Cast)
    shown = beacon.decode(effect.datagram, KEYS.verify)
    assert shown.port == 0
    assert shown.time_ns > NOW, "later than the beacon before it, though the clock stood still"
    assert core.deadline() is None
