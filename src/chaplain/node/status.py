"""How a node sees itself and its cluster, as plain data for people and programs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from chaplain import __version__
from chaplain.core import STATUS_STREAMS_MAX
from chaplain.gossip.events import MemberState
from chaplain.journal.clients.describe import of_change, roles_of
from chaplain.journal.consensus.events import Role
from chaplain.journal.core import JournalCore

if TYPE_CHECKING:
    from chaplain.node.core import NodeCore


def of_node(node: NodeCore) -> dict[str, object]:
    members = of_members(node)
    journal = {} if node.journal is None else of_journal(node, node.journal)
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
        "keys": of_ring(node),
        "used_twice": [
            {"id": node.node_id(double.identifier), "endpoints": list(double.endpoints)}
            for double in node.link.doubles(node.now_ns)
        ],
        **journal,
        **{name: value for upper in node.uppers.values() for name, value in upper.status().items()},
    }


def of_ring(node: NodeCore) -> dict[str, object]:
    """The cluster keys that this node accepts, by their ids alone."""
    ring = node.link.ring
    assert ring is not None, "only clients have none"
    older, newer = ([key_id.hex() for key_id in key_ids] for key_ids in (ring.older_ids, ring.newer_ids))
    return {"used": ring.used_id.hex(), "older": older, "newer": newer}


def counts(node: NodeCore) -> Counter[str]:
    """Everything the layers count, under their names."""
    by_layer = {"link": node.link.counts, "mesh": node.mesh.counts, "gossip": node.gossip.counts}
    by_layer["desk"], by_layer["node"] = node.desk.counts, node.client_counts
    by_layer.update({layer.name.lower(): upper.counts for layer, upper in node.uppers.items()})
    if node.recorder is not None:
        by_layer["recorder"] = node.recorder.counts
    merged: Counter[str] = Counter()
    for layer, of_layer in by_layer.items():
        merged.update({f"{layer}_{what}": count for what, count in of_layer.items()})
    return merged


def gauges(node: NodeCore) -> dict[str, float]:
    """What goes up and down: for monitoring."""
    present = sum(member.state is not MemberState.LEFT for member in node.gossip.members())
    measured: dict[str, float] = {"members_present": present, "peers": len(node.mesh.peers())}
    for upper in node.uppers.values():
        measured |= getattr(upper, "gauges", dict)()
    if node.journal is None:
        return measured
    serializer, streams = node.journal.serializer, node.journal.streams
    return measured | {
        "journal_master": node.role.role is Role.MASTER,
        "journal_regime": serializer.regime,
        "journal_agreed_index": serializer.agreed[0],
        "journal_executed_messages": streams.messages,
        "journal_streams": len(streams.names),
        "journal_sound": serializer.standing == "sound",
    }


def of_journal(node: NodeCore, journal: JournalCore) -> dict[str, object]:
    """The node's part in the order, and what it has executed of it."""
    role = node.role
    state, streams = journal.execution.state, journal.streams
    index, chain = journal.serializer.agreed
    fingerprints = {position: found.hex() for position, found in journal.milestones.at(index).items()}
    return {
        "roles": roles_of(state.cluster_config, journal.settings.node),
        "serializers": list(state.cluster_config.serializers),
        "index_only": journal.serializer.bench.log.index_only,
        "copies": journal.execution.copies,
        "changes": [of_change(change) for change in state.cluster_config.changes],
        "reserved": list(journal.settings.reserved),
        "order": str(role.role),
        "standing": journal.serializer.standing,
        "disk_full": journal.serializer.full,
        "master": role.role is Role.MASTER,
        "master_id": role.master or None,
        "regime": journal.serializer.regime,
        "agreed": index,
        "chain": chain.hex(),
        "fingerprint": fingerprints[index],
        "fingerprints": {str(position): found for position, found in fingerprints.items()},
        "streams": {
            name: {"head": streams.next_offset(name), "first": streams.first_offset(name)}
            for name in streams.names[:STATUS_STREAMS_MAX]
        },
        "streams_count": len(streams.names),
        "log": of_log(journal),
    }


def of_log(journal: JournalCore) -> dict[str, object]:
    """What is kept of the log, and what could be done without it."""
    places, archive = journal.serializer.bench.log.segment_index, journal.covering.checkpointer
    return {
        "first": places.first,
        "segments": len(places.segments),
        "bytes": sum(segment.size_bytes for segment in places.segments),
        "dropped_bytes": archive.dropped_bytes,
        "dropped_segments": archive.dropped_segments,
        "pending": len(places.droppable(min(archive.durable, journal.execution.state.released))),
        "checkpoint": archive.durable,
        "confirmed": archive.confirmed,
        "covered": archive.covered_through(),
        "released": journal.execution.state.released,
    }


def of_members(node: NodeCore) -> list[dict[str, object]]:
    """Everyone this node knows, itself included, by the name people know them by.

    What a member says of itself is in its greeting, so it is known of neighbours only.
    """
    headers = {view.peer.identifier: view.headers for view in node.mesh.roster() if not view.peer.client}
    headers[node.identifier] = node.settings.mesh.headers
    listed: list[dict[str, object]] = [
        {
            "id": node.node_id(member.identifier),
            "identifier": member.identifier,
            "uri": member.uri,
            "state": str(member.state),
            "incarnation": member.incarnation,
            **({"headers": said} if (said := headers.get(member.identifier)) else {}),
        }
        for member in node.gossip.members()
    ]
    return sorted(listed, key=lambda member: int(str(member["id"])))
