"""The assembly as plain data for people and programs: nodes, roles, serializers, and the changes with their stages."""

from __future__ import annotations

from chaplain.journal.messages.membership import EntryType, SetRefusal, Stage
from chaplain.journal.model.cluster_config import ClusterConfig, ConfigChange, MemberRoles


def of_assembly(assembly: ClusterConfig) -> dict[str, object]:
    return {
        "nodes": [_node(assembly, placed) for placed in assembly.nodes],
        "serializers": list(assembly.serializers),
        "changes": [of_change(change) for change in assembly.changes],
    }


def _node(assembly: ClusterConfig, placed: MemberRoles) -> dict[str, object]:
    return {
        "id": placed.node,
        "uri": placed.uri,
        "key": placed.key.hex(),
        "roles": roles_of(assembly, placed.node),
        "member": assembly.is_member(placed),
    }


def roles_of(assembly: ClusterConfig, node: int) -> list[str]:
    placed = assembly.node(node)
    if placed is None:
        return []
    serializes = ["serializer"] if node in assembly.serializers else []
    return sorted([*placed.roles, *serializes], key=("ingest", "serializer", "executor", "config").index)


def of_change(change: ConfigChange) -> dict[str, object]:
    return {
        "id": change.id.hex(),
        "change": EntryType(change.entry_type).name.lower(),
        "nodes": list(change.nodes),
        "stage": Stage(change.stage).name.lower(),
        "open": change.open,
        "index": change.since,
        "why": _why(change),
    }


def _why(change: ConfigChange) -> str:
    match change.reason:
        case SetRefusal.SAME_SET:
            return "the new set is the same as the old one"
        case SetRefusal.TIMED_OUT:
            return f"node {change.about} did not answer, or did not catch up, in time"
        case _:
            return ""
