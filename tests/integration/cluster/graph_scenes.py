"""The graph on real processes. Promised: both sides of a partition may be written, all nodes hold the same within 5 s
of the heal, and kill -9 loses nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from chaplain import AsyncClient, Client
from chaplain.errors import ChaplainError
from chaplain.runtime.cluster.probe import get_status
from tests.support.network_namespaces import Wires
from tests.support.process_cluster import PATIENCE_S, Cluster, Node, until

EQUAL_S = 5.0


def summary(node: Node, stream: str) -> dict[str, object]:
    """What the node itself says that it has of a stream; nothing while it gives no answer."""
    with node.inside():
        status = get_status(node.http) or {}
    streams = status.get("graph", {})
    assert isinstance(streams, dict)
    found: dict[str, object] = streams.get(stream, {})
    return found


def append(node: Node, cluster: Cluster, stream: str, values: Sequence[bytes]) -> list[str]:
    with node.inside(), Client.connect(cluster.directory, node=node.number, timeout=60) as client:
        return [client.graph(stream).append(value).id for value in values]


def read(node: Node, cluster: Cluster, stream: str) -> list[str]:
    with node.inside(), Client.connect(cluster.directory, node=node.number, timeout=60) as client:
        return [event.id for event in client.graph(stream).read(unread=True)]


def equal(nodes: Sequence[Node], stream: str, count: int) -> bool:
    seen = [summary(node, stream) for node in nodes]
    return all(one.get("events") == count for one in seen) and len({one.get("fingerprint") for one in seen}) == 1


def both_sides_written(cluster: Cluster, wires: Wires, halves: tuple[tuple[int, ...], tuple[int, ...]]) -> float:
    """Write before, on both sides of a cut, and see all equal; seconds from the heal until they are."""
    nodes, stream = list(cluster), "notes"
    written = append(cluster[1], cluster, stream, [b"before %d" % number for number in range(20)])
    until(lambda: equal(nodes, stream, len(written)), "everybody has what was written before")
    wires.split(*halves)
    for half in halves:
        for number in half[:2]:
            values = [b"node %d, %d" % (number, count) for count in range(60)]
            written += append(cluster[number], cluster, stream, values)
    assert not equal(nodes, stream, len(written))
    wires.heal()
    healed_s = time.monotonic()
    until(lambda: equal(nodes, stream, len(written)), "all nodes hold the same", 60)
    took_s = time.monotonic() - healed_s
    orders = [read(node, cluster, stream) for node in nodes]
    assert all(order == orders[0] for order in orders), "one order for equal events"
    assert sorted(orders[0]) == sorted(written)
    until(lambda: all(summary(node, stream).get("read") == len(written) for node in nodes), "everything is read")
    return took_s


async def _write(cluster: Cluster, node: int, stream: str, acknowledged: list[str]) -> None:
    """Append one after the other until the node dies."""
    async with AsyncClient.connect(cluster.directory, node=node, timeout=60) as client:

        async def one(lane: int) -> None:
            try:
                for number in range(1_000_000):
                    receipt = await client.graph(stream).append(b"lane %d, %d" % (lane, number))
                    acknowledged.append(receipt.id)
                    if len(acknowledged) >= 300:
                        enough.set()
            except ChaplainError:
                return

        enough = asyncio.Event()
        lanes = [asyncio.create_task(one(lane)) for lane in range(8)]
        await asyncio.wait_for(enough.wait(), PATIENCE_S)
        cluster[node].kill()
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)


def killed_while_written(cluster: Cluster, node: int) -> int:
    """Kill a node that acknowledges appends, with the others stopped, too; how many acknowledged events it kept."""
    stream, acknowledged = "kept", []
    asyncio.run(_write(cluster, node, stream, acknowledged))
    for other in cluster.others(node):
        other.kill()
    cluster[node].start()  # alone: whatever it has, it has from its own disk
    until(cluster[node].ready, "the node serves again")
    kept = read(cluster[node], cluster, stream)
    assert set(acknowledged) <= set(kept), f"{len(set(acknowledged) - set(kept))} acknowledged events are lost"
    for other in cluster.others(node):
        other.start()
    until(lambda: equal(list(cluster), stream, len(kept)), "all nodes hold the same again", 60)
    return len(acknowledged)
