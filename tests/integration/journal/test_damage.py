"""Damaged, missing and wiped files: one node of three repairs itself; two of three do not pretend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaplain import Client
from chaplain.errors import ChaplainError
from tests.integration.journal.support import damage
from tests.integration.journal.support.history import read_all
from tests.integration.journal.support.scenes import find_master, status, three, wait_until_same
from tests.support.process_cluster import Cluster, Node, throughout, until

pytestmark = pytest.mark.timeout(300)
SMALL = "[journal]\nsegment_bytes = 65536"
SILENT_S = 3.0


def fill(cluster: Cluster, count: int, size_bytes: int = 2000) -> list[bytes]:
    values = [b"%d " % number + bytes(size_bytes) for number in range(count)]
    with Client.connect(cluster.directory, timeout=30) as client:
        for value in values:
            client.journal("load").write(value)
    return values


def delete_one(node: Node) -> None:
    damage.segments(node)[1].unlink()


def delete_first(node: Node) -> None:
    damage.segments(node)[0].unlink()


def delete_log(node: Node) -> None:
    """Everything but what says that there was a log."""
    for file in damage.segments(node):
        file.unlink()
    (node.folder / "segments" / "journal.jot").unlink()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory):
    with three(tmp_path_factory.mktemp("damage") / "three", SMALL) as cluster:
        fill(cluster, 120)
        yield cluster


@pytest.mark.parametrize(
    "harm",
    [damage.flip_in_the_middle, damage.flip_last_message, delete_one, delete_first, delete_log, damage.wipe],
    ids=lambda harm: harm.__name__,
)
def test_damaged_node_of_three_repairs_itself(filled: Cluster, harm: Callable[[Node], None]) -> None:
    wait_until_same(filled)
    victim = next(node for node in filled if node is not find_master(filled))
    assert len(damage.segments(victim)) > 2
    victim.kill()
    harm(victim)
    before = len(read_all(filled.directory, find_master(filled).number))
    with Client.connect(filled.directory, timeout=30) as client:
        client.journal("load").write(b"while it is down")
        victim.start()
        until(victim.ready, "the victim serves")
        wait_until_same(filled)
        client.journal("load").write(b"and with it")
    wait_until_same(filled)
    readings = [read_all(filled.directory, node.number) for node in filled]
    assert len(readings[0]) == before + 2
    assert readings[0] == readings[1] == readings[2]
    other = next(node for node in filled.others(victim.number) if node is not find_master(filled))
    other.kill()  # now it takes both others, the victim among them
    with Client.connect(filled.directory, timeout=30) as client:
        client.journal("load").write(b"with the victim's vote")
    other.start()


def test_damage_found_by_a_reader_is_repaired_while_the_node_runs(filled: Cluster) -> None:
    wait_until_same(filled)
    victim = next(node for node in filled if node is not find_master(filled))
    whole = read_all(filled.directory, find_master(filled).number)
    damage.flip_in_the_middle(victim)
    assert read_all(filled.directory, victim.number) == whole
    until(
        lambda: bool(victim.lines("repaired: a damaged message can be read again")), "it says that it mended something"
    )
    until(lambda: status(victim).get("standing") == "sound", "the victim is sound")


def test_wiped_node_has_no_vote_until_it_has_caught_up(filled: Cluster) -> None:
    wait_until_same(filled)
    master = find_master(filled)
    victim, other = filled.others(master.number)
    for node in (victim, other):
        node.kill()
    damage.wipe(victim)
    victim.start()  # with the master it would be a quorum, if it counted
    until(victim.ready, "the wiped one serves")
    until(lambda: bool(victim.lines("no vote until caught up with a quorum")), "it says that it has no vote")

    def without_vote() -> bool:
        seen = status(victim)
        wiped = str(seen.get("standing")).startswith("wiped")
        return wiped and seen.get("order") == "out" and status(master).get("master") is False

    until(without_vote, "the wiped one has no vote, and its master no quorum")
    with pytest.raises(ChaplainError), Client.connect(filled.directory, timeout=2) as client:
        client.journal("load").write(b"not acknowledged by one and a wiped one")
    until(without_vote, "and so it stays")
    other.start()
    wait_until_same(filled)


@pytest.mark.parametrize("harm", [damage.flip_last_message, delete_log], ids=lambda harm: harm.__name__)
def test_two_damaged_nodes_of_three_stop_with_a_report(tmp_path: Path, harm: Callable[[Node], None]) -> None:
    with three(tmp_path / "three", SMALL) as cluster:
        fill(cluster, 5)
        cluster[3].kill()
        fill(cluster, 1)  # agreed by two alone
        for node in (cluster[1], cluster[2]):
            node.kill()
            harm(node)
        cluster.start()
        until(lambda: all(node.ready() for node in cluster), "all serve")

        def nobody_goes_on() -> bool:
            seen = [status(node) for node in cluster]
            return not any(one.get("master") for one in seen) and all(
                one.get("standing") != "sound" for one in seen[:2]
            )

        throughout(SILENT_S, nobody_goes_on, "somebody goes on without what was acknowledged")
        with pytest.raises(ChaplainError), Client.connect(cluster.directory, timeout=3) as client:
            client.journal("load").write(b"not to be acknowledged")
        assert nobody_goes_on()
        for node in (cluster[1], cluster[2]):
            said = node.lines("damaged: messages are missing and will be fetched")
            said += node.lines("lost what was acknowledged: no vote until caught up")
            assert said, node.text()[-2000:]
            assert any("range" in line or "reason" in line for line in said)
