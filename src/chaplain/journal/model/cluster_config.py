"""The cluster configuration as the configuration stream defines it: the nodes, their roles, and the serializer set.

Decides how each configuration message about nodes changes the cluster configuration, from the configuration and the
message alone. Does not know the sender of a request (`execution.config` checks signatures), or when a later stage is
due (the master decides that in `consensus.reconfiguration`).

| message | stages, and what they change |
|---|---|
| Add Executor, Ingest or Config Node | Catchup: the node receives everything; Live: it has the role |
| Remove Executor Node | Implement: the node has lost the role |
| Remove Ingest Node | Block: the node accepts nothing more; Drop: it is neither ingest nor config node |
| New Serializer Set | Nominate: the master watches the set; Refuse: it is dropped; Implement: both sets must agree |
| | Confirm: the new set alone must agree |

If serializers are index-only (`copies` is not 0), a member never changes whether it stores payloads. Ingest nodes and
executors store payloads and never serialize. At least `copies` of them must remain.

Invariants: at most one new serializer set is under way, and at most one change of any other node and role. Node ids and
keys are never reused. Both sets count from the agreed Implement to the agreed Confirm (joint consensus), and one
message never contains both.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from chaplain.core import Frozen
from chaplain.journal.messages.membership import (
    ADDS,
    AddNode,
    EntryType,
    NewSet,
    NodeMessage,
    RemoveNode,
    SetRefusal,
    Stage,
    StageStep,
    nodes_of,
    type_of,
)
from chaplain.journal.model.quorum import Quorum
from chaplain.journal.model.reason import Reason
from chaplain.link.endpoint import is_endpoint

CHANGES_KEPT = 32
"""Number of finished changes that the state retains, so that a repeated request gets the same answer."""
_ROLES = {
    EntryType.ADD_EXECUTOR_NODE: "executor",
    EntryType.REMOVE_EXECUTOR_NODE: "executor",
    EntryType.ADD_INGEST_NODE: "ingest",
    EntryType.REMOVE_INGEST_NODE: "ingest",
    EntryType.ADD_CONFIG_NODE: "config",
}
_OPEN = (Stage.CATCHUP, Stage.BLOCK, Stage.NOMINATE)


class MemberRoles(Frozen, frozen=True, array_like=True):
    """A node with the stage of each of its roles: none, catching up, live, or blocked."""

    node: int
    key: bytes
    uri: str
    disk: bytes
    executor: int = Stage.NONE
    ingest: int = Stage.NONE
    config: int = Stage.NONE

    @property
    def roles(self) -> list[str]:
        """Names of the roles in which the node is live."""
        return [role for role in ("ingest", "executor", "config") if getattr(self, role) == Stage.LIVE]


class ConfigChange(Frozen, frozen=True, array_like=True):
    """One requested change and the stage that it has reached."""

    id: bytes
    asked: bytes
    """Digest of signer and nonce of the request. A repeated request finds the same change by it."""
    entry_type: int
    nodes: tuple[int, ...]
    stage: int
    since: int
    """Index of the message that brought the change to this stage."""
    reason: int = SetRefusal.NONE
    about: int = 0
    """The node because of which the change was refused."""

    @property
    def open(self) -> bool:
        """True until the change has reached its last stage."""
        joint = self.entry_type == EntryType.NEW_SERIALIZER_SET and self.stage == Stage.IMPLEMENT
        return joint or self.stage in _OPEN


class ClusterConfig(Frozen, frozen=True, array_like=True):
    """All nodes that ever were members, the serializers, and the open and recently finished changes."""

    nodes: tuple[MemberRoles, ...]
    """Ordered by id. A node without a role that does not serialize was removed; its entry remains so that its id and
    key are not reused.
    """
    serializers: tuple[int, ...]
    changes: tuple[ConfigChange, ...] = ()
    """In the order in which they were opened."""

    def node(self, node: int) -> MemberRoles | None:
        for member in self.nodes:
            if member.node == node:
                return member
        return None

    @property
    def new_set(self) -> ConfigChange | None:
        """The open change of the serializer set, if there is one."""
        kind = EntryType.NEW_SERIALIZER_SET
        return next((change for change in self.changes if change.open and change.entry_type == kind), None)

    @property
    def quorum(self) -> Quorum:
        """The quorum that must agree on the message after the one that produced this configuration."""
        change = self.new_set
        # Joint consensus (Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", section 6).
        if change is not None and change.stage == Stage.IMPLEMENT:
            return Quorum((self.serializers, change.nodes))
        return Quorum((self.serializers,))

    @property
    def members(self) -> tuple[int, ...]:
        """Ids of the nodes that receive what is ordered."""
        return tuple(member.node for member in self.nodes if self.is_member(member))

    def is_member(self, member: MemberRoles) -> bool:
        """True if the node has a role in any stage, or is a voter."""
        return bool(member.executor or member.ingest or member.config) or member.node in self.quorum.voters

    def holds_data(self, node: int) -> bool:
        """True if this node stores payloads, in a cluster whose serializers are index-only."""
        member = self.node(node)
        return member is None or bool(member.executor or member.ingest)

    def takes_writes(self, node: int) -> bool:
        """True if ingest messages of this node count: from Live until Drop."""
        member = self.node(node)
        return member is not None and member.ingest in (Stage.LIVE, Stage.BLOCK)

    def change_of_request(self, asked: bytes) -> ConfigChange | None:
        """The change that the request with this digest opened."""
        return next((change for change in self.changes if change.asked == asked), None)


def initial_config(nodes: Iterable[MemberRoles]) -> ClusterConfig:
    """A configuration in which every node has all roles and serializes."""
    live = {"executor": Stage.LIVE, "ingest": Stage.LIVE, "config": Stage.LIVE}
    members = tuple(msgspec.structs.replace(node, **live) for node in sorted(nodes, key=lambda one: one.node))
    return ClusterConfig(members, tuple(member.node for member in members))


def index_only_config(config: ClusterConfig) -> ClusterConfig:
    """The same configuration with index-only serializers: they lose the roles that need payloads."""
    without_payloads = {"executor": Stage.NONE, "ingest": Stage.NONE}
    nodes = (
        msgspec.structs.replace(node, **without_payloads) if node.node in config.serializers else node
        for node in config.nodes
    )
    return msgspec.structs.replace(config, nodes=tuple(nodes))


# The opening stage, which a client requests.


def open_change(
    config: ClusterConfig, message: NodeMessage, change: bytes, asked: bytes, index: int, *, copies: int = 0
) -> tuple[ClusterConfig, Reason]:
    """Apply the opening stage of a change, or return the unchanged configuration and the reason for the refusal."""
    reason = _refusal(config, message)
    if reason is Reason.APPLIED and copies:
        reason = _data_role_refusal(config, message, copies)
    if reason is not Reason.APPLIED:
        return config, reason
    match message:
        case AddNode():
            return _add(config, message, change, asked, index), reason
        case RemoveNode():
            return _remove(config, message, change, asked, index), reason
        case NewSet():
            nominated = ConfigChange(change, asked, type_of(message), message.nodes, Stage.NOMINATE, index)
            return _with_change(config, nominated), reason


def _refusal(config: ClusterConfig, message: NodeMessage) -> Reason:
    """The reason why the request is refused; APPLIED if it is not."""
    if _change_under_way(config, message):
        return Reason.CHANGE_UNDER_WAY
    match message:
        case AddNode():
            return _refusal_of_add(config, message)
        case RemoveNode():
            return _refusal_of_remove(config, message)
        case NewSet():
            members = config.members
            return Reason.APPLIED if all(node in members for node in message.nodes) else Reason.UNKNOWN_NODE


def _change_under_way(config: ClusterConfig, message: NodeMessage) -> bool:
    """True if another change of the same node or set is open. A node that never catches up can still be removed."""
    if isinstance(message, NewSet):
        return config.new_set is not None
    for change in config.changes:
        cancels = isinstance(message, RemoveNode) and change.entry_type in ADDS
        if change.open and message.node in change.nodes and not cancels:
            return True
    return False


def _refusal_of_add(config: ClusterConfig, message: AddNode) -> Reason:
    member = config.node(message.node)
    if member is None:
        if not message.uri:
            return Reason.UNKNOWN_NODE
        if not is_endpoint(message.uri):
            return Reason.BAD_ADDRESS  # every member would try to connect to it for ever
        return Reason.KEY_TAKEN if any(one.key == message.key for one in config.nodes) else Reason.APPLIED
    if not config.is_member(member):
        return Reason.NODE_TAKEN  # it was removed: its id and key are never reused
    if message.uri and (message.key, message.disk) != (member.key, member.disk):
        return Reason.NODE_TAKEN
    return Reason.ROLE_HELD if getattr(member, _ROLES[message.entry_type]) else Reason.APPLIED


def _refusal_of_remove(config: ClusterConfig, message: RemoveNode) -> Reason:
    member, role = config.node(message.node), _ROLES[message.entry_type]
    if member is None or not config.is_member(member):
        return Reason.UNKNOWN_NODE
    if not getattr(member, role) and not (role == "ingest" and member.config):
        return Reason.ROLE_MISSING
    remaining = [one for one in config.nodes if getattr(one, role) == Stage.LIVE and one.node != message.node]
    return Reason.APPLIED if remaining else Reason.NEEDED


def _data_role_refusal(config: ClusterConfig, message: NodeMessage, copies: int) -> Reason:
    """Extra rules where serializers are index-only: no member begins or stops to store payloads, and enough members
    that store them remain.
    """
    if isinstance(message, NewSet):
        return Reason.INDEX_ONLY if any(map(config.holds_data, message.nodes)) else Reason.APPLIED
    member = config.node(message.node)
    if member is None:
        return Reason.APPLIED
    if isinstance(message, AddNode):
        needs = message.entry_type != EntryType.ADD_CONFIG_NODE
        return Reason.INDEX_ONLY if needs and not config.holds_data(message.node) else Reason.APPLIED
    if not config.holds_data(message.node):
        return Reason.APPLIED
    after = _without_role(member, _ROLES[message.entry_type], Stage.DROP)
    if after.executor or after.ingest:
        return Reason.APPLIED
    remaining = [node for node in config.members if node != message.node and config.holds_data(node)]
    return Reason.INDEX_ONLY if after.config else Reason.APPLIED if len(remaining) >= copies else Reason.NEEDED


def _add(config: ClusterConfig, message: AddNode, change: bytes, asked: bytes, index: int) -> ClusterConfig:
    member = config.node(message.node) or MemberRoles(message.node, message.key, message.uri, message.disk)
    member = msgspec.structs.replace(member, **{_ROLES[message.entry_type]: Stage.CATCHUP})
    opened = ConfigChange(change, asked, message.entry_type, nodes_of(message), Stage.CATCHUP, index)
    return _with_change(_with_member(config, member), opened)


def _remove(config: ClusterConfig, message: RemoveNode, change: bytes, asked: bytes, index: int) -> ClusterConfig:
    member = config.node(message.node)
    assert member is not None
    role = _ROLES[message.entry_type]
    live = role == "ingest" and Stage.LIVE in (member.ingest, member.config)
    stage = Stage.BLOCK if live else Stage.IMPLEMENT if role == "executor" else Stage.DROP
    cancelled = tuple(_cancel(one, message, index) for one in config.changes)
    config = msgspec.structs.replace(config, changes=cancelled)
    opened = ConfigChange(change, asked, message.entry_type, nodes_of(message), stage, index)
    return _with_change(_with_member(config, _without_role(member, role, stage)), opened)


def _without_role(member: MemberRoles, role: str, stage: Stage) -> MemberRoles:
    if role == "executor":
        return msgspec.structs.replace(member, executor=Stage.NONE)
    after = Stage.BLOCK if stage is Stage.BLOCK else Stage.NONE
    blocked = {name: after for name in ("ingest", "config") if getattr(member, name)}
    return msgspec.structs.replace(member, **blocked)


def _cancel(change: ConfigChange, message: RemoveNode, index: int) -> ConfigChange:
    """End the open addition of a role that a removal takes away again: the node was never live in that role."""
    same = message.node in change.nodes and change.entry_type in ADDS
    if not change.open or not same or _is_executor_type(change.entry_type) != _is_executor_type(message.entry_type):
        return change
    return msgspec.structs.replace(change, stage=Stage.DROP, since=index)


def _is_executor_type(entry_type: int) -> bool:
    return _ROLES[EntryType(entry_type)] == "executor"


# The later stages, which a master adds.


def apply_stage(config: ClusterConfig, step: StageStep, index: int) -> tuple[ClusterConfig, Reason]:
    """Apply a later stage that a master ordered; NOT_DUE if the change is not in the stage before it."""
    change = next((one for one in config.changes if one.id == step.change and one.open), None)
    if change is None or not _is_due(config, change, step, index):
        return config, Reason.NOT_DUE
    after = msgspec.structs.replace(change, stage=step.stage, since=index, reason=step.reason, about=step.about)
    changes = tuple(after if one.id == change.id else one for one in config.changes)
    config = msgspec.structs.replace(config, changes=changes)
    return _apply_effect(config, step), Reason.APPLIED


def _is_due(config: ClusterConfig, change: ConfigChange, step: StageStep, index: int) -> bool:
    """True if the change is ready for this stage.

    Two stages of a change are never in one message: the quorum of a message follows from the configuration before it,
    so at least one message must be agreed under each stage.
    """
    if (change.entry_type, change.nodes) != (step.entry_type, step.nodes) or index <= change.since:
        return False
    match step.stage:
        case Stage.LIVE:
            return change.stage == Stage.CATCHUP
        case Stage.DROP:
            return change.stage == Stage.BLOCK
        case Stage.REFUSE:
            return change.stage == Stage.NOMINATE
        case Stage.IMPLEMENT:
            members = config.members
            return change.stage == Stage.NOMINATE and all(node in members for node in change.nodes)
        case Stage.CONFIRM:
            return change.stage == Stage.IMPLEMENT
        case _:
            return False


def _apply_effect(config: ClusterConfig, step: StageStep) -> ClusterConfig:
    if step.stage is Stage.CONFIRM:
        return msgspec.structs.replace(config, serializers=step.nodes)
    if step.stage not in (Stage.LIVE, Stage.DROP):
        return config
    member = config.node(step.nodes[0])
    assert member is not None
    if step.stage is Stage.DROP:
        return _with_member(config, _without_role(member, "ingest", Stage.DROP))
    return _with_member(config, msgspec.structs.replace(member, **{_ROLES[step.entry_type]: Stage.LIVE}))


# Copies with one change.


def _with_member(config: ClusterConfig, member: MemberRoles) -> ClusterConfig:
    others = [node for node in config.nodes if node.node != member.node]
    nodes = tuple(sorted([*others, member], key=lambda one: one.node))
    return msgspec.structs.replace(config, nodes=nodes)


def _with_change(config: ClusterConfig, change: ConfigChange) -> ClusterConfig:
    """The configuration with this change. At `CHANGES_KEPT`, the oldest finished change is deleted."""
    over = [one.id for one in config.changes if not one.open]
    spare = set(over[: max(0, len(over) + 1 - CHANGES_KEPT)])
    kept = tuple(one for one in config.changes if one.id not in spare)
    return msgspec.structs.replace(config, changes=(*kept, change))
