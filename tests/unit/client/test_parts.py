"""The small pieces of the client: inbox, deadlines, endpoints, call registry, requests."""

from __future__ import annotations

from concurrent.futures import Future
from random import Random
from typing import get_args, get_overloads, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import chaplain
from chaplain import errors
from chaplain.client.api import calls
from chaplain.client.api.calls import members
from chaplain.client.api.sequence_calls import SequenceEvent
from chaplain.client.connect.options import prepare
from chaplain.client.io.call_registry import CallRegistry, Completion, SubscriptionSink
from chaplain.client.io.item_buffer import Inbox
from chaplain.client.io.thread_engine import ThreadEngine
from chaplain.client.protocol.deadlines import Deadlines
from chaplain.client.protocol.endpoints import Endpoints
from chaplain.client.protocol.events import Cancelled, Failure, ListeningBegan, Raised, Settings, Yielded
from chaplain.client.types.results import Event, MemberNews, PoolMessage, Question
from chaplain.client_service.messages import ROTATION_NS, NewsItem
from chaplain.errors import ChaplainError, Closed, Malformed
from chaplain.link.auth.identity import Identity
from chaplain.link.zmq.sockets import Sockets


def message(value: bytes = b"", missed: int = 0, moved: bool = False) -> PoolMessage:
    return PoolMessage("chat", value, 1, "ann", missed, moved)


def test_full_inbox_drops_the_newest_item_and_counts_it() -> None:
    inbox = Inbox(items_max=2)
    for value in (b"a", b"b", b"c", b"d"):
        inbox.put(message(value))
    assert inbox.missed == 2
    assert inbox.take() == message(b"a")
    inbox.put(message(b"e", missed=1))
    assert inbox.take() == message(b"b")
    assert inbox.take() == message(b"e", missed=3)
    assert inbox.take() is None
    assert inbox.missed == 0


def test_inbox_is_bounded_in_bytes_and_keeps_the_moved_flag() -> None:
    inbox = Inbox(bytes_max=10)
    inbox.put(Event("1", "x", bytes(10), 1))
    inbox.put(Event("2", "x", b"1", 1, moved=True))
    assert inbox.take() is not None
    inbox.put(Event("3", "x", b"1", 1))
    assert inbox.take() == Event("3", "x", b"1", 1, missed=1, moved=True)


@given(st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=60), st.integers(1, 5))
def test_every_inbox_item_is_taken_or_counted(script: list[int | None], items_max: int) -> None:
    inbox, put, told = Inbox(items_max=items_max), 0, 0
    for missed in script:
        if missed is None:
            item = inbox.take()
            told += 0 if item is None else 1 + item.missed
        else:
            inbox.put(message(missed=missed))
            put += 1 + missed
    while (item := inbox.take()) is not None:
        told += 1 + item.missed
    assert told + inbox.missed == put


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 100), st.booleans()), max_size=300))
def test_deadlines_agree_with_a_plain_table(script: list[tuple[int, int, bool]]) -> None:
    deadlines, plain = Deadlines(), dict[int, int]()
    for call, due, clear in script:
        if clear:
            deadlines.clear(call)
            plain.pop(call, None)
        else:
            deadlines.set(call, due)
            plain[call] = due
        assert deadlines.next_ns() == min(plain.values(), default=None)
        assert len(deadlines._heap) <= 2 * len(plain) + 65
    due = deadlines.pop_due(50)
    assert sorted(due) == sorted(call for call, at in plain.items() if at <= 50)
    assert [plain[call] for call in due] == sorted(plain[call] for call in due)


def test_deadlines_of_ended_calls_take_no_memory() -> None:
    deadlines = Deadlines()
    for call in range(10_000):
        deadlines.set(call, 10**9 + call)
        deadlines.clear(call)
    assert len(deadlines._heap) < 100


def test_core_defect_ends_every_wait_of_the_engine() -> None:
    class Broken:
        def step(self, now_ns: int, event: object) -> list[object]:
            raise ZeroDivisionError

        def deadline(self) -> int | None:
            return None

    engine = ThreadEngine(Broken(), Sockets(bytes(16)))  # type: ignore[arg-type]
    registry, future = CallRegistry(engine.submit), Future[bytes]()
    engine.start(registry)
    registry.submit_call(Cancelled, Completion(future))
    with pytest.raises(Closed, match="ZeroDivisionError"):
        future.result(10)
    engine.stop()
    assert not engine.running
    with pytest.raises(Closed, match="connect again"):
        registry.submit_call(Cancelled, Completion(Future()))


def test_clients_choose_different_first_nodes() -> None:
    names = [f"tcp://127.0.0.1:{port}" for port in range(1, 5)]
    first = {Endpoints(names, Settings(), Random(seed)).choose(0)[0] for seed in range(40)}
    assert first == set(names)


def test_failed_endpoint_waits_longer_each_time_and_others_go_first() -> None:
    settings = Settings(sessions_warm=1)
    endpoints = Endpoints(["a", "b"], settings, Random(1))
    now_ns, waits = 0, []
    [first] = endpoints.choose(now_ns)
    endpoints.failed(now_ns, first, "gone", refused=False)
    assert endpoints.choose(now_ns) != [first]
    for _ in range(10):
        [name] = list(endpoints.wanted) or endpoints.choose(now_ns)
        endpoints.failed(now_ns, name, "gone", refused=False)
        waits.append(endpoints._records[name].ready_ns - now_ns)
        ready_ns = endpoints.next_ns()
        assert ready_ns is not None
        now_ns = max(now_ns, ready_ns)
    assert max(waits) <= settings.retry_most_ns
    assert waits[-1] > 4 * settings.retry_first_ns


def test_empty_endpoint_list_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one endpoint"):
        Endpoints([], Settings(), Random(1))


def test_call_numbers_wrap_and_skip_numbers_in_use() -> None:
    given_out: list[object] = []
    registry = CallRegistry(given_out.append)
    first = registry.submit_call(Cancelled, Completion(Future()))
    registry._last_call = 2**32 - 1
    second = registry.submit_call(Cancelled, Completion(Future()))
    assert (first, second) == (1, 2)


@pytest.mark.parametrize("failure", list(Failure))
def test_every_failure_maps_to_an_error_class(failure: Failure) -> None:
    registry, future = CallRegistry(lambda event: None), Future[bytes]()
    call = registry.submit_call(Cancelled, Completion(future))
    registry.deliver([Raised(call, failure, "because")])
    error = future.exception(1)
    assert isinstance(error, ChaplainError)
    assert type(error) is not ChaplainError
    assert str(error) == "because"


def test_member_event_becomes_a_record() -> None:
    sink = SubscriptionSink(lambda: None)
    sink.on_outcome(Yielded(1, NewsItem(1, "exit", 2, reason="silent"), b"", 3, True))
    item = sink.inbox.take()
    assert item == MemberNews("exit", 2, reason="silent", missed=3, moved=True)
    assert dict(item)["kind"] == "exit"


def test_subscription_failure_after_the_start_is_raised_to_the_taker() -> None:
    knocks: list[None] = []
    registry = CallRegistry(lambda event: None)
    sink = SubscriptionSink(lambda: knocks.append(None))
    call = registry.submit_call(Cancelled, sink)
    registry._sinks[call].on_outcome(ListeningBegan(call))
    assert (sink.started, sink.error, knocks) == (True, None, [None])
    registry.fail_all(Malformed("x"))
    assert isinstance(sink.error, Malformed)
    assert knocks == [None, None]


@pytest.mark.parametrize("size", [16_385, 1 << 20])
def test_content_above_the_gossip_limit_is_refused_before_it_is_sent(size: int) -> None:
    asked = Question("00000009-1-2", "load", b"", 1)
    for build in (
        lambda: calls.fire("deployed", bytes(size), None),
        lambda: calls.ask("load", None, bytes(size)),
        lambda: calls.reply(asked, bytes(size)),
    ):
        with pytest.raises(ValueError, match=f"at most 16384 bytes, not {size}"):
            build()
    calls.fire("deployed", bytes(16_384), 2**32 - 1)


@pytest.mark.parametrize("question", ["version", "uptime", "members"])
def test_built_in_questions_cannot_be_answered_by_programs(question: str) -> None:
    with pytest.raises(ValueError, match="by itself"):
        calls.answer(question)
    calls.ask(question, None, b"")


@pytest.mark.parametrize("target", [-1, 2**32, 2**40, "2", 1.5])
def test_target_must_be_a_node_id_or_identifier(target: object) -> None:
    with pytest.raises(ValueError, match="a node's id or its 32-bit identifier"):
        calls.fire("deployed", b"", target)  # type: ignore[arg-type]


def test_answer_of_another_version_is_malformed() -> None:
    with pytest.raises(Malformed, match="same version"):
        members().read(b'{"not": "a list"}')


def test_package_attributes_are_loaded_on_access() -> None:
    assert {"Client", "AsyncClient", "Answer", "Event", "PoolMessage"} <= set(dir(chaplain))
    with pytest.raises(AttributeError, match="nothing"):
        _ = chaplain.nothing


@pytest.mark.parametrize("kind", [chaplain.Client, chaplain.AsyncClient])
def test_unconnected_client_class_names_connect(kind: type) -> None:
    with pytest.raises(TypeError, match=rf"{kind.__name__}\.connect\('my-cluster'\)"):
        kind("my-cluster")


def test_endpoints_may_be_given_as_one_text() -> None:
    me = Identity.generate(Random(1))
    given = {"identity": me, "node_keys": [me.key], "name": None, "node": None, "timeout_s": 1.0}
    opening = prepare(None, endpoints="tcp://127.0.0.1:1, tcp://127.0.0.1:2", **given)
    assert opening.endpoints == ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")


def test_every_error_class_is_exported() -> None:
    raised = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert raised <= set(chaplain.__all__)
    assert chaplain.Unknown is errors.Unknown
    assert {name for name in chaplain.__all__ if getattr(chaplain, name) is None} == set()


def test_client_waits_longer_for_a_rotation_than_the_node() -> None:
    waited_s = calls.rotate_keys().timeout_s
    assert waited_s is not None
    assert waited_s * 1e9 > ROTATION_NS


def test_every_result_is_a_record_with_keys() -> None:
    event = SequenceEvent("s", 1, b"v", "alice", b"h")
    assert dict(event) == {"stream": "s", "number": 1, "value": b"v", "publisher": "alice", "hash": b"h"}
    assert event["number"] == 1


@pytest.mark.parametrize("kind", [chaplain.Client, chaplain.AsyncClient])
def test_public_calls_are_typed_for_strict_checkers(kind: type) -> None:
    """`resolve(unknown.id)`, of which a checker knows that it may be None, and switches that are variables."""
    assert type(None) in get_args(get_type_hints(kind.resolve)["id"])
    assert bool in [get_type_hints(one).get("acknowledge") for one in get_overloads(kind.fire)]
    assert bool in [get_type_hints(one).get("members") for one in get_overloads(kind.events)]
