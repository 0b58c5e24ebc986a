"""Nodes, roles and serializer sets as values: what each message of the configuration stream changes, and what not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chaplain.errors import Malformed
from chaplain.journal.messages.config import acl_id
from chaplain.journal.messages.membership import (
    AddNode,
    EntryType,
    NewSet,
    NodeMessage,
    RemoveNode,
    SetRefusal,
    Stage,
    StageStep,
    decode_fields,
    decode_step,
    encode_fields,
    encode_step,
    is_opening,
)
from chaplain.journal.model.cluster_config import (
    CHANGES_KEPT,
    ClusterConfig,
    MemberRoles,
    apply_stage,
    initial_config,
    open_change,
)
from chaplain.journal.model.quorum import Quorum
from chaplain.journal.model.reason import Reason
from chaplain.link.auth.identity import Identity
from chaplain.wire.primitives import ByteReader

PAGE = Path(__file__).parents[4] / "docs" / "protocol" / "configuration.md"
KEY = Identity(b"d" * 32).key
NEW = AddNode(EntryType.ADD_EXECUTOR_NODE, 4, "tcp://10.0.0.4:7400", KEY, b"\xd4" * 16)
CHANGE = acl_id(2, 7, 0)


class Stream:
    """A cluster configuration, and messages that come to it one after the other."""

    def __init__(self) -> None:
        self.now = initial_config(MemberRoles(node, bytes((node,)) * 32, f"tcp://{node}", b"") for node in (3, 1, 2))
        self.index = 0
        self.reason = Reason.APPLIED

    def ask(self, message: NodeMessage, asked: bytes = b"") -> Stream:
        self.index += 1
        change = acl_id(1, self.index, 0)
        self.now, self.reason = open_change(self.now, message, change, asked or change, self.index)
        return self

    def step(self, stage: Stage, place: int = -1, **fields: object) -> Stream:
        change = self.now.changes[place]
        self.index += 1
        step = StageStep(EntryType(change.entry_type), stage, change.nodes, change.id, **fields)  # type: ignore[arg-type]
        self.now, self.reason = apply_stage(self.now, step, self.index)
        return self

    def denied(self, message: NodeMessage) -> Reason:
        before = self.now
        self.ask(message)
        assert self.now is before
        return self.reason


@pytest.fixture
def stream() -> Stream:
    return Stream()


def roles(cluster_config: ClusterConfig, node: int) -> list[str]:
    placed = cluster_config.node(node)
    assert placed is not None
    return placed.roles


def known(kind: EntryType, node: int) -> AddNode:
    return AddNode(kind, node)


def test_founding_node_has_every_role_and_is_a_serializer(stream):
    assert stream.now.serializers == (1, 2, 3)
    assert roles(stream.now, 2) == ["ingest", "executor", "config"]
    assert stream.now.members == (1, 2, 3)


def test_new_node_is_a_member_in_catchup_and_has_its_role_when_live(stream):
    stream.ask(NEW)
    assert stream.now.members == (1, 2, 3, 4)
    assert roles(stream.now, 4) == []
    stream.step(Stage.LIVE)
    assert roles(stream.now, 4) == ["executor"]
    assert not stream.now.takes_writes(4)
    stream.ask(known(EntryType.ADD_INGEST_NODE, 4)).step(Stage.LIVE)
    assert stream.now.takes_writes(4)
    stream.ask(known(EntryType.ADD_CONFIG_NODE, 4)).step(Stage.LIVE)
    assert roles(stream.now, 4) == ["ingest", "executor", "config"]
    assert stream.now.serializers == (1, 2, 3)


def test_ingest_node_is_blocked_before_it_is_dropped(stream):
    stream.ask(RemoveNode(EntryType.REMOVE_INGEST_NODE, 2))
    assert roles(stream.now, 2) == ["executor"]
    assert stream.now.takes_writes(2)
    stream.step(Stage.DROP)
    assert not stream.now.takes_writes(2)


def test_node_without_role_and_vote_is_removed_for_ever(stream):
    stream.ask(NEW).step(Stage.LIVE).ask(RemoveNode(EntryType.REMOVE_EXECUTOR_NODE, 4))
    assert stream.now.members == (1, 2, 3)
    assert stream.denied(NEW) is Reason.NODE_TAKEN
    again = AddNode(EntryType.ADD_INGEST_NODE, 5, "tcp://10.0.0.5:7400", KEY, b"\xd5" * 16)
    assert stream.denied(again) is Reason.KEY_TAKEN


@pytest.mark.parametrize(
    "address", ["nonsense", "tcp://x", "tcp://x:0", "tcp://x:65536", "ipc:///tmp/x", "tcp://a b:1"]
)
def test_undialable_address_is_refused(stream, address):
    before = stream.now
    assert stream.denied(AddNode(EntryType.ADD_EXECUTOR_NODE, 4, address, KEY, b"\xd4" * 16)) is Reason.BAD_ADDRESS
    assert stream.now == before


def test_serializer_without_other_roles_stays_a_member(stream):
    stream.ask(RemoveNode(EntryType.REMOVE_EXECUTOR_NODE, 3))
    stream.ask(RemoveNode(EntryType.REMOVE_INGEST_NODE, 3)).step(Stage.DROP)
    assert stream.now.members == (1, 2, 3)
    stream.ask(NewSet((1, 2))).step(Stage.IMPLEMENT)
    assert stream.now.members == (1, 2, 3)
    stream.step(Stage.CONFIRM)
    assert stream.now.members == (1, 2)


def test_both_sets_count_between_implement_and_confirm(stream):
    stream.ask(NEW).step(Stage.LIVE).ask(NewSet((4, 2)))
    assert stream.now.quorum == Quorum(((1, 2, 3),))
    stream.step(Stage.IMPLEMENT)
    assert stream.now.quorum == Quorum(((1, 2, 3), (4, 2)))
    stream.step(Stage.CONFIRM)
    assert stream.now.quorum == Quorum(((4, 2),))
    assert stream.now.new_set is None


def test_joint_quorum_needs_more_than_half_of_each_set():
    both = Quorum(((1, 2, 3), (3, 4, 5, 6)))
    assert both.voters == (1, 2, 3, 4, 5, 6)
    assert not both.reached([1, 2, 4, 5])
    assert not both.reached([3, 4, 5, 6])
    assert both.reached([1, 3, 4, 5])
    assert not Quorum(((1, 2),)).reached([2])
    assert not Quorum(((1, 2, 3, 4),)).reached([1, 2])


def test_refused_set_changes_nothing_and_allows_the_next_one(stream):
    stream.ask(NewSet((1, 2)))
    assert stream.denied(NewSet((2, 3))) is Reason.CHANGE_UNDER_WAY
    stream.step(Stage.REFUSE, reason=SetRefusal.TIMED_OUT, about=2)
    assert (stream.now.serializers, stream.now.changes[0].about) == ((1, 2, 3), 2)
    assert stream.ask(NewSet((2, 3))).reason is Reason.APPLIED


@pytest.mark.parametrize("stage", [Stage.CONFIRM, Stage.LIVE, Stage.DROP])
def test_stage_that_is_not_due_changes_nothing(stream, stage):
    stream.ask(NewSet((1, 2)))
    before = stream.now
    stream.step(stage)
    assert (stream.now, stream.reason) == (before, Reason.NOT_DUE)


def test_message_cannot_contain_two_stages(stream):
    stream.ask(NewSet((1, 2))).step(Stage.IMPLEMENT)
    stream.index -= 1
    assert stream.step(Stage.CONFIRM).reason is Reason.NOT_DUE
    assert stream.step(Stage.CONFIRM).reason is Reason.APPLIED


def test_nominated_node_cannot_be_removed(stream):
    stream.ask(NEW).step(Stage.LIVE).ask(NewSet((1, 2, 4)))
    assert stream.denied(RemoveNode(EntryType.REMOVE_EXECUTOR_NODE, 4)) is Reason.CHANGE_UNDER_WAY


def test_node_that_never_catches_up_can_be_removed(stream):
    stream.ask(NEW).ask(RemoveNode(EntryType.REMOVE_EXECUTOR_NODE, 4))
    assert stream.reason is Reason.APPLIED
    assert stream.now.members == (1, 2, 3)
    assert not [change for change in stream.now.changes if change.open]
    assert stream.step(Stage.LIVE, place=0).reason is Reason.NOT_DUE


def test_impossible_changes_are_refused_with_their_reasons(stream):
    assert stream.denied(NewSet((1, 9))) is Reason.UNKNOWN_NODE
    assert stream.denied(known(EntryType.ADD_INGEST_NODE, 9)) is Reason.UNKNOWN_NODE
    assert stream.denied(known(EntryType.ADD_INGEST_NODE, 1)) is Reason.ROLE_HELD
    assert stream.denied(RemoveNode(EntryType.REMOVE_EXECUTOR_NODE, 9)) is Reason.UNKNOWN_NODE
    stream.ask(NEW).step(Stage.LIVE)
    assert stream.denied(RemoveNode(EntryType.REMOVE_INGEST_NODE, 4)) is Reason.ROLE_MISSING
    for node in (1, 2):
        stream.ask(RemoveNode(EntryType.REMOVE_INGEST_NODE, node)).step(Stage.DROP)
    assert stream.denied(RemoveNode(EntryType.REMOVE_INGEST_NODE, 3)) is Reason.NEEDED


def test_finished_changes_are_forgotten_up_to_a_bound_and_open_ones_never(stream):
    stream.ask(NEW, asked=b"first")
    for number in range(CHANGES_KEPT + 5):
        stream.ask(NewSet((1, 2)), asked=b"%d" % number).step(Stage.REFUSE, reason=SetRefusal.TIMED_OUT, about=2)
    assert len(stream.now.changes) <= CHANGES_KEPT + 1
    assert stream.now.change_of_request(b"first") is not None
    assert stream.now.change_of_request(b"0") is None
    assert stream.now.change_of_request(b"%d" % (CHANGES_KEPT + 4)) is not None


# Octets.

EXAMPLES = {
    "add": encode_fields(NEW),
    "set": encode_fields(NewSet((4, 2, 3))),
    "refuse": encode_step(
        StageStep(EntryType.NEW_SERIALIZER_SET, Stage.REFUSE, (4, 2, 3), CHANGE, SetRefusal.TIMED_OUT, 4),
    ),
    "live": encode_step(StageStep(EntryType.ADD_EXECUTOR_NODE, Stage.LIVE, (4,), CHANGE)),
}


def test_configuration_page_examples_and_stages_match_the_code():
    page = PAGE.read_text()
    shown = {name: bytes.fromhex(text) for name, text in re.findall(r"```hex (\w+)\n(.*?)```", page, re.DOTALL)}
    assert shown == EXAMPLES
    for stage in list(Stage)[1:]:
        assert f"{stage.value} {stage.name.capitalize()}" in page


def test_configuration_messages_round_trip():
    for message in (NEW, NewSet((4, 2, 3)), known(EntryType.ADD_CONFIG_NODE, 7)):
        kind = EntryType.NEW_SERIALIZER_SET if isinstance(message, NewSet) else message.entry_type
        assert decode_fields(ByteReader(encode_fields(message)), kind) == message
    assert decode_step(7, Stage.REFUSE, EXAMPLES["refuse"]).about == 4
    assert decode_step(2, Stage.LIVE, EXAMPLES["live"]).nodes == (4,)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (7, b"\x00"),
        (7, b"\x02\x01\x01"),
        (7, b"\x01\x00"),
        (7, b"\x01\xff"),
        (7, b"\x10" + bytes(range(1, 17))),
        (2, b"\x00\x00"),
        (99, b""),
    ],
)
def test_invalid_change_request_is_malformed(kind, data):
    with pytest.raises(Malformed):
        decode_fields(ByteReader(data), kind)


@pytest.mark.parametrize(
    ("kind", "stage", "data"),
    [(7, 6, b""), (7, 99, b""), (8, 2, b""), (3, 3, b""), (7, 8, EXAMPLES["refuse"]), (2, 2, EXAMPLES["live"] + b"x")],
)
def test_invalid_later_stage_is_malformed(kind, stage, data):
    with pytest.raises(Malformed):
        decode_step(kind, stage, data)


def test_later_stages_cannot_be_requested():
    asked = {(kind, stage) for kind in range(2, 8) for stage in range(9) if is_opening(kind, stage)}
    assert asked == {(2, 1), (3, 3), (4, 1), (5, 4), (6, 1), (7, 6)}
    assert is_opening(8, 0)
    assert not is_opening(8, 1)
