"""Whether clients contend, what their requests cost, and who of them is light."""

from __future__ import annotations

import pytest

from chaplain.client_service import messages
from chaplain.costs import APPEND, READ, REQUEST, SPREAD, STATEMENT, UNIT_BYTES, size_cost
from chaplain.journal.clients.costs import extra_cost
from chaplain.journal.messages import client
from chaplain.journal.messages.write_request import STATEMENTS
from chaplain.node.contention import CONTENTION_NS, LIGHT_UNITS_MAX, Contention
from chaplain.node.fair_queue import MODEST_FACTOR, FairQueue
from chaplain.segment.pack import Pack, encode_pack
from chaplain.wire.parcel import Layer

MIB = 1 << 20
SECOND = 1_000_000_000


def test_single_client_does_not_contend() -> None:
    contention = Contention()
    for now_ns in range(0, 10 * SECOND, SECOND // 10):
        contention.see(now_ns, b"ann")
        assert not contention.holds(now_ns)


def test_two_clients_contend_until_one_was_inactive_for_a_while() -> None:
    contention = Contention()
    contention.see(0, b"ann")
    contention.see(1, b"bob")
    assert contention.holds(2)
    contention.see(2, b"bob")
    assert not contention.holds(1 + CONTENTION_NS)


def test_contention_lasts_while_a_light_client_may_wait_behind_writes_in_flight() -> None:
    contention = Contention()
    contention.see(0, b"ann")
    contention.see(0, b"bob")
    contention.see_light(0, 1)
    for now_ns in range(0, 3 * CONTENTION_NS, CONTENTION_NS // 2):
        contention.extend(now_ns)
        assert contention.has_light(now_ns)
    end_ns = 3 * CONTENTION_NS + CONTENTION_NS // 2
    assert not contention.has_light(end_ns)
    contention.extend(end_ns)
    assert not contention.has_light(end_ns), "contention that has ended begins with two clients only"


def test_clients_that_are_not_light_contend_but_hold_nobody_back() -> None:
    contention = Contention()
    contention.see(0, b"ann")
    contention.see(1, b"bob")
    assert contention.holds(2)
    assert not contention.has_light(2)
    contention.see_light(2, LIGHT_UNITS_MAX + 1)
    assert not contention.has_light(2)
    contention.see_light(3, LIGHT_UNITS_MAX)
    assert contention.has_light(4)
    contention.see(3, b"eve")
    assert not contention.has_light(3 + CONTENTION_NS)


@pytest.mark.parametrize(
    ("asked", "cost"),
    [
        (messages.GetStatus(1), 0),
        (messages.AskQuestion(1, "members", 1), SPREAD),
        (messages.FireEvent(1, "event", None), SPREAD),
        (messages.JoinAPool(1, "pool"), SPREAD),
        (messages.Instruct(1, Layer.GRAPH, b""), APPEND),
        (messages.Instruct(1, Layer.SEQUENCE, b""), 0),
        (messages.ShoutToPool(1, "pool"), 0),
    ],
)
def test_extra_cost_of_a_request_depends_on_its_kind(asked: messages.ClientRequest, cost: int) -> None:
    assert messages.extra_cost(asked) == cost


@pytest.mark.parametrize(
    ("message", "payload", "cost"),
    [
        (client.Write("s"), encode_pack(Pack(1, 1, (b"a", b"b", b"c"))), 0),
        (client.Write("s"), encode_pack(Pack(1, 1, (b"a", b"b", b"c"), message_type=STATEMENTS)), 3 * STATEMENT),
        (client.Write("s"), b"", 0),
        (client.SubmitPetition(1, 1, 1), b"", SPREAD),
        (client.Grant(1, 1), b"", SPREAD),
        (client.Read(1, "s", 0, 1), b"", READ),
        (client.ListNodes(1), b"", 0),
        (client.AskConsumers(1), b"", READ),
        (client.AskConsumers(1, "s", "one"), b"", SPREAD),
        (client.AskTree(1, "checkpoint"), b"", 0),
        (client.AskTree(1, "tile/0/000"), b"", SPREAD),
        (client.AskProof(1, b"a" * 32), b"", READ),
    ],
)
def test_extra_cost_of_a_journal_message_depends_on_its_kind_and_its_statements(
    message: client.ClientMessage, payload: bytes, cost: int
) -> None:
    assert extra_cost(message, payload) == cost


def test_every_request_costs_one_unit_and_one_for_each_unit_of_octets() -> None:
    assert [size_cost(size) for size in (0, UNIT_BYTES - 1, 3 * UNIT_BYTES)] == [REQUEST, REQUEST, REQUEST + 3]


def test_client_is_light_again_after_its_debt_is_paid() -> None:
    queue: FairQueue[str] = FairQueue(MIB, MIB, MIB, light_per_second=100)
    for _ in range(2):
        queue.put(b"eve", b"session", "request", 10)
    queue.charge(0, b"eve", 20)
    assert queue.has_light(0)
    queue.charge(0, b"eve", 1)
    assert not queue.has_light(0)
    assert queue.has_light(SECOND // 100)


def test_client_with_one_waiting_request_may_cost_more_and_stay_light() -> None:
    queue: FairQueue[str] = FairQueue(MIB, MIB, MIB, light_per_second=100)
    for number in range(1000):
        now_ns = number * SECOND // 180
        queue.put(b"ann", b"session", "write", 100)
        assert queue.has_light(now_ns)
        queue.put(b"ann", b"other", "write", 100)
        assert number < 100 or not queue.has_light(now_ns)
        queue.drop(b"ann", b"other")
        queue.take(now_ns, light=True)
        queue.charge(now_ns, b"ann", REQUEST)


def test_client_that_writes_through_other_nodes_is_not_one_with_a_single_request() -> None:
    queue: FairQueue[str] = FairQueue(MIB, MIB, MIB, light_per_second=100)
    queue.put(b"ann", b"session", "write", 100)
    queue.charge(0, b"ann", 25)
    assert queue.has_light(0)
    queue.charge(0, b"ann", 1, elsewhere=True)
    assert not queue.has_light(0)
    queue.charge(2 * SECOND, b"ann", 25)
    assert queue.has_light(2 * SECOND)


def test_client_with_one_waiting_request_is_light_only_up_to_a_bound() -> None:
    queue: FairQueue[str] = FairQueue(MIB, MIB, MIB, light_per_second=100)
    queue.put(b"ann", b"session", "write", 100)
    queue.charge(0, b"ann", 20 * MODEST_FACTOR)
    assert queue.has_light(0)
    queue.charge(0, b"ann", 1)
    assert not queue.has_light(0)


def test_light_clients_overtake_others_without_skipping_turns() -> None:
    queue: FairQueue[str] = FairQueue(MIB, MIB, MIB, light_per_second=100)
    for number in range(2):
        queue.put(b"eve", b"eve's", f"eve {number}", 10)
    queue.put(b"ann", b"ann's", "ann 0", 10)
    queue.charge(0, b"eve", 1000)
    assert queue.take(0, light=True) == "ann 0"
    assert not queue.has_light(0)
    assert [queue.take(0), queue.take(0)] == ["eve 0", "eve 1"]


def test_debt_of_a_client_is_bounded() -> None:
    queue: FairQueue[str] = FairQueue(MIB, MIB, MIB, light_per_second=100)
    queue.put(b"eve", b"session", "request", 10)
    queue.charge(0, b"eve", 1_000_000)
    assert queue.has_light(SECOND)


def test_client_with_small_requests_at_a_moderate_rate_stays_light() -> None:
    queue: FairQueue[str] = FairQueue(MIB, MIB, MIB)
    for number in range(1000):
        now_ns = number * SECOND // 200
        queue.put(b"ann", b"session", "write", 100)
        assert queue.has_light(now_ns)
        queue.take(now_ns, light=True)
        queue.charge(now_ns, b"ann", REQUEST)
