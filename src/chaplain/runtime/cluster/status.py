"""Builds the output of `chaplain cluster status` from the status that each node reports.

Where nodes differ about a stream, the status shows the report of the node that has most of the stream.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaplain.config import NODE_IDS_MAX, ClusterNode, choose_nodes, load_cluster
from chaplain.errors import Refused, Unreachable
from chaplain.journal.snapshots.fingerprints import common
from chaplain.runtime.cluster.local import POLL_S, pid_of
from chaplain.runtime.cluster.probe import get_status

COMPARE_S = 1.0
"""How long the nodes are queried again if their fingerprints have no position in common."""
REMOTE_S = 3.0
"""Time-out of a query to a node on another machine."""
_OF_NODE = ("state", "roles", "master", "members", "standing", "disk_full", "reserved", "index_only")
_DOWN = {"state": "down", "roles": [], "master": False, "members": 0}
"""Shown for a node that does not answer. It has the fields that programs read for every node."""
_IF_TOLD = ("sequence", "log", "received", "databases", "keys", "used_twice", "clock_error_seconds")
"""Fields that a node reports only if it is up and has the layer."""

Status = Mapping[str, Any]


def describe(directory: Path, only: int | None = None) -> dict[str, object]:
    """Return the status of the whole cluster, or as `only` one node sees it. A node that does not answer is `down`."""
    whole = load_cluster(directory).nodes
    listed = choose_nodes(whole, only)
    statuses, position, fingerprints = _compared(directory, listed)
    nodes = [_of_node(directory, node, statuses.get(node.id)) for node in listed]
    masters = [node["id"] for node in nodes if node["master"]]
    furthest = max(statuses.values(), key=lambda status: _number(status, "agreed"), default={})
    regimes = [status["regime"] for status in statuses.values() if isinstance(status.get("regime"), int)]
    return {
        "nodes": nodes,
        "regime": max(regimes, default=None),
        "master": masters[0] if masters else None if only is None else furthest.get("master_id"),
        "streams": _journals(statuses),
        "streams_count": max((status.get("streams_count", 0) for status in statuses.values()), default=0),
        "sequence": _sequence(statuses),
        "graph": _graphs(statuses),
        "pools": _pools(statuses),
        "fingerprints": {str(node_id): found for node_id, found in fingerprints.items()},
        "position": position,
        "serializers": furthest.get("serializers", []),
        "copies": furthest.get("copies", 0),
        "changes": furthest.get("changes", []),
        "unlisted": _unlisted(whole, statuses),
    }


def _unlisted(listed: Sequence[ClusterNode], statuses: Mapping[int, Status]) -> list[int]:
    """Return the nodes that are connected to the others and missing in `cluster.toml`, which is then an old copy."""
    connected = {peer for status in statuses.values() for peer in status.get("peers", ()) if peer <= NODE_IDS_MAX}
    return sorted(connected - {node.id for node in listed})


def _of_node(directory: Path, node: ClusterNode, status: Status | None) -> dict[str, object]:
    told: Status = _DOWN if status is None else status
    pid = pid_of(directory / f"node-{node.id}")
    shown = {"id": node.id, "endpoint": node.endpoint, "pid": pid} | {name: told.get(name) for name in _OF_NODE}
    return shown | {name: told[name] for name in _IF_TOLD if name in told}


def _journals(statuses: Mapping[int, Status]) -> dict[str, object]:
    return dict(_longest(statuses, "streams", "head"))


def _graphs(statuses: Mapping[int, Status]) -> dict[str, object]:
    """Return each stream of the graph, its number of events on each node, and whether all nodes have the same
    events.
    """
    shown: dict[str, object] = {}
    for name, stream in _longest(statuses, "graph", "events").items():
        held = {node: found for node, status in statuses.items() if (found := status.get("graph", {}).get(name))}
        same = len(held) == len(statuses) and len({one["fingerprint"] for one in held.values()}) == 1
        nodes = {str(node): one["events"] for node, one in held.items()}
        shown[name] = {**stream, "nodes": nodes, "same": same}
    return shown


def _longest(statuses: Mapping[int, Status], of: str, length: str) -> dict[str, Status]:
    """Return each stream of a kind, as reported by the node that has most of it."""
    found: dict[str, Status] = {}
    for status in statuses.values():
        for name, stream in status.get(of, {}).items():
            if name not in found or found[name][length] < stream[length]:
                found[name] = stream
    return dict(sorted(found.items()))


def _sequence(statuses: Mapping[int, Status]) -> object:
    """Return the sequence as reported by the node with the highest number; nodes in state WRK are preferred."""
    told = [status["sequence"] for status in statuses.values() if status.get("sequence")]
    return max(told, key=lambda one: (one["state"] == "WRK", one["number"]), default=None)


def _pools(statuses: Mapping[int, Status]) -> dict[str, object]:
    """Return the nodes in each pool. A node is in a pool while one of its clients listens to it."""
    names = sorted({name for status in statuses.values() for name in status.get("pools", ())})
    return {name: {"nodes": [node for node, status in statuses.items() if name in status["pools"]]} for name in names}


def _number(status: Status, name: str) -> int:
    value = status.get(name)
    return value if isinstance(value, int) else -1


def _compared(directory: Path, listed: list[ClusterNode]) -> tuple[dict[int, Status], int, dict[int, str]]:
    """Return the status of each node that answers, a common position, and the nodes' fingerprints at that position.

    The nodes apply messages while they are queried one after the other. So each reports fingerprints at a few
    positions; if the nodes have no position in common, they are queried again for up to `COMPARE_S`. A node that is
    still too far behind is left out.
    """
    end_s = time.monotonic() + COMPARE_S
    while True:
        statuses: dict[int, Status] = {}
        for node in listed:
            found = _status(directory, node, pid_of(directory / f"node-{node.id}"))
            if found is not None:
                statuses[node.id] = found
        held = {node_id: _fingerprints(status) for node_id, status in statuses.items() if "fingerprints" in status}
        position, fingerprints = common(held)
        if len(fingerprints) == len(held) or time.monotonic() > end_s:
            return statuses, position, fingerprints
        time.sleep(POLL_S)


def _status(directory: Path, node: ClusterNode, pid: int | None) -> Status | None:
    """Query a node on this machine over HTTP, and a node on another machine as a client."""
    if node.http:
        return None if pid is None else get_status(node.http)
    from chaplain.client.sync import Client  # noqa: PLC0415  a slow import that a local cluster does not need

    try:
        with Client.connect(directory, node=node.id, timeout=REMOTE_S) as client:
            return client.status()
    except (Unreachable, Refused):
        return None


def _fingerprints(status: Status) -> dict[int, str]:
    found = status["fingerprints"]
    return {int(position): str(value) for position, value in found.items()} if isinstance(found, dict) else {}
