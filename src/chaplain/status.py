"""How a node sees itself and its cluster, as plain data for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaplain import __version__

if TYPE_CHECKING:
    from chaplain.node import NodeCore


def of_node(node: NodeCore) -> dict[str, object]:
    members = of_members(node)
    return {
        "id": node.node_id(node.identifier),
        "identifier": node.identifier,
        "endpoint": node.settings.link.endpoint,
        "version": __version__,
        "state": "WRK",
        "roles": [],
        "master": False,
        "members": sum(1 for member in members if member["state"] != "left"),
        "peers": sorted(node.node_id(identifier) for identifier in node.mesh.peers()),
        "pools": list(node.mesh.pools),
        "uptime_ns": node.now_ns - node.started_ns,
    }


def of_members(node: NodeCore) -> list[dict[str, object]]:
    """Everyone this node knows, itself included, by the name people know them by."""
    listed = [
        {
            "id": node.node_id(member.identifier),
            "identifier": member.identifier,
            "uri": member.uri,
            "state": str(member.state),
            "incarnation": member.incarnation,
        }
        for member in node.gossip.members()
    ]
    return sorted(listed, key=lambda member: int(str(member["id"])))
