"""Fingerprints that can be compared though nodes go on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chaplain.journal.snapshots import fingerprints
from chaplain.journal.snapshots.fingerprints import APART, KEPT, Fingerprints, common
from tests.support.execution_stage import pack
from tests.support.journal_cluster import Client, Cluster


@given(st.integers(1, 5 * APART), st.integers(0, (KEPT - 1) * APART))
def test_nearby_nodes_have_a_common_fingerprint_position(behind: int, ahead: int) -> None:
    held: dict[int, dict[int, str]] = {}
    for node, last in (1, behind), (2, behind + ahead):
        position = [0]
        made = Fingerprints(lambda at=position: b"%d" % at[0])
        for position[0] in range(1, last + 1):
            if position[0] % APART == 0:
                made.add(position[0])
        given_out = made.at(last)
        assert len(given_out) <= KEPT + 1
        assert all(found == b"%d" % at for at, found in given_out.items())
        held[node] = {at: found.decode() for at, found in given_out.items()}
    position_found, found = common(held)
    if behind >= APART or not ahead:
        assert found == {1: str(position_found), 2: str(position_found)}


def test_latest_of_equally_common_positions_is_compared() -> None:
    assert common({1: {5: "a", 9: "b"}, 2: {5: "a", 9: "b"}, 3: {5: "a", 7: "c"}}) == (5, {1: "a", 2: "a", 3: "a"})
    assert common({1: {5: "a", 9: "b"}, 2: {5: "a", 9: "c"}}) == (9, {1: "b", 2: "c"})
    assert common({}) == (0, {})


def test_executors_store_fingerprints_of_the_same_positions(monkeypatch) -> None:
    monkeypatch.setattr(fingerprints, "APART", 4)
    cluster = Cluster()
    cluster.elect()
    client = Client(cluster).connect(1)
    lane = client.lease()
    for number in range(1, 22):
        client.write(pack(lane, number))
        cluster.settle()
    cluster.agree()
    cores = [node.core for node in cluster.nodes.values()]
    held = [core.fingerprints.at(core.serializer.agreed[0]) for core in cores]
    assert held[0] == held[1] == held[2]
    assert sum(position % 4 == 0 for position in held[0]) == KEPT
    assert len(set(held[0].values())) == len(held[0])
