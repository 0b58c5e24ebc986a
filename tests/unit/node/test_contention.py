"""Whether clients contend, what their requests cost, and who of them is light."""

from __future__ import annotations

import pytest

from chaplain.client_service import messages
from chaplain.journal.messages import client
from chaplain.node.contention import CONTENTION_NS, Contention
from chaplain.node.costs import APPEND, READ, REQUEST, SPREAD, UNIT_BYTES, cost_of
from chaplain.node.fair_queue import FairQueue
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel

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


def parcel_of(request: messages.ClientRequest, payload: bytes = b"") -> Parcel:
    return parcel.decode(messages.encode(1, request, payload))


@pytest.mark.parametrize(
    ("opened", "cost"),
    [
        (parcel_of(messages.GetStatus(1)), REQUEST),
        (parcel_of(messages.AskQuestion(1, "members", 1)), SPREAD),
        (parcel_of(messages.FireEvent(1, "event", None)), SPREAD),
        (parcel_of(messages.JoinAPool(1, "pool")), SPREAD),
        (parcel_of(messages.Instruct(1, Layer.GRAPH, b"")), APPEND),
        (parcel_of(messages.Instruct(1, Layer.SEQUENCE, b"")), REQUEST),
        (parcel_of(messages.ShoutToPool(1, "pool"), bytes(3 * UNIT_BYTES)), REQUEST + 3),
        (Parcel(1, Layer.JOURNAL, client.encode(client.Write("s")), bytes(16)), REQUEST),
        (Parcel(1, Layer.JOURNAL, client.encode(client.Write("s")), bytes(65536)), REQUEST + 16),
        (Parcel(1, Layer.JOURNAL, client.encode(client.SubmitPetition(1, 1, 1)), b""), SPREAD),
        (Parcel(1, Layer.JOURNAL, client.encode(client.Read(1, "s", 0, 1)), b""), READ),
        (Parcel(1, Layer.JOURNAL, b"nonsense", b""), REQUEST),
        (Parcel(1, Layer.CLIENT, b"nonsense", b""), REQUEST),
    ],
)
def test_cost_of_a_request_depends_on_kind_and_size(opened: Parcel, cost: int) -> None:
    assert cost_of(opened) == cost


def test_client_is_light_again_after_its_debt_is_paid() -> None:
    queue: FairQueue[str] = FairQueue(MIB, MIB, MIB, light_per_second=100)
    queue.put(b"eve", b"session", "request", 10)
    queue.charge(0, b"eve", 20)
    assert queue.has_light(0)
    queue.charge(0, b"eve", 1)
    assert not queue.has_light(0)
    assert queue.has_light(SECOND // 100)


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
