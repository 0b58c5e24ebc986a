"""Polls every node of a cluster, and retains the newest snapshot of it.

Decides what the page shows and how rates are computed. It requests the status of nodes from their monitoring servers,
and lists clients with the cluster's default client. A node that does not answer counts as down. It changes nothing in
the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from chaplain.client.aio import AsyncClient
from chaplain.config import ClusterFile, ClusterNode, choose_nodes, load_cluster
from chaplain.console.events import changes
from chaplain.errors import ChaplainError
from chaplain.runtime.cluster.probe import get_status

POLL_EVERY_S = 0.5
CLIENTS_EVERY_S = 3.0
RATE_OVER_S = 3.0
"""Rates are averages over this time."""
HAPPENINGS_MAX = 100
"""The page lists at most this many changes; older ones are dropped."""
STREAMS_MAX = 200
"""The page lists only this many streams, those with the highest offsets, and says how many it leaves out."""
_NODE_FIELDS = ("state", "roles", "order", "standing", "master", "members", "regime", "agreed", "version", "uptime_ns")


class Watcher:
    """Polls the cluster. `snapshot` is the newest snapshot; `changed` is notified at each new one."""

    def __init__(self, cluster: str | Path, only: int | None = None) -> None:
        self._cluster = cluster
        self._only = only
        self.snapshot: dict[str, Any] | None = None
        self.changed = asyncio.Condition()
        self._clients: list[dict[str, Any]] = []
        self._happenings: deque[dict[str, Any]] = deque(maxlen=HAPPENINGS_MAX)
        self._rates = Rates()

    async def run(self) -> None:
        """Poll until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._poll_nodes())
            tasks.create_task(self._list_clients())

    async def _poll_nodes(self) -> None:
        while True:
            known = load_cluster(self._cluster)
            known = msgspec.structs.replace(known, nodes=tuple(choose_nodes(known.nodes, self._only)))
            statuses = await asyncio.gather(*(self._status(node) for node in known.nodes))
            await self._publish(make_snapshot(known, dict(zip(known.nodes, statuses, strict=True)), self._clients))
            await asyncio.sleep(POLL_EVERY_S)

    async def _status(self, node: ClusterNode) -> dict[str, Any] | None:
        return await asyncio.to_thread(get_status, node.http) if node.http else None

    async def _publish(self, snapshot: dict[str, Any]) -> None:
        now_s = time.time()
        for sentence in changes(self.snapshot, snapshot):
            self._happenings.appendleft({"time": now_s, "text": sentence})
        self._rates.add(now_s, {stream["name"]: stream["head"] for stream in snapshot["streams"]})
        for stream in snapshot["streams"]:
            stream["rate"] = self._rates.of(stream["name"])
        snapshot["happenings"], snapshot["time"] = list(self._happenings), now_s
        async with self.changed:
            self.snapshot = snapshot
            self.changed.notify_all()

    async def _list_clients(self) -> None:
        """Poll the list of clients over a separate connection. While no node accepts it, the last list remains."""
        while True:
            with contextlib.suppress(ChaplainError, OSError):
                async with AsyncClient.connect(self._cluster) as client:
                    while True:
                        shown = ("name", "status", "admin", "writes", "reads", "lanes")
                        found = [dict(one) for one in await client.clients()]
                        self._clients = [{name: one[name] for name in shown} for one in found]
                        await asyncio.sleep(CLIENTS_EVERY_S)
            await asyncio.sleep(CLIENTS_EVERY_S)


class Rates:
    """Messages per second of each stream, averaged over the last `RATE_OVER_S`."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, int]]] = deque()

    def add(self, now_s: float, heads: dict[str, int]) -> None:
        self._seen.append((now_s, heads))
        while self._seen[0][0] < now_s - RATE_OVER_S:
            self._seen.popleft()

    def of(self, stream: str) -> float:
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        if last_s <= first_s:
            return 0.0
        return max(0.0, (last[stream] - first.get(stream, 0)) / (last_s - first_s))


def make_snapshot(
    known: ClusterFile, statuses: Mapping[ClusterNode, Mapping[str, Any] | None], clients: list[dict[str, Any]]
) -> dict[str, Any]:
    """Combine the nodes' statuses. If several nodes claim to be master, the one with the highest regime is shown."""
    nodes = [_node(node, status) for node, status in statuses.items()]
    answers = [status for status in statuses.values() if status is not None]
    heads: dict[str, int] = {}
    for status in answers:
        for name, stream in status.get("streams", {}).items():
            heads[name] = max(heads.get(name, 0), stream["head"])
    masters = [node for node in nodes if node["master"]]
    longest = sorted(heads.items(), key=lambda pair: (-pair[1], pair[0]))[:STREAMS_MAX]
    return {
        "cluster": known.cluster,
        "nodes": nodes,
        "master": max(masters, key=lambda node: node["regime"])["id"] if masters else None,
        "regime": max((node["regime"] or 0 for node in nodes), default=0),
        "streams": [{"name": name, "head": head} for name, head in sorted(longest)],
        "streams_count": max((status.get("streams_count", 0) for status in answers), default=0),
        "consumers": max((status.get("consumers", []) for status in answers), key=_processed, default=[]),
        "clients": clients,
        "stages": next((status["stages"] for status in answers if status.get("stages")), []),
        "layers": {name: [_layer_status(status, name) for status in answers] for name in ("sequence", "graph")},
    }


def _processed(consumers: list[dict[str, Any]]) -> int:
    """The node that has executed most has the highest positions."""
    return sum(one["position"] for one in consumers)


def _node(node: ClusterNode, status: Mapping[str, Any] | None) -> dict[str, Any]:
    shown = {name: (status or {}).get(name) for name in _NODE_FIELDS}
    sees = {str(member["id"]): member["state"] for member in (status or {}).get("member_list", [])}
    tree = (status or {}).get("tree") or {}
    checkpoint = {"checkpoint": tree.get("checkpoint"), "checkpoint_age_seconds": tree.get("checkpoint_age_seconds")}
    return {"id": node.id, "endpoint": node.endpoint, "up": status is not None, **shown, **checkpoint, "sees": sees}


def _layer_status(status: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"node": status["id"], "status": status.get(name)}
