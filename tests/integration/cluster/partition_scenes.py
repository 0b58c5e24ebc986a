"""What partitions do to the membership list. Promised: one view again within 10 s of the heal, with no restart; and a
cut in one direction between two nodes evicts nobody, because the others speak for both.
"""

from __future__ import annotations

import time

from tests.integration.cluster.membership_scenes import SLACK_S
from tests.support.network_namespaces import Wires
from tests.support.process_cluster import Cluster, Node, promised, until

HEAL_S = 10.0


def halves_meet_again(
    cluster: Cluster, wires: Wires, halves: tuple[tuple[int, ...], tuple[int, ...]], *, silence_s: float, seconds: float
) -> float:
    """Cut for so long; seconds from the heal until all nodes of both halves hold each other for alive."""
    one, other = halves
    living = [cluster[number] for number in (*one, *other)]
    pids = [node.pid for node in living]
    cut_s = time.time()
    wires.split(one, other)
    whole_cut_s = time.time()
    across = [(a, b) for a in one for b in other] + [(b, a) for a in one for b in other]
    until(
        lambda: all(cluster[here].when(there, "left", cut_s) is not None for here, there in across),
        "each half holds the other for gone",
    )
    lost_s = [(cluster[here].when(there, "left", cut_s) or 0.0) - whole_cut_s for here, there in across]
    assert max(lost_s) <= promised(2 * silence_s + SLACK_S), lost_s
    until(lambda: time.time() >= cut_s + seconds, "the partition has lasted long enough", seconds + 10)
    assert all((here in one) == (there in one) for here, there in _alive(living)), "nobody sees across the cut"
    assert {change.peer for number, change in cluster.ever_left(cut_s) if number in one} == {*other}
    assert {change.peer for number, change in cluster.ever_left(cut_s) if number in other} == {*one}
    wires.heal()
    healed_s = time.time()
    everyone = dict.fromkeys((*one, *other), "alive")
    until(lambda: all({**node.members(), **everyone} == node.members() for node in living), "one view again")
    # The rules go one node after the other, so the last change may come before the last rule is gone.
    took_s = max([healed_s, *(change.at_s for node in living for change in node.changes(healed_s))]) - healed_s
    assert took_s <= promised(HEAL_S), took_s
    assert [node.pid for node in living] == pids
    return took_s


def _alive(living: list[Node]) -> list[tuple[int, int]]:
    return [(node.number, peer) for node in living for peer, state in node.members().items() if state == "alive"]


def one_way_cut(cluster: Cluster, wires: Wires, sender: int, receiver: int, seconds: float) -> int:
    """Nothing from one reaches the other for so long; how often anybody was suspected. Nobody may be evicted."""
    cut_s = time.time()
    wires.cut([sender], [receiver])
    until(lambda: time.time() >= cut_s + seconds, "the cut has lasted long enough", seconds + 10)
    assert cluster.ever_left(cut_s) == []
    wires.heal()
    everyone = dict.fromkeys(cluster.nodes, "alive")
    until(lambda: all(node.members() == everyone for node in cluster), "all hold all for alive")
    assert cluster.ever_left(cut_s) == []
    return sum(change.state == "suspect" for node in cluster for change in node.changes(cut_s))
