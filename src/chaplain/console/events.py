"""What changed between two looks at a cluster, in sentences for people.

Pure: two pictures in, sentences out. Refuses to know how the pictures were made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Picture = Mapping[str, Any]
"""What `/api/state` gives."""


def changes(old: Picture | None, new: Picture) -> list[str]:
    if old is None:
        return [f"watching {len(new['nodes'])} nodes"]
    return [*_nodes(old, new), *_order(old, new), *_stages(old, new), *_clients(old, new)]


def _nodes(old: Picture, new: Picture) -> Iterator[str]:
    before = {node["id"]: node for node in old["nodes"]}
    for node in new["nodes"]:
        was = before.get(node["id"])
        if was is None:
            yield f"node {node['id']} was added"
        elif was["up"] != node["up"]:
            yield f"node {node['id']} is {'back' if node['up'] else 'down'}"
        elif node["up"] and was.get("standing") != node.get("standing"):
            yield f"node {node['id']}: {node.get('standing')}, was {was.get('standing')}"


def _order(old: Picture, new: Picture) -> Iterator[str]:
    if new["master"] != old["master"]:
        yield "nobody is master" if new["master"] is None else f"node {new['master']} is master, regime {new['regime']}"


def _stages(old: Picture, new: Picture) -> Iterator[str]:
    known = [str(stage) for stage in old["stages"]]
    for stage in new["stages"]:
        if str(stage) not in known:
            yield f"configuration: {' '.join(str(word) for word in stage.values())}"


def _clients(old: Picture, new: Picture) -> Iterator[str]:
    before = {client["name"]: client for client in old["clients"]}
    for client in new["clients"]:
        was = before.get(client["name"])
        if was is None and before:
            yield f"client {client['name']} was added"
        elif was is not None and was["status"] != client["status"]:
            yield f"client {client['name']} is {client['status']}"
