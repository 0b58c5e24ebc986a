"""Calls about the nodes of a cluster, as data: list them, and change roles and serializers.

A request opens a reconfiguration, which then proceeds by itself, stage by stage. `cluster_config` lists it under the
request's id.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaplain.client.api.calls import PreparedCall, reader
from chaplain.client.protocol.journal.events import AskCommand, ConfigRequestCommand
from chaplain.client.types import validation
from chaplain.client.types.journal import ChangeRecord, ClusterConfigRecord
from chaplain.errors import Misused
from chaplain.journal.messages.client import ListNodes
from chaplain.journal.messages.config import MakeCheckpoint
from chaplain.journal.messages.membership import (
    NOBODY,
    SERIALIZERS_MAX,
    AddNode,
    EntryType,
    NewSet,
    NodeMessage,
    RemoveNode,
)

_INDEX = slice(4, 12)
"""The bytes of an entry's full id that hold the index of its cluster message."""
_cluster_config = reader(ClusterConfigRecord)


def cluster_config() -> PreparedCall[ClusterConfigRecord]:
    """The nodes, serializers and reconfigurations."""
    return PreparedCall(lambda call, timeout_ns: AskCommand(call, ListNodes(0), timeout_ns), _cluster_config)


def change_nodes(message: NodeMessage) -> PreparedCall[str]:
    """Open a reconfiguration and return its id."""
    return PreparedCall(lambda call, timeout_ns: ConfigRequestCommand(call, message, timeout_ns), bytes.hex)


def add_node(node: int, role: str, uri: str, key: str | bytes, disk: str) -> PreparedCall[str]:
    kinds = {"executor": EntryType.ADD_EXECUTOR_NODE, "ingest": EntryType.ADD_INGEST_NODE}
    kinds["config"] = EntryType.ADD_CONFIG_NODE
    if not isinstance(role, str) or role not in kinds:
        raise Misused(f"a node is added as executor, ingest or config, not as {role!r}")
    if uri:
        validation.endpoint(uri)
    octets = validation.key("a node's key", key) if key else b""
    return change_nodes(AddNode(kinds[role], check_node(node), uri, octets, _disk_id(disk)))


def _disk_id(disk: str) -> bytes:
    try:
        return bytes.fromhex(disk)
    except (TypeError, ValueError):
        raise Misused(f"a disk id is text of hexadecimal digits, not {disk!r}") from None


def remove_node(node: int, role: str) -> PreparedCall[str]:
    kinds = {"executor": EntryType.REMOVE_EXECUTOR_NODE, "ingest": EntryType.REMOVE_INGEST_NODE}
    if not isinstance(role, str) or role not in kinds:
        raise Misused(f"a node is removed as executor or as ingest (and config), not as {role!r}")
    return change_nodes(RemoveNode(kinds[role], check_node(node)))


def new_serializers(nodes: Sequence[int]) -> PreparedCall[str]:
    nodes = tuple(map(check_node, validation.several("nodes", nodes)))
    if not 1 <= len(nodes) <= SERIALIZERS_MAX or len(set(nodes)) < len(nodes):
        raise Misused(f"a set has 1 to {SERIALIZERS_MAX} serializers, each once")
    return change_nodes(NewSet(nodes))


def checkpoint(through: int) -> PreparedCall[int]:
    """Request a snapshot and return the index of the last cluster message that it covers."""
    last = validation.number("a message", through, requirement="has a number from 1 on")
    return PreparedCall(
        lambda call, timeout_ns: ConfigRequestCommand(call, MakeCheckpoint(last), timeout_ns),
        lambda entry: int.from_bytes(entry[_INDEX], "big"),
    )


def check_node(node: int) -> int:
    return validation.number("a node's id", node, 1, NOBODY - 1)


def find_change(config: ClusterConfigRecord, change: str) -> ChangeRecord | None:
    """The reconfiguration of this id; None if it is so old that the cluster has forgotten it."""
    return next((one for one in config.changes if one.id == change), None)
