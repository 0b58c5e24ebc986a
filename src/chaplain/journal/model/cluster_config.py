"""The nodes of a cluster as the configuration stream has them: who there is, in which roles, and who serializes.

Decides what each configuration message about nodes changes, from the assembly and the message alone. Refuses to know
who asked (`configuration` checks signatures) and when a stage is due (`stages` does, at the master).

| message | stages, and what they change |
|---|---|
| Add Executor, Ingest or Config Node | Catchup: it is told everything; Live: it has the role |
| Remove Executor Node | Implement: it has lost the role |
| Remove Ingest Node | Block: it takes nothing more; Drop: it is neither ingest nor config node |
| New Serializer Set | Nominate: they are watched; Refuse: over; Implement: both sets count; Confirm: the new one |

Where serializers are index-only (`copies` is not 0), a member holds data or it does not, for as long as it is a member:
ingest nodes and executors do, and never serialize; so many of them as there must be copies stay.

Invariants: one new serializer set at a time, one change at a time for any other node and role; node ids and keys are
never given again; both sets count from an agreed Implement to an agreed Confirm, and these are never in one message.
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
from chaplain.link.settings import is_endpoint

CHANGES_KEPT = 32
"""Changes that are over and still known, so that whoever asks again is answered alike."""
_ROLES = {
    EntryType.ADD_EXECUTOR_NODE: "executor",
    EntryType.REMOVE_EXECUTOR_NODE: "executor",
    EntryType.ADD_INGEST_NODE: "ingest",
    EntryType.REMOVE_INGEST_NODE: "ingest",
    EntryType.ADD_CONFIG_NODE: "config",
}
_OPEN = (Stage.CATCHUP, Stage.BLOCK, Stage.NOMINATE)


class MemberRoles(Frozen, frozen=True, array_like=True):
    """A node, and the stage of each of its roles: none, catching up, live, or blocked."""

    node: int
    key: bytes
    uri: str
    disk: bytes
    executor: int = Stage.NONE
    ingest: int = Stage.NONE
    config: int = Stage.NONE

    @property
    def roles(self) -> list[str]:
        return [role for role in ("ingest", "executor", "config") if getattr(self, role) == Stage.LIVE]


class ConfigChange(Frozen, frozen=True, array_like=True):
    """What became of one request so far."""

    id: bytes
    asked: bytes
    """Names the request: asking for it again gives the same change."""
    entry_type: int
    nodes: tuple[int, ...]
    stage: int
    since: int
    """Index of the message that brought it to this stage."""
    reason: int = SetRefusal.NONE
    about: int = 0

    @property
    def open(self) -> bool:
        joint = self.entry_type == EntryType.NEW_SERIALIZER_SET and self.stage == Stage.IMPLEMENT
        return joint or self.stage in _OPEN


class ClusterConfig(Frozen, frozen=True, array_like=True):
    nodes: tuple[MemberRoles, ...]
    """By id. Those without a role that do not serialize are gone, and stay here so that nobody gets their id."""
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
        """The serializer set that is on its way."""
        kind = EntryType.NEW_SERIALIZER_SET
        return next((change for change in self.changes if change.open and change.entry_type == kind), None)

    @property
    def quorum(self) -> Quorum:
        """Who has to agree to the message behind the one that made this assembly."""
        change = self.new_set
        if change is not None and change.stage == Stage.IMPLEMENT:
            return Quorum((self.serializers, change.nodes))
        return Quorum((self.serializers,))

    @property
    def members(self) -> tuple[int, ...]:
        """Everybody who is told what is ordered."""
        return tuple(member.node for member in self.nodes if self.is_member(member))

    def is_member(self, member: MemberRoles) -> bool:
        return bool(member.executor or member.ingest or member.config) or member.node in self.quorum.voters

    def holds_data(self, node: int) -> bool:
        """Whether the payloads are this node's to keep, where serializers are index-only."""
        member = self.node(node)
        return member is None or bool(member.executor or member.ingest)

    def takes_writes(self, node: int) -> bool:
        """Whether ingest messages of this node count: from Live until Drop."""
        member = self.node(node)
        return member is not None and member.ingest in (Stage.LIVE, Stage.BLOCK)

    def change_of_request(self, asked: bytes) -> ConfigChange | None:
        return next((change for change in self.changes if change.asked == asked), None)


def initial_config(nodes: Iterable[MemberRoles]) -> ClusterConfig:
    """All have all roles, and all serialize."""
    live = {"executor": Stage.LIVE, "ingest": Stage.LIVE, "config": Stage.LIVE}
    member = tuple(msgspec.structs.replace(node, **live) for node in sorted(nodes, key=lambda one: one.node))
    return ClusterConfig(member, tuple(node.node for node in member))


def index_only_config(config: ClusterConfig) -> ClusterConfig:
    """The same with serializers that are index-only: they have no role for which one needs payloads."""
    bare = {"executor": Stage.NONE, "ingest": Stage.NONE}
    nodes = (
        msgspec.structs.replace(node, **bare) if node.node in config.serializers else node for node in config.nodes
    )
    return msgspec.structs.replace(config, nodes=tuple(nodes))


# The stage that a client asks for.


def open_change(
    config: ClusterConfig, message: NodeMessage, change: bytes, asked: bytes, index: int, *, copies: int = 0
) -> tuple[ClusterConfig, Reason]:
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
    """One change at a time; but a node that never catches up can be removed again."""
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
            return Reason.BAD_ADDRESS  # every member would dial it, for ever
        return Reason.KEY_TAKEN if any(one.key == message.key for one in config.nodes) else Reason.APPLIED
    if not config.is_member(member):
        return Reason.NODE_TAKEN  # it was removed: that id, and that key, are spent
    if message.uri and (message.key, message.disk) != (member.key, member.disk):
        return Reason.NODE_TAKEN
    return Reason.ROLE_HELD if getattr(member, _ROLES[message.entry_type]) else Reason.APPLIED


def _refusal_of_remove(config: ClusterConfig, message: RemoveNode) -> Reason:
    member, role = config.node(message.node), _ROLES[message.entry_type]
    if member is None or not config.is_member(member):
        return Reason.UNKNOWN_NODE
    if not getattr(member, role) and not (role == "ingest" and member.config):
        return Reason.ROLE_MISSING
    left = [one for one in config.nodes if getattr(one, role) == Stage.LIVE and one.node != message.node]
    return Reason.APPLIED if left else Reason.NEEDED


def _data_role_refusal(config: ClusterConfig, message: NodeMessage, copies: int) -> Reason:
    """Where serializers are index-only: nobody begins to hold data who did not, or stops, and enough are left."""
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
    left = [node for node in config.members if node != message.node and config.holds_data(node)]
    return Reason.INDEX_ONLY if after.config else Reason.APPLIED if len(left) >= copies else Reason.NEEDED


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
    """A node that is removed while it catches up was never live."""
    same = message.node in change.nodes and change.entry_type in ADDS
    if not change.open or not same or _is_executor_type(change.entry_type) != _is_executor_type(message.entry_type):
        return change
    return msgspec.structs.replace(change, stage=Stage.DROP, since=index)


def _is_executor_type(entry_type: int) -> bool:
    return _ROLES[EntryType(entry_type)] == "executor"


# The stages that a master adds.


def apply_stage(config: ClusterConfig, step: StageStep, index: int) -> tuple[ClusterConfig, Reason]:
    change = next((one for one in config.changes if one.id == step.change and one.open), None)
    if change is None or not _is_due(config, change, step, index):
        return config, Reason.NOT_DUE
    after = msgspec.structs.replace(change, stage=step.stage, since=index, reason=step.reason, about=step.about)
    changes = tuple(after if one.id == change.id else one for one in config.changes)
    config = msgspec.structs.replace(config, changes=changes)
    return _apply_effect(config, step), Reason.APPLIED


def _is_due(config: ClusterConfig, change: ConfigChange, step: StageStep, index: int) -> bool:
    """Never two stages in one message: between them lies what is agreed under the first."""
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


# Keeping it.


def _with_member(config: ClusterConfig, member: MemberRoles) -> ClusterConfig:
    others = [node for node in config.nodes if node.node != member.node]
    nodes = tuple(sorted([*others, member], key=lambda one: one.node))
    return msgspec.structs.replace(config, nodes=nodes)


def _with_change(config: ClusterConfig, change: ConfigChange) -> ClusterConfig:
    """Remember the change; forget the oldest that is over, if there are too many."""
    over = [one.id for one in config.changes if not one.open]
    spare = set(over[: max(0, len(over) + 1 - CHANGES_KEPT)])
    kept = tuple(one for one in config.changes if one.id not in spare)
    return msgspec.structs.replace(config, changes=(*kept, change))
