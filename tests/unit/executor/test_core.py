"""The executor's core: what is fed to databases, when questions are answered, and who is found to differ."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from chaplain.core import Drained, Report, Requested, Settled, Withdrawn, Woken
from chaplain.executor import messages
from chaplain.executor.apply_queue import QUEUE_BYTES_MAX
from chaplain.executor.core import ANNOUNCE_NS, DATABASES_MAX, ExecutorCore
from chaplain.executor.divergence import HEARD_MAX, DivergenceCheck, FingerprintMismatch
from chaplain.executor.events import (
    Applied,
    Apply,
    ClearResults,
    Looked,
    MessageApplied,
    OpenDatabase,
    RunQuery,
    StopQuery,
    TakeResults,
)
from chaplain.executor.messages import AskReach, AskResults, Print, Query, Reach, ReadThrough, WereRead
from chaplain.journal.messages.membership import Stage as Role
from chaplain.journal.model.cluster_config import MemberRoles, initial_config
from chaplain.mesh.events import Entered
from tests.unit.executor.core_stage import ACL, Journal, Stage, peer, read_back, ready, works
from tests.unit.executor.sqlite_stage import statement

# Feeding.


def test_agreed_statements_are_applied_one_batch_at_a_time() -> None:
    stage = Stage()
    stage.agree()
    (first,) = [effect for effect in read_back(stage, stage.open()) if isinstance(effect, Apply)]
    assert works([first]) == [1]
    assert first.works[0].owners == ((1, ACL),)
    stage.agree()
    stage.agree()
    assert not works(stage.step(Drained()))
    second = stage.done(first)
    assert works(second) == [2, 3]
    assert stage.core.status()["databases"]["main"]["position"] == 1  # type: ignore[index]


@pytest.mark.parametrize("message_type", [0, 2, 239])
def test_plain_data_is_not_applied(message_type: int) -> None:
    stage = Stage()
    stage.agree(message_type=message_type)
    assert not stage.step(Drained())


def test_messages_on_disk_are_read_from_the_databases_position() -> None:
    stage = Stage(attach=False)
    for stream in ("main", "main", "other", "main"):
        stage.agree(stream)
    stage.attach()
    effects = read_back(stage, stage.open(index=1))
    assert works(effects) == [2]
    assert works(read_back(stage, stage.done(next(e for e in effects if isinstance(e, Apply))))) == [4]


def test_database_ahead_of_the_log_waits_for_it() -> None:
    stage = Stage()
    stage.agree()
    assert not works(read_back(stage, stage.open(index=2)))
    stage.agree()
    assert not works(stage.step(Drained()))
    stage.agree()
    assert works(stage.step(Drained())) == [3]


def test_message_not_yet_on_disk_is_awaited() -> None:
    stage = Stage()
    stage.agree()
    stage.journal.on_disk = 0
    assert not stage.open()
    stage.journal.on_disk = 1
    assert works(read_back(stage, stage.step(Drained()))) == [1]


def test_queued_messages_are_applied_in_order() -> None:
    stage = Stage()
    stage.agree()
    stage.journal.on_disk = 0
    assert not stage.open()
    stage.agree()
    assert not works(stage.step(Drained()))
    stage.journal.on_disk = 2
    effects = read_back(stage, stage.step(Drained()))
    assert works(effects) == [1]
    assert works(read_back(stage, stage.done(next(e for e in effects if isinstance(e, Apply))))) == [2]


def test_slow_database_bounds_the_queued_bytes() -> None:
    stage = Stage()
    stage.agree()
    (first,) = [effect for effect in read_back(stage, stage.open()) if isinstance(effect, Apply)]
    size = 200_000
    for _ in range(2 * QUEUE_BYTES_MAX // size):
        stage.agree(size=size)
    queue = stage.core._queues["main"]
    assert queue._queued_bytes <= QUEUE_BYTES_MAX + 2 * size
    applied = [1]
    effects = stage.done(first)
    while ahead := [effect for effect in read_back(stage, effects) if isinstance(effect, Apply)]:
        applied += works(ahead)
        assert len(ahead) == 1
        effects = stage.done(ahead[0])
    assert applied == list(range(1, stage.index + 1))


def test_number_of_databases_is_bounded() -> None:
    stage = Stage()
    for number in range(DATABASES_MAX + 5):
        stage.agree(f"s{number}")
    assert sum(isinstance(effect, OpenDatabase) for effect in stage.step(Drained())) == DATABASES_MAX


def test_database_that_fails_stops_with_the_reason() -> None:
    stage = Stage()
    stage.agree()
    (first,) = [effect for effect in read_back(stage, stage.open()) if isinstance(effect, Apply)]
    stage.step(Applied("main", (), "disk full"))
    stage.agree()
    assert not works(stage.step(Drained()))
    (refusal,) = stage.ask(Query("main", 0, False), payload=statement("select 1"))
    assert isinstance(refusal, Settled)
    assert "disk full" in refusal.reason
    assert stage.core.status()["databases"]["main"]["state"] == "stopped"  # type: ignore[index]
    assert first.works


# Questions.


def test_request_for_results_waits_until_they_exist() -> None:
    stage = ready()
    stage.agree()
    effects = stage.step(Drained())
    assert works(effects) == [2]
    assert not stage.ask(AskResults("main", 1, 2, 2, 2))
    (look,) = stage.done(effects[0])
    assert look == TakeResults(1, "main", ACL, 1, 2, 2)
    assert stage.step(Looked(1, b"runs")) == [Settled(7, b"runs")]


def test_client_that_left_receives_no_results() -> None:
    stage = ready()
    assert not stage.ask(AskResults("main", 1, 1, 1, 5))
    stage.step(Withdrawn(7))
    for _ in range(5):
        stage.agree()
    assert not [e for e in stage.done(stage.step(Drained())[0]) if isinstance(e, TakeResults)]


def test_query_of_a_client_that_left_is_stopped() -> None:
    stage = ready()
    (query,) = stage.ask(Query("main", 0, False), payload=statement("select 1"))
    assert isinstance(query, RunQuery)
    assert stage.step(Withdrawn(7)) == [StopQuery(query.token, "main")]
    assert not stage.step(Looked(query.token, b"late"))


def test_fresh_query_waits_for_everything_agreed_before_it() -> None:
    stage = ready(3)
    effects = stage.ask(Query("main", 0, True), payload=statement("select 1"))
    assert stage.said(effects) == [(2, AskReach(1)), (3, AskReach(1))]
    assert not [e for e in effects if isinstance(e, RunQuery)]
    assert not stage.hears(2, Reach(1, 3))  # another holds more than we have
    stage.agree()
    assert not [e for e in stage.step(Drained()) if isinstance(e, RunQuery)]
    stage.agree()
    stage.step(Applied("main", (MessageApplied(2, bytes(32)),)))
    assert not [e for e in stage.step(Drained()) if isinstance(e, RunQuery)]
    effects = [*stage.step(Applied("main", (MessageApplied(3, bytes(32)),))), *stage.step(Drained())]
    (query,) = [e for e in effects if isinstance(e, RunQuery)]
    assert query.sql == "select 1"


def test_node_in_doubt_does_not_report_its_log_position() -> None:
    stage = ready(3)
    stage.journal.reach = None
    assert not stage.said(stage.hears(2, AskReach(5)))
    stage.ask(Query("main", 0, True), payload=statement("select 1"))
    assert not [e for e in stage.hears(2, Reach(1, 1)) if isinstance(e, RunQuery)]
    assert [e for e in stage.hears(3, Reach(1, 1)) if isinstance(e, RunQuery)]


def test_fresh_query_asks_again_when_the_quorum_changed() -> None:
    stage = ready(3)
    stage.ask(Query("main", 0, True), payload=statement("select 1"))
    stage.hears(2, Reach(1, 2))
    stage.journal.cluster_config = initial_config(
        MemberRoles(node, bytes([node]) * 32, "", b"") for node in (1, 2, 3, 4, 5)
    )
    stage.agree()
    effects = stage.done(stage.step(Drained())[0])
    assert not [e for e in effects if isinstance(e, RunQuery)]
    assert stage.said(effects) == [(2, AskReach(2)), (3, AskReach(2))]
    stage.hears(2, Reach(2, 2))
    assert [e for e in stage.hears(3, Reach(2, 2)) if isinstance(e, RunQuery)]


def test_local_query_asks_no_other_node() -> None:
    stage = ready(3)
    (query,) = stage.ask(Query("main", 0, False), payload=statement("select 1"))
    assert isinstance(query, RunQuery)


@pytest.mark.parametrize(
    ("message", "client", "kind"),
    [
        (Query("secret", 0, False), "alice", "no_right"),
        (Query("other", 0, False), "alice", "missing"),
        (AskResults("main", 1, 1, 1, 0), "mallory", "no_right"),
        (Query("main", 0, False), "alice", "invalid"),
    ],
)
def test_invalid_requests_are_refused_by_kind(message: object, client: str, kind: str) -> None:
    (refusal,) = ready().ask(message, client=client, payload=b"no statement")
    assert isinstance(refusal, Settled)
    assert refusal.kind == kind


@pytest.mark.parametrize("number", [-1, 1 << 63, (1 << 64) - 1])
def test_numbers_out_of_range_are_refused(number: int) -> None:
    stage = ready(3)
    for message in (
        AskResults("main", 1, 1, number, 0),
        Query("main", number, False),
        ReadThrough("main", ((1, number),)),
    ):
        (refusal,) = stage.ask(message, payload=statement("select 1"))
        assert isinstance(refusal, Settled)
        assert refusal.kind == "invalid"
    (report,) = stage.hears(2, WereRead("main", ACL, ((number, 5),)))
    assert isinstance(report, Report)


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_impossible_stream_names_are_not_remembered(name: str) -> None:
    """Of what was read a node remembers 4,096: with names as long as a body they would be 256 MiB."""
    stage = ready(3)
    (refusal,) = stage.ask(ReadThrough(name, ((1, 5),)))
    assert isinstance(refusal, Settled)
    assert refusal.kind == "invalid"
    (report,) = stage.hears(2, WereRead(name, ACL, ((1, 5),)))
    assert isinstance(report, Report)


def test_read_results_are_cleared_on_every_executor() -> None:
    stage = ready(3)
    effects = stage.ask(ReadThrough("main", ((1, 5),)))
    were = WereRead("main", ACL, ((1, 5),))
    assert stage.said(effects) == [(2, were), (3, were)]
    assert ClearResults("main", ACL, ((1, 5),)) in effects
    stage.ask(ReadThrough("main", ((1, 3),)))
    assert (2, were) in stage.said(stage.step(Entered(peer(2), {})))  # who was away is told, of the furthest
    assert ClearResults("main", ACL, ((1, 9),)) in stage.hears(3, WereRead("main", ACL, ((1, 9),)))


def test_read_results_are_not_returned_again() -> None:
    stage = ready(3)
    stage.ask(ReadThrough("main", ((1, 5),)))
    stage.hears(2, WereRead("main", ACL, ((4, 9),)))
    stage.hears(2, WereRead("main", b"B" * 15, ((8, 9),)))
    stage.hears(2, WereRead("elsewhere", ACL, ((8, 9),)))
    (look,) = stage.ask(AskResults("main", 0, 0, 0, 1))  # before any database said that something is cleared
    assert look == TakeResults(1, "main", ACL, 0, 0, 0, ((1, 5), (4, 9)))
    (look,) = stage.ask(AskResults("main", 1, 5, 5, 1), call=8)
    assert look == TakeResults(2, "main", ACL, 1, 5, 5)


# Who has not the role.


def demoted(journal: Journal, stage: Role = Role.NONE) -> None:
    nodes = (replace(one, executor=stage) if one.node == 1 else one for one in journal.cluster_config.nodes)
    journal.cluster_config = replace(journal.cluster_config, nodes=tuple(nodes))


@pytest.mark.parametrize("role", [Role.NONE, Role.CATCHUP])
@pytest.mark.parametrize(
    "message",
    [Query("main", 0, False), Query("main", 0, True), AskResults("main", 1, 1, 1, 0), ReadThrough("main", ())],
)
def test_node_without_the_executor_role_refuses_questions(message: object, role: Role) -> None:
    stage = ready(3)
    demoted(stage.journal, role)
    assert stage.ask(message, payload=statement("select 1")) == [
        Settled(7, b"", "not_executor", "this node is no executor: go to another")
    ]


def test_waiting_clients_are_refused_when_the_node_loses_its_role() -> None:
    stage = ready(3)
    assert not [one for one in stage.ask(Query("main", 99, False), 7) if isinstance(one, Settled)]
    assert not [one for one in stage.ask(Query("main", 99, True), 8) if isinstance(one, Settled)]
    demoted(stage.journal)
    refusals = [one for one in stage.step(Drained()) if isinstance(one, Settled)]
    assert [(one.call, one.kind) for one in refusals] == [(7, "not_executor"), (8, "not_executor")]
    assert not [one for one in stage.step(Drained()) if isinstance(one, Settled)]


def test_node_without_databases_refuses_clients_as_not_executor() -> None:
    core = ExecutorCore(1, 1, bare=True)
    core.attach(Journal(3))
    (refusal,) = core.step(0, Requested(7, "alice", messages.encode(Query("main", 0, False)), b""))
    assert isinstance(refusal, Settled)
    assert (refusal.kind, refusal.reason) == ("not_executor", "this node has no databases: ask another")


# Comparing.


def test_fingerprints_are_sent_and_compared() -> None:
    stage = ready(3)
    stage.now_ns = ANNOUNCE_NS
    effects = stage.step(Woken())
    assert stage.said(effects) == [(node, Print("main", 1, (1).to_bytes(32, "big"))) for node in (2, 3)]
    assert not stage.step(Woken())
    assert stage.hears(2, Print("main", 1, b"x" * 32))  # one differs: said, and we go on
    assert stage.core.status()["databases"]["main"]["state"] == "idle"  # type: ignore[index]
    stage.hears(3, Print("main", 1, b"x" * 32))  # both do: it is us
    status = stage.core.status()["databases"]["main"]  # type: ignore[index]
    assert status["state"] == "stopped"
    assert "node 1 differs from node 2, 3 after message 1" in status["trouble"]


def test_fingerprints_of_nodes_without_the_role_are_not_counted() -> None:
    stage = ready(3)
    bystanders = [
        replace(node, executor=Role.NONE) if node.node > 1 else node for node in stage.journal.cluster_config.nodes
    ]
    stage.journal.cluster_config = replace(stage.journal.cluster_config, nodes=tuple(bystanders))
    for liar in (2, 3):
        assert not stage.hears(liar, Print("main", 1, b"x" * 32))
    assert stage.core.status()["databases"]["main"]["state"] == "idle"  # type: ignore[index]


def test_fingerprint_of_a_node_that_lost_the_role_is_not_counted() -> None:
    executors = [1, 2, 3]
    check = DivergenceCheck(lambda: executors)
    assert check.record_peer(2, 5, b"b") is None
    assert check.record_peer(3, 5, b"b") is None
    executors[:] = [1]
    assert check.record_own(5, b"a") is None


def test_fingerprints_of_nodes_without_the_role_displace_no_others() -> None:
    check = DivergenceCheck(lambda: (1, 2, 3))
    for executor in (2, 3):
        assert check.record_peer(executor, 5, b"b") is None
    for index in range(6, 2 * HEARD_MAX):
        assert check.record_peer(9, index, b"junk") is None
    assert check.record_own(5, b"a") == FingerprintMismatch(5, (2, 3), True)


def test_executor_that_agrees_with_a_majority_continues() -> None:
    check = DivergenceCheck(lambda: (1, 2, 3))
    assert check.record_peer(2, 5, b"a") is None
    assert check.record_own(5, b"a") is None
    assert check.record_peer(3, 5, b"b") == FingerprintMismatch(5, (3,), False)
    assert check.record_peer(3, 5, b"b") is None


def test_executors_without_a_majority_all_stop() -> None:
    check = DivergenceCheck(lambda: (1, 2))
    check.record_own(5, b"a")
    assert check.record_peer(2, 5, b"b") == FingerprintMismatch(5, (2,), True)
    check = DivergenceCheck(lambda: (1, 2, 3))
    check.record_peer(2, 5, b"b")
    check.record_peer(3, 5, b"c")
    assert check.record_own(5, b"a") == FingerprintMismatch(5, (2, 3), True)


def test_fingerprints_of_unreached_positions_are_not_compared() -> None:
    check = DivergenceCheck(lambda: (1, 2, 3))
    check.record_own(5, b"a")
    check.record_own(9, b"b")
    assert check.record_peer(2, 7, b"x") is None
    assert (check.at(4), check.at(5), check.at(8), check.at(9)) == (None, b"a", b"a", b"b")
