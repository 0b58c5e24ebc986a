"""Who was away is given what it lacks a little at a time: whoever takes it hears nobody meanwhile."""

from __future__ import annotations

import pytest

from chaplain.journal.messages import consensus
from chaplain.journal.messages.consensus import Supply
from tests.support.execution_stage import pack
from tests.support.journal_cluster import Client, Cluster
from tests.unit.journal.consensus.test_repair import order_purpose

WRITES = 40
AT_ONCE = 8
SUPPLY = 10


@pytest.mark.parametrize("recent_bytes_max", [1, 1 << 20], ids=["from the log", "from memory"])
def test_supply_has_at_most_the_configured_number_of_messages(recent_bytes_max: int) -> None:
    cluster = Cluster(order={"supply_messages_max": AT_ONCE, "recent_bytes_max": recent_bytes_max})
    cluster.elect()
    client = Client(cluster).connect(1)
    lane = client.lease()
    cluster.kill(3)
    for number in range(1, WRITES + 1):
        client.write(pack(lane, number, [b"value %d" % number]))
        cluster.settle()
    cluster.rest(10**9)
    counts: list[int] = []

    def count(sender: int, receiver: int, said) -> bool:
        if order_purpose(said) == SUPPLY:
            supply = consensus.decode(said.payload)
            assert isinstance(supply, Supply)
            counts.append(len(supply.messages))
        return False

    cluster.spoil = count
    cluster.start(3)
    cluster.agree()
    assert max(counts) == AT_ONCE
    assert sum(counts) >= WRITES
