"""The demo's scene of the sequence: three publishers that contend, and what every node numbered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chaplain.client.sync import Client
from chaplain.demo.findings import Findings
from chaplain.demo.scenes import Tell

PUBLISHERS = 3
BATCHES = 50
BATCH = 100
STREAM = "ticks"


def sequence_numbers(cluster: Path, findings: Findings, tell: Tell) -> None:
    count = PUBLISHERS * BATCHES * BATCH
    tell(f"publishing {count:,} events at three nodes at once, under one numbering")
    began = time.perf_counter()
    with ThreadPoolExecutor(PUBLISHERS) as pool:
        told = dict(pair for pairs in pool.map(lambda node: _publish(cluster, node), (1, 2, 3)) for pair in pairs)
    seconds = time.perf_counter() - began
    findings.equal("sequence: numbers given, each once", count, len(told))
    orders = [dict(_read(cluster, node, count)) for node in (1, 2, 3)]
    wrong = sum(order.get(number) != value for order in orders for number, value in told.items())
    findings.equal("sequence: not under their number at some node", 0, wrong)
    gaps = sum(list(order) != list(range(1, count + 1)) for order in orders)
    findings.equal("sequence: nodes with a gap or another order", 0, gaps)
    findings.add("sequence: events numbered", "reported", f"{count / seconds:,.0f} a second", True)


def _publish(cluster: Path, node: int) -> list[tuple[int, bytes]]:
    told: list[tuple[int, bytes]] = []
    with Client.connect(str(cluster), node=node) as client:
        for batch in range(BATCHES):
            values = [b"%d:%d" % (node, batch * BATCH + place) for place in range(BATCH)]
            first = client.sequence(STREAM).publish_many(values)
            told += enumerate(values, first)
    return told


def _read(cluster: Path, node: int, count: int) -> Iterator[tuple[int, bytes]]:
    with Client.connect(str(cluster), node=node) as client:
        for event in client.sequence(STREAM).read(start=1, stop=count + 1, follow=True, timeout=10.0):
            yield event.number, event.value
