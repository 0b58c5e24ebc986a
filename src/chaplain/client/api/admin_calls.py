"""What a client may ask about the nodes of a cluster, as data: who there is, and changes of roles and serializers.

A change is opened by a request and goes on by itself, stage by stage; its id finds it again in `assembly`.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaplain.client.api.calls import PreparedCall, reader
from chaplain.client.protocol.journal.events import AskCommand, ConfigRequestCommand
from chaplain.client.types import validation
from chaplain.client.types.journal import AssemblyRecord, ChangeRecord
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
"""Where the full id of an entry has the message."""
_assembly = reader(AssemblyRecord)


def assembly() -> PreparedCall[AssemblyRecord]:
    return PreparedCall(lambda call, timeout_ns: AskCommand(call, ListNodes(0), timeout_ns), _assembly)


def change_nodes(message: NodeMessage) -> PreparedCall[str]:
    """Open a change; gives its id."""
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
    """Have a checkpoint made; gives the message that it is behind."""
    last = validation.number("a message", through, said="has a number from 1 on")
    return PreparedCall(
        lambda call, timeout_ns: ConfigRequestCommand(call, MakeCheckpoint(last), timeout_ns),
        lambda entry: int.from_bytes(entry[_INDEX], "big"),
    )


def check_node(node: int) -> int:
    return validation.number("a node's id", node, 1, NOBODY - 1)


def find_change(assembly: AssemblyRecord, change: str) -> ChangeRecord | None:
    """The change of this id; None if it was so long ago that it is forgotten."""
    return next((one for one in assembly.changes if one.id == change), None)
