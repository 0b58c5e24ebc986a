"""What becomes of the membership list when nodes come, die, stop and go on. Each scene checks and answers what it took.

T is `gossip.silence_seconds`. Promised: all know all 2 s after the last one serves; a killed node is listed as left by
every survivor 2T + 1 s later at the most, and nobody else ever is; restarted it is back within 2 s; one that
stands still for 1.5T is suspected, never removed, and back at once.
"""

from __future__ import annotations

import signal

from tests.support.process_cluster import SILENCE_S, Cluster, Node, promised, throughout, until

MEET_S = 2.0
SLACK_S = 1.0
AT_ONCE_S = 1.0
"""After standing still a node speaks as soon as it runs; what is allowed on top is a heartbeat."""


def all_meet(cluster: Cluster) -> float:
    """From the last `serving` line to the last one that met somebody."""
    served_s = max(node.lines("serving")[0]["at_s"] for node in cluster)
    met_s = max(_first(node, other.number, "alive", 0.0) for node in cluster for other in cluster.others(node.number))
    return max(0.0, met_s - served_s)


def one_dies(cluster: Cluster, victim: int, silence_s: float = SILENCE_S) -> list[float]:
    """kill -9; seconds until each survivor lists it as left."""
    killed_s = cluster[victim].kill()
    survivors = cluster.others(victim)
    until(
        lambda: all(node.when(victim, "left", killed_s) is not None for node in survivors),
        f"node {victim} is listed as left",
    )
    took = [_first(node, victim, "left", killed_s) - killed_s for node in survivors]
    assert max(took) <= promised(2 * silence_s + SLACK_S), took
    until(lambda: all(node.members().get(victim) == "left" for node in survivors), "all say so when they are asked")
    assert cluster.ever_left(killed_s, but=[victim]) == []
    return took


def it_comes_back(cluster: Cluster, victim: int) -> list[float]:
    """Start it again; seconds from its `serving` line until each survivor has it back, and it has each of them."""
    node = cluster[victim]
    starts = len(node.lines("serving"))
    node.start()
    until(lambda: node.ready() and len(node.lines("serving")) > starts, f"{node} serves again")
    served_s = node.lines("serving")[-1]["at_s"]
    everyone = dict.fromkeys(cluster.nodes, "alive")
    until(lambda: all(each.members() == everyone for each in cluster), f"{node} is back")
    # It may be met before it says that it serves: then it took no time.
    backs = [max(0.0, _last_back(other, victim) - served_s) for other in cluster.others(victim)]
    backs += [max(0.0, _last_back(node, other.number) - served_s) for other in cluster.others(victim)]
    assert max(backs) <= promised(MEET_S), backs
    return backs


def one_stands_still(cluster: Cluster, victim: int, silence_s: float = SILENCE_S) -> float:
    """SIGSTOP for 1.5T, or until it is suspected; seconds from SIGCONT until everybody holds it for alive again."""
    node, others = cluster[victim], cluster.others(victim)
    stopped_s = node.signal(signal.SIGSTOP)
    try:
        if promised(0.0) == 0.0:  # else the machine may stand still for so long that it would be gone for good
            throughout(1.5 * silence_s, lambda: cluster.ever_left(stopped_s) == [], "nobody is removed meanwhile")
        until(
            lambda: all(other.when(victim, "suspect", stopped_s) is not None for other in others),
            f"everybody suspects {node}",
        )
    finally:
        went_on_s = node.signal(signal.SIGCONT)
    until(
        lambda: all(other.when(victim, "alive", went_on_s) is not None for other in others), f"{node} is trusted again"
    )
    back_s = max(_first(other, victim, "alive", went_on_s) for other in others) - went_on_s
    assert back_s <= promised(AT_ONCE_S), back_s
    throughout(silence_s / 2, lambda: cluster.ever_left(stopped_s) == [], "and nobody is removed afterwards")
    everyone = dict.fromkeys(cluster.nodes, "alive")
    until(lambda: all(each.members() == everyone for each in cluster), "all hold all for alive")
    return back_s


def _first(node: Node, peer: int, state: str, since_s: float) -> float:
    at_s = node.when(peer, state, since_s)
    assert at_s is not None, f"{node} never had node {peer} as {state}"
    return at_s


def _last_back(node: Node, peer: int) -> float:
    """When it last changed from not being alive to being so."""
    return max(c.at_s for c in node.changes() if c.peer == peer and c.state == "alive" and c.was != "alive")
