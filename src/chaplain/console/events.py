"""Describes the changes between two snapshots of a cluster in sentences.

Pure: two snapshots in, sentences out. It does not know how the snapshots are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Snapshot = Mapping[str, Any]
"""The object that `/api/state` returns."""


def changes(old: Snapshot | None, new: Snapshot) -> list[str]:
    """Return a sentence for each change of nodes, master, configuration changes and clients."""
    if old is None:
        return [f"watching {len(new['nodes'])} nodes"]
    return [*_nodes(old, new), *_order(old, new), *_stages(old, new), *_clients(old, new)]


def _nodes(old: Snapshot, new: Snapshot) -> Iterator[str]:
    before = {node["id"]: node for node in old["nodes"]}
    for node in new["nodes"]:
        was = before.get(node["id"])
        if was is None:
            yield f"node {node['id']} was added"
        elif was["up"] != node["up"]:
            yield f"node {node['id']} is {'back' if node['up'] else 'down'}"
        elif node["up"] and was.get("standing") != node.get("standing"):
            yield f"node {node['id']}: {node.get('standing')}, was {was.get('standing')}"


def _order(old: Snapshot, new: Snapshot) -> Iterator[str]:
    if new["master"] != old["master"]:
        if new["master"] is None:
            yield "no node is master"
        else:
            yield f"node {new['master']} is master, regime {new['regime']}"


def _stages(old: Snapshot, new: Snapshot) -> Iterator[str]:
    known = [str(stage) for stage in old["stages"]]
    for stage in new["stages"]:
        if str(stage) not in known:
            yield f"configuration: {' '.join(str(word) for word in stage.values())}"


def _clients(old: Snapshot, new: Snapshot) -> Iterator[str]:
    before = {client["name"]: client for client in old["clients"]}
    for client in new["clients"]:
        was = before.get(client["name"])
        if was is None and before:
            yield f"client {client['name']} was added"
        elif was is not None and was["status"] != client["status"]:
            yield f"client {client['name']} is {client['status']}"
