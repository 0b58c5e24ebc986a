"""The node's view of itself and its cluster, as plain data for people and programs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from chaplain import __version__
from chaplain.core import STATUS_STREAMS_MAX
from chaplain.gossip.events import MemberState
from chaplain.journal.clients.describe import describe_change, roles_of
from chaplain.journal.clients.describe_consumers import ConsumerSummary, describe_consumer
from chaplain.journal.consensus.events import Role
from chaplain.journal.core import JournalCore
from chaplain.units import SECOND_NS

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
            {"id": node.node_id(duplicate.identifier), "endpoints": list(duplicate.endpoints)}
            for duplicate in node.link.duplicates(node.now_ns)
        ],
        **journal,
        **{name: value for upper in node.uppers.values() for name, value in upper.status().items()},
    }


def of_ring(node: NodeCore) -> dict[str, object]:
    """The ids of the cluster keys that this node accepts."""
    ring = node.link.ring
    assert ring is not None, "only clients have none"
    older, newer = ([key_id.hex() for key_id in key_ids] for key_ids in (ring.older_ids, ring.newer_ids))
    return {"used": ring.used_id.hex(), "older": older, "newer": newer}


def counts(node: NodeCore) -> Counter[str]:
    """The counters of all layers, prefixed with the layer's name."""
    by_layer = {"link": node.link.counts, "mesh": node.mesh.counts, "gossip": node.gossip.counts}
    by_layer["client_service"], by_layer["node"] = node.client_service.counts, node.client_counts
    by_layer.update({layer.name.lower(): upper.counts for layer, upper in node.uppers.items()})
    if node.recorder is not None:
        by_layer["recorder"] = node.recorder.counts
    merged: Counter[str] = Counter()
    for layer, of_layer in by_layer.items():
        merged.update({f"{layer}_{what}": count for what, count in of_layer.items()})
    return merged


def gauges(node: NodeCore) -> dict[str, float]:
    """Measurements that rise and fall, for monitoring."""
    present = sum(member.state is not MemberState.LEFT for member in node.gossip.members())
    measured: dict[str, float] = {"members_present": present, "peers": len(node.mesh.peers())}
    for upper in node.uppers.values():
        measured |= upper.gauges()
    if node.journal is None:
        return measured
    serializer, streams = node.journal.serializer, node.journal.streams
    return measured | {
        "journal_master": node.role.role is Role.MASTER,
        "journal_regime": serializer.regime,
        "journal_agreed_index": serializer.agreed[0],
        "journal_executed_messages": streams.messages,
        "journal_streams": len(streams.names),
        "journal_consumers": len(node.journal.execution.state.consumers.consumers),
        "journal_consumer_lag_max": max((one["lag"] for one in of_consumers(node.journal)), default=0),
        "journal_sound": serializer.voting_status == "sound",
        "journal_tree_size": node.journal.tree.size,
        "journal_checkpoint_size": node.journal.tree.checkpoint_size,
        "journal_checkpoint_age_seconds": node.journal.tree.checkpoint_age_ns(node.now_ns) / SECOND_NS,
    }


def of_journal(node: NodeCore, journal: JournalCore) -> dict[str, object]:
    """The node's role in consensus, and what it has executed."""
    role = node.role
    state, streams = journal.execution.state, journal.streams
    index, chain = journal.serializer.agreed
    fingerprints = {position: found.hex() for position, found in journal.fingerprints.at(index).items()}
    return {
        "roles": roles_of(state.cluster_config, journal.settings.node),
        "serializers": list(state.cluster_config.serializers),
        "index_only": journal.serializer.context.log.index_only,
        "copies": journal.execution.copies,
        "changes": [describe_change(change) for change in state.cluster_config.changes],
        "reserved": list(journal.settings.reserved),
        "order": str(role.role),
        "standing": journal.serializer.voting_status,
        "received": {
            str(one): {str(place.node): [place.journal, place.index] for place in reached}
            for one, reached in sorted(journal.ingest.received_by_node.items())
        },
        "disk_full": journal.serializer.disk_full,
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
        "consumers": of_consumers(journal)[:STATUS_STREAMS_MAX],
        "log": of_log(journal),
        "tree": of_tree(node, journal),
    }


def of_consumers(journal: JournalCore) -> list[ConsumerSummary]:
    """The named consumers, those that are furthest behind first."""
    state = journal.execution.state
    found = [describe_consumer(state, journal.streams, one) for one in state.consumers.consumers.values()]
    return sorted(found, key=lambda one: (-one["lag"], one["stream"], one["name"]))


def of_tree(node: NodeCore, journal: JournalCore) -> dict[str, object]:
    """The tree over the log, and the newest checkpoint of it that a majority has signed."""
    tree = journal.tree
    return {
        "size": tree.size,
        "checkpoint": tree.checkpoint_size,
        "checkpoint_age_seconds": round(tree.checkpoint_age_ns(node.now_ns) / SECOND_NS, 3),
        "served": 0 if tree.served is None else tree.served.checkpoint.size,
        "refused": tree.signer.refused,
    }


def of_log(journal: JournalCore) -> dict[str, object]:
    """The stored part of the log, and the part that a checkpoint makes unnecessary."""
    places, archive = journal.serializer.context.log.segment_index, journal.snapshots.checkpointer
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
    """All known members, including this node, with their ids.

    A member's headers are in its greeting, so they are known of connected nodes only.
    """
    headers = {view.peer.identifier: view.headers for view in node.mesh.peer_views() if not view.peer.client}
    headers[node.identifier] = node.settings.mesh.headers
    listed: list[dict[str, object]] = [
        {
            "id": node.node_id(member.identifier),
            "identifier": member.identifier,
            "uri": member.uri,
            "state": str(member.state),
            "incarnation": member.incarnation,
            "failed": member.failed,
            **({"headers": said} if (said := headers.get(member.identifier)) else {}),
        }
        for member in node.gossip.members()
    ]
    return sorted(listed, key=lambda member: int(str(member["id"])))
