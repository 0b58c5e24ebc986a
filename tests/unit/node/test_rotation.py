"""A new cluster key reaches every ring and none is left behind, whoever was asked for it and whoever was down."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from msgspec.structs import replace

from chaplain.client_service.events import RotationWanted
from chaplain.gossip.events import KeyConfirmed, KeyStep, Rotated
from chaplain.link.auth.keyring import KEYS_MAX, KeyRing, key_id_of
from chaplain.link.events import InstallKey, RemoveKey, UseKey
from chaplain.link.settings import HMAC
from chaplain.node.keyring_store import NOT_ENCRYPTED, KeyRingStore
from tests.unit.node.test_node import NAMES, SECOND, Cluster

OLD, NEW, OTHER = (letter * 32 for letter in (b"k", b"n", b"o"))
MILLISECOND = SECOND // 1000


class Rotating(Cluster):
    def __init__(self) -> None:
        super().__init__()
        self.world.run(3 * SECOND)

    def rings(self) -> list[KeyRing]:
        return [self.node(name)._keyring.ring for name in NAMES if self.world.hosts[name].core is not None]

    def rotate(self, *names: str, seconds: int = 32) -> None:
        """Ask these, and wait until they have succeeded or given up."""
        for name in names:
            self.node(name)._rotate(RotationWanted(1))
        self.world.run(self.world.now_ns + seconds * SECOND)

    def run_until(self, reached: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if reached():
                return
            self.world.run(self.world.now_ns + MILLISECOND)
        raise AssertionError("it never came so far")

    def kill(self, name: str) -> None:
        self.world.crash(self.world.hosts[name], power=False)

    def start(self, name: str) -> None:
        self.world.start(self.world.hosts[name])
        self.world.run(self.world.now_ns + 15 * SECOND, self.all_know_all)

    def agreed(self) -> bool:
        """Every ring has one key, the same, and not the first one."""
        accepted = {ring.ids for ring in self.rings()}
        return len(accepted) == 1 and len(*accepted) == 1 and key_id_of(OLD) not in {*accepted.pop()}


def test_rotation_is_refused_without_encryption() -> None:
    cluster = Rotating()
    node = cluster.node("one")
    node.settings = replace(node.settings, link=replace(node.settings.link, seal=HMAC))
    node._rotate(RotationWanted(1))
    assert [event.reason for _, event in node._work if isinstance(event, Rotated)] == [NOT_ENCRYPTED]
    cluster.world.run(cluster.world.now_ns + 5 * SECOND)
    assert {ring.ids for ring in cluster.rings()} == {(key_id_of(OLD),)}


def test_rotation_started_by_one_node_is_continued_by_another() -> None:
    cluster = Rotating()
    cluster.kill("three")
    cluster.rotate("one")
    cluster.rotate("two")
    accepted = {ring.ids for ring in cluster.rings()}
    assert [len(ids) for ids in accepted] == [2], "the old key, and the one new one"
    cluster.start("three")
    cluster.rotate("four")
    assert cluster.agreed()
    assert {*cluster.rings()[0].ids} < {*accepted.pop()}


def test_rotation_started_by_an_absent_node_makes_a_new_key_and_retires_all_others() -> None:
    cluster = Rotating()
    cluster.kill("three")
    cluster.rotate("one")
    cluster.start("three")
    cluster.rotate("three")
    assert cluster.agreed()


@pytest.mark.parametrize("step", [KeyStep.INSTALL, KeyStep.USE])
def test_node_that_died_between_two_steps_takes_the_rest_on_a_repeat(step: KeyStep) -> None:
    cluster = Rotating()
    ring = cluster.node("three")._keyring.ring
    cluster.rotate("one", seconds=0)
    cluster.run_until(lambda: bool(ring.newer_ids if step is KeyStep.INSTALL else ring.older_ids))
    cluster.world.run(cluster.world.now_ns + MILLISECOND)
    cluster.kill("three")
    cluster.world.run(cluster.world.now_ns + 32 * SECOND)
    cluster.start("three")
    for name in ("two", "one"):
        cluster.rotate(name)
    assert cluster.agreed()
    assert cluster.all_know_all()


def test_two_simultaneous_rotations_end_with_one_key() -> None:
    cluster = Rotating()
    cluster.rotate("one", "two", "five", seconds=5)
    assert len({ring.used_id for ring in cluster.rings()}) == 1
    cluster.rotate("four", seconds=5)
    assert cluster.agreed()
    assert cluster.all_know_all()


def test_step_that_the_ring_refuses_is_not_confirmed() -> None:
    ring = KeyRing(OLD, newer=[bytes([number]) * 32 for number in range(1, KEYS_MAX)])
    keeper = KeyRingStore(ring, Random(1))
    assert keeper.confirmation_of(InstallKey(NEW)) is None
    assert keeper.confirmation_of(UseKey(key_id_of(NEW))) is None
    assert keeper.confirmation_of(RemoveKey(key_id_of(OLD))) is None
    assert keeper.confirmation_of(RemoveKey(key_id_of(NEW))) == KeyConfirmed(KeyStep.REMOVE, key_id_of(NEW))


@pytest.mark.parametrize(
    ("ring", "key", "retire"),
    [
        (KeyRing(OLD, newer=[NEW]), NEW, OLD),
        (KeyRing(NEW, [OLD]), NEW, OLD),
        (KeyRing(OLD, [OTHER], [NEW]), NEW, OLD),
    ],
)
def test_ring_determines_the_next_rotation_step(ring: KeyRing, key: bytes, retire: bytes) -> None:
    for again in (ring, KeyRing.parse(ring.text())):
        order = KeyRingStore(again, Random(1)).rotation(1, SECOND, ())
        assert (order.key, order.retire_key_id) == (key, key_id_of(retire))


def test_retirement_removes_older_keys_and_keeps_newer_ones() -> None:
    ring = KeyRing(OLD, newer=[OTHER])
    keeper = KeyRingStore(ring, Random(1))
    assert keeper.ring_changes(RemoveKey(key_id_of(OTHER))) == ()
    ring.install(NEW)
    ring.use(key_id_of(NEW))
    ring.install(b"x" * 32)
    retired = keeper.ring_changes(RemoveKey(key_id_of(OLD)))
    assert retired == (RemoveKey(key_id_of(OLD)), RemoveKey(key_id_of(OTHER)))
    ring.use(key_id_of(NEW))
    assert ring.newer_ids == (key_id_of(b"x" * 32),), "using what is used already makes nothing older"
