"""The cluster configuration as plain data for status pages and programs: nodes, roles, serializers and changes."""

from __future__ import annotations

from chaplain.journal.messages.membership import EntryType, SetRefusal, Stage
from chaplain.journal.model.cluster_config import ClusterConfig, ConfigChange, MemberRoles


def describe_config(config: ClusterConfig) -> dict[str, object]:
    return {
        "nodes": [_node(config, member) for member in config.nodes],
        "serializers": list(config.serializers),
        "changes": [describe_change(change) for change in config.changes],
    }


def _node(config: ClusterConfig, member: MemberRoles) -> dict[str, object]:
    return {
        "id": member.node,
        "uri": member.uri,
        "key": member.key.hex(),
        "roles": roles_of(config, member.node),
        "member": config.is_member(member),
    }


def roles_of(config: ClusterConfig, node: int) -> list[str]:
    member = config.node(node)
    if member is None:
        return []
    serializes = ["serializer"] if node in config.serializers else []
    return sorted([*member.roles, *serializes], key=("ingest", "serializer", "executor", "config").index)


def describe_change(change: ConfigChange) -> dict[str, object]:
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
