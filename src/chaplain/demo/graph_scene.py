"""The graph in the demo: three nodes are written at once, and end up with one order."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from chaplain.client.sync import Client
from chaplain.demo.findings import Findings
from chaplain.demo.scenes import Tell, wait

STREAM = "notes"
APPENDS = 100


def graph_comes_together(cluster: Path, findings: Findings, tell: Tell) -> None:
    tell(f"appending {APPENDS} events to a graph at each of three nodes")
    with ExitStack() as stack:
        clients = [stack.enter_context(Client.connect(str(cluster), node=node)) for node in (1, 2, 3)]
        began = time.perf_counter()
        written = [client.graph(STREAM).append(b"%d" % number).id for number in range(APPENDS) for client in clients]
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        wait("all nodes to hold the same graph", lambda: all(_read(client) == len(written) for client in clients))
        orders = [[event.id for event in client.graph(STREAM).read()] for client in clients]
    findings.equal("graph: acknowledged events that are lost", 0, len(set(written) - set(orders[0])))
    same = orders[0] == orders[1] == orders[2]
    findings.add("graph: one order on all nodes", "yes", "yes" if same else "no", same)
    findings.at_most("graph: all nodes equal, everything read", 5.0, time.perf_counter() - began)
    findings.add("graph: appends, one after the other", "reported", f"{len(written) / seconds:,.0f} a second", True)


def _read(client: Client) -> int:
    streams = client.status().get("graph", {})
    return int(streams.get(STREAM, {}).get("read", 0))
