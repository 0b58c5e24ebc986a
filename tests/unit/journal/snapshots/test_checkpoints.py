"""Checkpoints step by step: octets, rules, what can go, and who is believed."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from chaplain.core import Halt, Persist, Replace
from chaplain.errors import Malformed
from chaplain.executor.statement import SQL_TYPE
from chaplain.journal.consensus.core import SerializerCore
from chaplain.journal.events import ToPeer
from chaplain.journal.execution.staged_packs import StagedPacks
from chaplain.journal.execution.state import ExecutionState, load
from chaplain.journal.messages import peer
from chaplain.journal.messages.cluster import DataEntry, Reference, genesis
from chaplain.journal.messages.config import MakeCheckpoint, encode_fields
from chaplain.journal.messages.peer import AskState, SnapshotOffer, StatePiece
from chaplain.journal.messages.write_request import STATEMENTS
from chaplain.journal.model.records import Staged, StagedPacksRecord
from chaplain.journal.model.results import AppliedMessage, StreamVerdict
from chaplain.journal.settings import ConsensusSettings, RetentionRules
from chaplain.journal.snapshots import checkpoint
from chaplain.journal.snapshots.checkpointer import LOOK_NS, Checkpointer
from chaplain.journal.snapshots.install import SnapshotInstaller
from chaplain.journal.snapshots.lagging_members import RETURN_NS
from chaplain.journal.snapshots.retention import NOT_NEEDED, droppable, first_needed
from chaplain.journal.snapshots.service import SnapshotService
from chaplain.journal.storage.offset_index import StreamIndex
from chaplain.journal.storage.segment_index import SegmentIndex, SegmentSpan
from chaplain.journal.storage.verdict import Reason
from simulator.adapters.consensus_node import CountingExecution, identity_of
from tests.support.execution_stage import BOB, Stage, founding, petition

PAGE = Path(__file__).parents[4] / "docs" / "protocol" / "checkpoints.md"
EXAMPLES = {
    "fields": encode_fields(MakeCheckpoint(1000)),
    "file": checkpoint.encode(checkpoint.make(7, b"state", 3)),
    "covered": peer.encode(SnapshotOffer(7, bytes(range(32)), 5, 3, 9, confirmed=True))[0],
    "ask": peer.encode(AskState(7, 5))[0],
}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_checkpoint_page_examples_match_the_code(name: str) -> None:
    found = re.search(rf"```hex {name}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    assert bytes.fromhex(found[1]) == EXAMPLES[name]


def test_checkpoint_messages_round_trip() -> None:
    for message in (SnapshotOffer(7, bytes(32), 5, 3, 9, confirmed=False), AskState(1, 2), StatePiece(1, 2, b"octets")):
        assert peer.decode(*peer.encode(message)) == message


def test_checkpoint_file_with_one_wrong_bit_is_malformed() -> None:
    data = checkpoint.encode(checkpoint.make(7, b"state", 3))
    assert checkpoint.decode(data) == (3, b"state")
    for place in range(len(data)):
        with pytest.raises(Malformed):
            checkpoint.decode(data[:place] + bytes((data[place] ^ 4,)) + data[place + 1 :])
    with pytest.raises(Malformed):
        checkpoint.decode(data[:-1])


def test_statement_type_of_checkpoints_equals_the_executors() -> None:
    assert STATEMENTS == SQL_TYPE


# Agreed entries.


def execute(stage: Stage, entries: list[Any]) -> AppliedMessage:
    stage.prefix.order(entries)
    return stage.executed[-1]


def test_admin_requests_a_checkpoint_and_releases_the_log() -> None:
    stage = Stage()
    executed = execute(stage, [petition(MakeCheckpoint(1))])
    assert executed.checkpoint
    assert executed.verdict.entries[0].reason is Reason.APPLIED
    assert int.from_bytes(executed.verdict.entries[0].acl[4:12], "big") == executed.position.index
    assert stage.execution.state.released == 1
    assert execute(stage, [petition(MakeCheckpoint(10**6))]).checkpoint
    assert stage.execution.state.released == stage.execution.applied_index, "what is not written cannot be released"
    assert not execute(stage, []).checkpoint


def test_checkpoint_request_without_admin_is_refused() -> None:
    stage = Stage()
    executed = execute(stage, [petition(MakeCheckpoint(1), signer=BOB)])
    assert not executed.checkpoint
    assert executed.verdict.entries[0].reason is not Reason.APPLIED
    assert not stage.execution.state.released


def test_loaded_state_exports_unchanged() -> None:
    stage = Stage()
    execute(stage, [petition(MakeCheckpoint(1))])
    state = stage.execution.state
    state.databases["main"] = 1
    assert load(state.bootstrap, state.export()).export() == state.export()


# What lies where.


def places(*lasts: int, size: int = 100) -> SegmentIndex:
    made = SegmentIndex()
    made.segments = [SegmentSpan(n, n * size, (n + 1) * size, last, last * 10) for n, last in enumerate(lasts)]
    return made


def test_segments_are_dropped_from_the_front_up_to_the_limit() -> None:
    made = places(10, 20, 30, 40)
    assert [one.sequence for one in made.droppable(25)] == [0, 1]
    assert [one.sequence for one in made.droppable(100)] == [0, 1, 2], "the last one is written to"
    made.drop(made.segments[0])
    assert made.first == 11
    assert made.span(5, 40, 1) is None


def test_octets_before_a_message_are_found_with_it() -> None:
    made = places(0, 0, 0)
    for index, start in ((1, 200), (2, 250), (3, 10), (4, 20), (5, 40), (7, 50)):
        made.set_position(index, start, start + 10)
    assert made.span_back(5, 7, 100, 9) == (10, 50), "message 2 was put back later, and is elsewhere"
    assert made.span_back(5, 7, 30, 9) == (20, 50), "so many octets"
    assert made.span_back(5, 7, 1, 9) == (40, 50), "but one message at least"
    assert made.span_back(5, 7, 100, 2) == (20, 50), "so many messages"
    assert made.span_back(5, 7, 100, 0) == (40, 50)
    assert made.span_back(2, 7, 100, 9) == (200, 260), "the first has none before it"
    assert made.span_back(7, 7, 100, 9) == (50, 60), "message 6 is missing"
    assert made.span_back(7, 6, 100, 9) is None, "not on disk yet"


def test_message_across_two_segments_belongs_to_the_first() -> None:
    made = places(0, 0, 0)
    made.set_position(1, 10, 50)
    made.set_position(2, 90, 120)
    made.set_position(3, 120, 150)
    assert [one.last for one in made.segments] == [2, 3, 0]
    made.drop(made.segments[0])
    assert made.first == 3
    assert made.span(3, 3, 100) == (120, 150)


def gone(rules: RetentionRules, *, limit: int = 100, released: int = 0, now_ns: int = 0) -> int:
    return droppable(places(10, 20, 30, 40), rules, now_ns, limit=limit, released=released)


def test_retention_rules_select_segments_by_size_age_and_release() -> None:
    assert gone(RetentionRules()) == 0
    assert gone(RetentionRules(), released=20) == 2
    assert gone(RetentionRules(), released=19) == 1
    assert gone(RetentionRules(keep_bytes=1)) == 3
    assert gone(RetentionRules(keep_bytes=250)) == 1
    assert gone(RetentionRules(keep_bytes=1), limit=15) == 1
    assert gone(RetentionRules(keep_ns=50), now_ns=300) == 2, "what is younger than that stays"
    assert gone(RetentionRules(), released=100, limit=0) == 0


def test_staged_and_unreplayed_packs_are_needed() -> None:
    staged = Staged(1, 1, 1, 1, "s", b"", b"", 0, 7, 0, 0)
    assert first_needed(StagedPacks(), []) == NOT_NEEDED
    assert first_needed(StagedPacks(StagedPacksRecord(staged=(staged,))), [9]) == 7
    assert first_needed(StagedPacks(StagedPacksRecord(committed=(staged,))), [NOT_NEEDED]) == 7
    assert first_needed(StagedPacks(StagedPacksRecord(committed=(staged,))), [3]) == 3


def test_streams_begin_with_the_first_retained_message() -> None:
    index = StreamIndex()
    index.load_heads({"old": 5, "orders": 4})
    for at, first in ((11, 4), (12, 6)):
        executed = SimpleNamespace(verdict=SimpleNamespace(streams=(StreamVerdict("orders", first, 2, b""),)))
        executed.position = SimpleNamespace(index=at)
        index.add(executed)  # type: ignore[arg-type]
    assert (index.first_offset("old"), index.next_offset("old")) == (5, 5)
    assert (index.first_offset("orders"), index.find("orders", 7)) == (4, 12)
    index.drop_before(12)
    assert index.first_offset("orders") == 6
    index.drop_before(13)
    assert (index.first_offset("orders"), index.next_offset("orders")) == (8, 8)


# Who is believed.


class Log:
    def __init__(self) -> None:
        self.segment_index = places(10, 20, 30)
        self.agreed = self.shown = 30
        self.dropped = 0
        self.index_only = False

    def drop(self, count: int, limit: int) -> tuple[()]:
        for segment in self.segment_index.droppable(limit)[:count]:
            self.segment_index.drop(segment)
        return ()


class CoreHost:
    """An archive and what it takes from others, in a cluster of three."""

    def __init__(self, agreed: int = 30) -> None:
        stage = Stage()
        self.state: ExecutionState = stage.execution.state
        self.log: Any = Log()
        self.log.agreed = agreed
        order = SimpleNamespace(folder="", log="journal", retry_ns=10, patience_ns=100)
        settings: Any = SimpleNamespace(node=1, order=order, rules=RetentionRules(keep_bytes=1))
        self.settings = settings
        self.stage = stage
        self.start()

    def start(self, confirms: Any = None, needed_by: tuple[Any, ...] = ()) -> None:
        execution = self.stage.execution
        self.checkpointer = Checkpointer(self.settings, execution, self.log, None, needed_by=needed_by)
        self.installer = SnapshotInstaller(self.settings, execution, self.checkpointer, self.log, confirms=confirms)

    def service(self) -> SnapshotService:
        quorum = self.stage.execution.cluster_config.quorum
        context = SimpleNamespace(log=self.log, latest_known_quorum=quorum)
        serializer: Any = SimpleNamespace(context=context, is_confirmed_by=bool)
        return SnapshotService(self.settings, self.stage.execution, StreamIndex(), serializer, None)

    def make(self, index: int) -> checkpoint.StateCheckpoint:
        self.checkpointer.add(checkpoint.make(index, self.state.export()))
        self.checkpointer.write_if_covered()
        (persist,) = [one for one in self.checkpointer.effects if isinstance(one, Persist)][-1:]
        self.checkpointer.on_written(0, persist.ticket)
        made = self.checkpointer.latest
        assert made is not None
        return made

    def effects(self, kind: type) -> list[Any]:
        found = [*self.checkpointer.effects, *self.installer.effects]
        self.checkpointer.effects.clear()
        self.installer.effects.clear()
        return [one for one in found if isinstance(one, kind)]


def said(made: checkpoint.StateCheckpoint, **other: Any) -> SnapshotOffer:
    fields: dict[str, Any] = {"first": 1, "agreed": 30, "confirmed": False, "digest": made.digest, **other}
    return SnapshotOffer(made.index, size_bytes=len(made.state), **fields)


def test_log_is_dropped_only_when_a_quorum_and_all_connected_members_have_the_checkpoint() -> None:
    host = CoreHost()
    made = host.make(25)
    assert host.log.segment_index.first == 1
    host.checkpointer.on_connected(2)
    host.checkpointer.on_connected(3)
    host.checkpointer.on_offer(0, 2, said(made))
    assert host.checkpointer.confirmed
    assert host.log.segment_index.first == 1, "node 3 is connected and has said nothing"
    host.checkpointer.on_offer(0, 3, SnapshotOffer(15, bytes(32), 1, 1, 30, confirmed=False))
    assert host.log.segment_index.first == 11, "node 3 has an earlier one"
    host.checkpointer.on_disconnected(0, 3)
    host.checkpointer.drop_segments(0)
    assert host.log.segment_index.first == 21


def test_member_that_lacks_dropped_messages_is_informed_until_it_caught_up() -> None:
    host = CoreHost()
    made = host.make(25)
    host.checkpointer.on_offer(0, 2, said(made))
    assert host.log.segment_index.first == 21
    host.effects(ToPeer)
    host.checkpointer.on_connected(3)
    host.checkpointer.drop_segments(0)
    assert [one.node for one in host.effects(ToPeer)] == [3]
    for second in (1, 2):
        host.checkpointer.on_timer(second * LOOK_NS)
        assert [one.node for one in host.effects(ToPeer)] == [3], "what it was told may have been lost"
    host.checkpointer.on_offer(2 * LOOK_NS, 3, said(made))
    host.effects(ToPeer)
    host.checkpointer.on_timer(3 * LOOK_NS)
    assert host.effects(ToPeer) == []


def test_needed_messages_are_not_dropped() -> None:
    host = CoreHost()
    host.start(needed_by=(lambda: 15,))
    host.checkpointer.on_connected(2)
    host.checkpointer.on_offer(0, 2, said(host.make(25)))
    assert host.log.segment_index.first == 11


@pytest.mark.parametrize("index_only", [True, False])
def test_index_only_serializer_repeats_its_offer_to_a_peer_that_the_checkpoint_would_help(index_only: bool) -> None:
    """The peer's first offer was lost. The data holders have dropped payloads that it lacks, and their word alone is
    not enough (seed 159 of `indexonly`)."""
    host = CoreHost()
    host.log.index_only = index_only
    made = host.make(25)
    for node in (2, 3):
        host.checkpointer.on_connected(node)
    host.checkpointer.on_offer(0, 3, said(made))
    host.checkpointer.drop_segments(0)
    host.effects(ToPeer)
    assert host.checkpointer.due_ns is not None
    host.checkpointer.on_timer(host.checkpointer.due_ns)
    assert [one.node for one in host.effects(ToPeer)] == ([2] if index_only else [])


def test_checkpoint_counts_only_after_sync() -> None:
    host = CoreHost()
    host.log.shown = 24
    host.checkpointer.add(checkpoint.make(25, host.state.export()))
    host.checkpointer.write_if_covered()
    assert not host.effects(Persist), "the log on disk lacks a verdict that the checkpoint covers"
    host.log.shown = 25
    host.checkpointer.write_if_covered()
    (persist,) = host.effects(Persist)
    assert isinstance(persist.operations[0], Replace)
    host.checkpointer.write_if_covered()
    assert not host.effects(Persist), "it is written once"
    assert not host.checkpointer.durable
    host.checkpointer.on_connected(2)
    (told,) = host.effects(ToPeer)
    assert told.message.index == 0


def test_node_that_differs_from_a_majority_stops() -> None:
    host = CoreHost()
    made = host.make(25)
    for node in (2, 3):
        host.checkpointer.on_connected(node)
        host.checkpointer.on_offer(0, node, said(made, digest=bytes(32)))
        assert bool(host.effects(Halt)) == (node == 3)
    assert host.log.segment_index.first == 1


def behind() -> tuple[CoreHost, checkpoint.StateCheckpoint]:
    """A node that has nothing, and a real checkpoint of others."""
    host = CoreHost(agreed=0)
    other = Stage()
    execute(other, [petition(MakeCheckpoint(0))])
    state = other.execution.state
    for node in (2, 3):
        host.checkpointer.on_connected(node)
    return host, checkpoint.make(state.position.index, state.export())


def test_node_that_lacks_the_next_message_itself_does_not_count_as_one_that_has_it() -> None:
    """Two nodes that start from nothing must not wait for each other to confirm messages that neither has."""
    host, made = behind()
    host.start(confirms=lambda nodes: len(nodes) >= 2)
    for node in (2, 3):
        host.checkpointer.on_connected(node)
    host.checkpointer.on_offer(0, 2, said(made, first=1, confirmed=True))
    host.checkpointer.on_offer(0, 3, SnapshotOffer(0, bytes(32), 0, 1, 0, confirmed=False))
    for now_ns in range(0, 1000, 50):
        host.installer.update(now_ns)
    asked = [one for one in host.effects(ToPeer) if isinstance(one.message, AskState)]
    assert {one.message.index for one in asked} == {made.index}


def test_checkpoint_of_a_quorum_is_installed_at_once_and_verified() -> None:
    host, made = behind()
    host.checkpointer.on_offer(0, 2, said(made, first=9))
    host.installer.update(0)
    assert not [one for one in host.effects(ToPeer) if isinstance(one.message, AskState)]
    host.checkpointer.on_offer(0, 3, said(made, first=9))
    host.installer.update(0)
    (asked,) = [one for one in host.effects(ToPeer) if isinstance(one.message, AskState)]
    forged = made.state[:-1] + bytes((made.state[-1] ^ 1,))
    host.installer.on_piece(0, asked.node, StatePiece(made.index, 0, forged))
    assert not host.effects(Persist)
    host.installer.on_timer(1000)
    (asked,) = [one for one in host.effects(ToPeer) if isinstance(one.message, AskState)]
    half = len(made.state) // 2
    host.installer.on_piece(0, asked.node, StatePiece(made.index, 0, made.state[:half]))
    (asked,) = [one for one in host.effects(ToPeer) if isinstance(one.message, AskState)]
    assert asked.message.position == half
    host.installer.on_piece(0, asked.node, StatePiece(made.index, half, made.state[half:]))
    (persist,) = host.effects(Persist)
    first, state = checkpoint.decode(persist.operations[0].data)
    assert (first, sha256(state).digest()) == (made.index + 1, made.digest)
    assert not host.effects(Halt)
    host.installer.on_written()
    (halt,) = host.effects(Halt)
    assert halt.again


def asked_for(host: CoreHost) -> list[int]:
    """The nodes that are asked for a piece of a state."""
    return [one.node for one in host.effects(ToPeer) if isinstance(one.message, AskState)]


def test_pieces_that_were_not_asked_for_neither_spoil_a_state_nor_delay_the_next_request() -> None:
    """Otherwise a member that sends forged pieces all the time keeps others from it (seed 122 of `retention`)."""
    host, made = behind()
    host.checkpointer.on_connected(6)
    for node in (2, 3, 6):
        host.checkpointer.on_offer(0, node, said(made, first=9))
    host.installer.update(0)
    assert asked_for(host) == [2]
    retry_ns = host.settings.order.retry_ns
    half = len(made.state) // 2
    host.installer.on_piece(0, 6, StatePiece(made.index, 0, bytes(half)))
    assert asked_for(host) == []
    host.installer.on_piece(retry_ns - 1, 6, StatePiece(made.index, 0, bytes(len(made.state))))
    assert host.installer.due_ns == retry_ns
    host.installer.on_timer(retry_ns)
    assert asked_for(host) == [3]


def test_state_of_valid_form_without_the_trusted_digest_is_not_installed() -> None:
    host, made = behind()
    for node in (2, 3):
        host.checkpointer.on_offer(0, node, said(made, first=9))
    host.installer.update(0)
    other = Stage()
    execute(other, [petition(MakeCheckpoint(0), nonce=b"another request ")])
    forged = other.execution.state.export()
    assert load(founding(), forged).position.index == made.index
    assert len(forged) == len(made.state)
    assert sha256(forged).digest() != made.digest
    host.installer.on_piece(0, 2, StatePiece(made.index, 0, forged))
    assert not host.effects(Persist)


def test_node_that_sent_a_forged_state_is_asked_no_more_while_others_have_it() -> None:
    host, made = behind()
    for node in (2, 3):
        host.checkpointer.on_offer(0, node, said(made, first=9))
    host.installer.update(0)
    forged = StatePiece(made.index, 0, bytes(len(made.state)))
    host.installer.on_piece(0, 2, forged)
    due_ns = host.installer.due_ns
    assert due_ns is not None
    host.installer.on_piece(due_ns - 1, 2, forged)
    assert host.installer.due_ns == due_ns, "another forged piece delays nothing"
    asked_for(host)
    asked: list[int] = []
    for _ in range(4):
        assert host.installer.due_ns is not None
        host.installer.on_timer(host.installer.due_ns)
        asked += asked_for(host)
    assert asked == [3, 3, 3, 3]
    host.installer.on_piece(0, 3, StatePiece(made.index, 0, made.state))
    assert host.effects(Persist)


def believes(*, votes: bool, confirmed: bool) -> bool:
    """Whether a node takes, after a while, what the one serializer says that it can hear."""
    host, made = behind()
    host.settings.node = 1 if votes else 9
    host.checkpointer.on_disconnected(0, 3)
    host.checkpointer.on_offer(0, 2, said(made, first=9, confirmed=confirmed))
    host.installer.update(0)
    assert not [one for one in host.effects(ToPeer) if isinstance(one.message, AskState)], "without waiting for others"
    host.installer.update(101)
    return any(isinstance(one.message, AskState) for one in host.effects(ToPeer))


def test_one_serializer_is_believed_after_a_while_if_a_quorum_confirmed_it() -> None:
    assert believes(votes=False, confirmed=True)
    assert not believes(votes=False, confirmed=False)


def test_serializer_that_completes_a_quorum_is_believed_after_a_while() -> None:
    """The third may never come back, and the second has forgotten what it said: two of three must go on."""
    assert believes(votes=True, confirmed=False)


def test_no_checkpoint_is_installed_while_a_member_has_the_log() -> None:
    host, made = behind()
    host.checkpointer.on_offer(0, 2, said(made, first=9))
    host.checkpointer.on_offer(0, 3, said(made, first=1))
    host.installer.update(0)
    assert not [one for one in host.effects(ToPeer) if isinstance(one.message, AskState)]


def test_member_without_a_vote_cannot_prevent_a_checkpoint_installation() -> None:
    host, made = behind()
    host.start(lambda nodes: len({2, 3}.intersection(nodes)) > 1)
    host.checkpointer.on_offer(0, 9, said(made, first=1))
    for serializer in (2, 3):
        host.checkpointer.on_offer(0, serializer, said(made, first=9))
    host.installer.update(0)
    assert any(isinstance(one.message, AskState) for one in host.effects(ToPeer))


@pytest.mark.parametrize("believed", [True, False])
def test_checkpoint_is_installed_after_a_while_if_nodes_with_the_log_are_unconfirmed(believed: bool) -> None:
    """One serializer still has the messages; without another, or a proven master, nobody takes them from it."""
    host, made = behind()
    host.start(lambda nodes: believed or len(nodes) > 1)
    host.checkpointer.on_offer(0, 2, said(made, first=9))
    host.checkpointer.on_offer(0, 3, said(made, first=1))
    host.installer.update(0)
    assert not [one for one in host.effects(ToPeer) if isinstance(one.message, AskState)]
    assert host.installer.due_ns == (None if believed else 100)
    host.installer.on_timer(100)
    assert any(isinstance(one.message, AskState) for one in host.effects(ToPeer)) is not believed


def test_payloads_that_a_checkpoint_covers_are_not_ordered_again() -> None:
    disk = b"d" * 16
    settings = ConsensusSettings(1, genesis("any"), disk, disk, b"b" * 16)
    covered = [DataEntry(Reference(7, 3, 40), b"")]
    core = SerializerCore(settings, identity_of(1), Random(1), CountingExecution((1,)), ordered=covered)
    queue = core.context.payload_queue
    for index in (40, 41):
        assert queue.put(0, Reference(7, 3, index), bytes(32), b"payload")
    assert [entry.reference.index for entry in queue.choose(10, 10**6)] == [41]


# Who came too late.


def returning() -> tuple[SnapshotService, Log, checkpoint.StateCheckpoint]:
    """A node that has dropped its log's beginning, and node 3, which connects and lacks what went."""
    host = CoreHost()
    covering = host.service()
    host.checkpointer = covering.checkpointer
    made = host.make(15)
    covering.on_connected(0, 2)
    covering.on_message(0, 2, said(made))
    assert host.log.segment_index.first == 11
    covering.on_connected(0, 3)
    covering.on_message(0, 3, SnapshotOffer(0, bytes(32), 0, 1, 4, confirmed=False))
    covering.on_message(0, 2, said(host.make(25)))
    assert host.log.segment_index.first == 11, "node 3 is connected"
    return covering, host.log, made


def test_log_is_retained_for_a_member_that_restarts_from_a_checkpoint() -> None:
    covering, log, made = returning()
    covering.on_disconnected(LOOK_NS, 3)
    covering.on_timer(2 * LOOK_NS)
    assert log.segment_index.first == 11, (
        "node 3 comes back with the checkpoint that it was given, and needs what follows"
    )
    covering.on_connected(3 * LOOK_NS, 3)
    covering.on_message(3 * LOOK_NS, 3, said(made, first=16, agreed=15))
    covering.on_disconnected(4 * LOOK_NS, 3)
    covering.on_timer(5 * LOOK_NS)
    assert log.segment_index.first == 11, "node 3 has not come to our latest checkpoint"


def test_log_is_retained_until_a_lagging_member_has_the_latest_checkpoint() -> None:
    covering, log, made = returning()
    latest = covering.checkpointer.latest
    assert latest is not None
    covering.on_message(LOOK_NS, 3, said(made, first=16, agreed=15))
    covering.on_disconnected(LOOK_NS, 3)
    covering.on_connected(2 * LOOK_NS, 3)
    covering.on_message(2 * LOOK_NS, 3, said(latest))
    assert log.segment_index.first == 21
    covering.on_disconnected(3 * LOOK_NS, 3)
    assert covering.checkpointer.covered_through() == 25


def test_log_is_retained_for_a_lagging_member_only_for_a_bounded_time() -> None:
    covering, log, _ = returning()
    covering.on_disconnected(LOOK_NS, 3)
    covering.on_timer(LOOK_NS + RETURN_NS - 1)
    assert log.segment_index.first == 11
    covering.on_timer(2 * LOOK_NS + RETURN_NS)
    assert log.segment_index.first == 21
