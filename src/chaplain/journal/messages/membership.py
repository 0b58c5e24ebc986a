"""Config messages of journal.txt about nodes: the requests of clients, and the later stages that a master adds.

    opening stage   the fields, then signer, nonce, epoch and signature as in `messages.config`
    later stages    node ids | change id 15 | reason 1 | node 1; written by masters, never accepted from a client

Decides which octets are such a message. Refuses to know whether a stage is due: `model.cluster_config` decides that.
Byte tables and hex examples: docs/protocol/configuration.md.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias, assert_never

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.link.auth.identity import KEY_BYTES
from chaplain.wire.primitives import ByteReader, put_number, put_string

CHANGE_BYTES = 15
"""The id of a change is the full id of the entry that opened it, like an ACL id."""
DISK_BYTES = 16
SERIALIZERS_MAX = 15


class EntryType(IntEnum):
    """Entry types of the cluster journal. Type 1 is data. Numbers are never reused."""

    ADD_EXECUTOR_NODE = 2
    REMOVE_EXECUTOR_NODE = 3
    ADD_INGEST_NODE = 4
    REMOVE_INGEST_NODE = 5
    ADD_CONFIG_NODE = 6
    NEW_SERIALIZER_SET = 7
    ADD_CLIENT = 8
    REMOVE_CLIENT = 9
    FENCE_CLIENT = 10
    CHECKPOINT = 11


class Stage(IntEnum):
    """Stages of journal.txt. The numbers are on disk and never reused. Messages about clients have stage 0 only."""

    NONE = 0
    CATCHUP = 1
    LIVE = 2
    IMPLEMENT = 3
    BLOCK = 4
    DROP = 5
    NOMINATE = 6
    REFUSE = 7
    CONFIRM = 8


class SetRefusal(IntEnum):
    """Reasons of journal.txt for the refusal of a new serializer set."""

    NONE = 0
    SAME_SET = 1
    TIMED_OUT = 2


OPENING = {
    EntryType.ADD_EXECUTOR_NODE: Stage.CATCHUP,
    EntryType.REMOVE_EXECUTOR_NODE: Stage.IMPLEMENT,
    EntryType.ADD_INGEST_NODE: Stage.CATCHUP,
    EntryType.REMOVE_INGEST_NODE: Stage.BLOCK,
    EntryType.ADD_CONFIG_NODE: Stage.CATCHUP,
    EntryType.NEW_SERIALIZER_SET: Stage.NOMINATE,
}
"""The stage in which a client submits each change."""
LATER = {
    EntryType.ADD_EXECUTOR_NODE: (Stage.LIVE,),
    EntryType.ADD_INGEST_NODE: (Stage.LIVE,),
    EntryType.ADD_CONFIG_NODE: (Stage.LIVE,),
    EntryType.REMOVE_INGEST_NODE: (Stage.DROP,),
    EntryType.NEW_SERIALIZER_SET: (Stage.REFUSE, Stage.IMPLEMENT, Stage.CONFIRM),
}
"""The stages that a master adds to each change."""
ADDS = (EntryType.ADD_EXECUTOR_NODE, EntryType.ADD_INGEST_NODE, EntryType.ADD_CONFIG_NODE)


class AddNode(Frozen, frozen=True):
    """Give a role to a node. For a new node, the message also contains its address, its key and its disk id."""

    entry_type: EntryType
    node: int
    uri: str = ""
    key: bytes = b""
    disk: bytes = b""


class RemoveNode(Frozen, frozen=True):
    """Take a role from a node: executor, or ingest and config together."""

    entry_type: EntryType
    node: int


class NewSet(Frozen, frozen=True):
    """Replace the set of serializers. The first node of the set becomes master."""

    nodes: tuple[int, ...]


NodeMessage: TypeAlias = AddNode | RemoveNode | NewSet


class StageStep(Frozen, frozen=True):
    """A later stage of a change, ordered by a master."""

    entry_type: EntryType
    stage: Stage
    nodes: tuple[int, ...]
    change: bytes
    reason: SetRefusal = SetRefusal.NONE
    about: int = 0
    """The node that timed out, for a refusal."""


def type_of(message: NodeMessage) -> EntryType:
    return EntryType.NEW_SERIALIZER_SET if isinstance(message, NewSet) else message.entry_type


def nodes_of(message: NodeMessage) -> tuple[int, ...]:
    return message.nodes if isinstance(message, NewSet) else (message.node,)


def is_opening(entry_type: int, stage: int) -> bool:
    """True if a client may submit this: any message about clients, or the opening stage of a change of nodes."""
    return OPENING.get(entry_type, Stage.NONE) == stage  # type: ignore[call-overload, no-any-return]


def encode_fields(message: NodeMessage) -> bytes:
    match message:
        case AddNode():
            known = not message.uri
            if known != (not message.key) or known != (not message.disk):
                raise ValueError("a new node has an address, a key and a disk; one that is known has none of them")
            return put_number(message.node, 1) + put_string(message.uri) + message.key + message.disk
        case RemoveNode():
            return put_number(message.node, 1)
        case NewSet():
            return _put_nodes(EntryType.NEW_SERIALIZER_SET, message.nodes)
        case _:
            assert_never(message)


def decode_fields(cursor: ByteReader, entry_type: int) -> NodeMessage:
    match entry_type:
        case EntryType.ADD_EXECUTOR_NODE | EntryType.ADD_INGEST_NODE | EntryType.ADD_CONFIG_NODE:
            node, uri = _node(cursor), cursor.string("uri")
            if not uri:
                return AddNode(EntryType(entry_type), node)
            key, disk = cursor.take(KEY_BYTES, "key"), cursor.take(DISK_BYTES, "disk")
            return AddNode(EntryType(entry_type), node, uri, key, disk)
        case EntryType.REMOVE_EXECUTOR_NODE | EntryType.REMOVE_INGEST_NODE:
            return RemoveNode(EntryType(entry_type), _node(cursor))
        case EntryType.NEW_SERIALIZER_SET:
            return NewSet(_nodes(cursor, EntryType.NEW_SERIALIZER_SET))
        case _:
            raise Malformed(f"configuration: entry type {entry_type} is not known here")


def encode_step(step: StageStep) -> bytes:
    if step.stage not in LATER[step.entry_type] or len(step.change) != CHANGE_BYTES:
        raise ValueError(f"{step.entry_type.name} has no stage {step.stage.name} of a master's own")
    nodes = _put_nodes(step.entry_type, step.nodes)
    return nodes + step.change + put_number(step.reason, 1) + put_number(step.about, 1)


def decode_step(entry_type: int, stage: int, data: bytes) -> StageStep:
    try:
        kind, at = EntryType(entry_type), Stage(stage)
        later = LATER[kind]
    except (ValueError, KeyError):
        raise Malformed(f"configuration: entry type {entry_type} has no stage {stage}") from None
    if at not in later:
        raise Malformed(f"configuration: {kind.name} has no stage {at.name} of a master's own")
    cursor = ByteReader(data)
    nodes, change = _nodes(cursor, kind), cursor.take(CHANGE_BYTES, "change")
    reason, about = cursor.number(1, "reason"), cursor.number(1, "node")
    cursor.end("configuration")
    if reason not in tuple(SetRefusal) or bool(reason) != (at is Stage.REFUSE):
        raise Malformed("configuration: a reason belongs to a refusal, and to nothing else")
    return StageStep(kind, at, nodes, change, SetRefusal(reason), about)


def _put_nodes(entry_type: EntryType, nodes: tuple[int, ...]) -> bytes:
    """One node id; for a serializer set, a count and the ids."""
    count = put_number(len(nodes), 1) if entry_type is EntryType.NEW_SERIALIZER_SET else b""
    return count + b"".join(put_number(node, 1) for node in nodes)


def _nodes(cursor: ByteReader, entry_type: EntryType) -> tuple[int, ...]:
    if entry_type is not EntryType.NEW_SERIALIZER_SET:
        return (_node(cursor),)
    nodes = tuple(_node(cursor) for _ in range(cursor.number(1, "serializers")))
    if not 1 <= len(nodes) <= SERIALIZERS_MAX or len(set(nodes)) < len(nodes):
        raise Malformed(f"configuration: a set has 1 to {SERIALIZERS_MAX} serializers, each once")
    return nodes


def _node(cursor: ByteReader) -> int:
    node = cursor.number(1, "node")
    if not node or node == NOBODY:
        raise Malformed(f"configuration: {node} is no node id")
    return node


NOBODY = 0xFF
"""In the hard state on disk, this number marks a vote that is used, but not for a known candidate. No node may have it
as its id.
"""
