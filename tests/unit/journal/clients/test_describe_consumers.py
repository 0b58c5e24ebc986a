"""Pages of named consumers: complete, and bounded by what they examine."""

from __future__ import annotations

import pytest

from chaplain.journal.clients.describe_consumers import PAGE_CONSUMERS_MAX, PAGE_PARTS_MAX, describe_consumers
from chaplain.journal.execution.state import ExecutionState
from chaplain.journal.messages.client import AskConsumers
from chaplain.journal.messages.consumer import Mode
from chaplain.journal.model.consumers import Consumer, Slot, Span
from chaplain.journal.storage.offset_index import StreamIndex
from tests.support.execution_stage import ADMIN_ACL, Stage

STREAMS = ("orders", "orders.dead", "payments")


def state_with(consumers: int, slots: int, spans: int = 0) -> ExecutionState:
    """A state with this many consumers of each of three streams."""
    state = Stage().execution.state
    for stream in STREAMS:
        for number in range(consumers):
            names = (stream, f"c{number:03}", ADMIN_ACL)
            leased = tuple(Span(at, at, 1, 0, 1) for at in range(spans))
            mode = Mode.KEYED if slots else Mode.QUEUE
            one = Consumer(*names, mode, 10**10, 0, "", slots=(Slot(0),) * slots, spans=leased)
            state.consumers.put(one.key, one)
    return state


def pages_of(state: ExecutionState, stream: str = "") -> list[list[tuple[str, str]]]:
    client = state.clients[ADMIN_ACL]
    found: list[list[tuple[str, str]]] = []
    after = ("", "")
    while True:
        page = describe_consumers(state, StreamIndex(), client, AskConsumers(1, stream, after=after))
        found.append([(one["stream"], one["name"]) for one in page["consumers"]])
        after = page["after"]
        if not after[0]:
            return found


@pytest.mark.parametrize("stream", ["", *STREAMS, "missing"])
@pytest.mark.parametrize(("slots", "spans"), [(1, 0), (256, 0), (0, 1024)])
def test_pages_list_every_consumer_once_in_order(stream: str, slots: int, spans: int) -> None:
    state = state_with(40, slots, spans)
    listed = [key for page in pages_of(state, stream) for key in page]
    assert listed == [key for key in sorted(state.consumers.consumers) if stream in ("", key[0])]


@pytest.mark.parametrize(("slots", "spans"), [(1, 0), (256, 0), (0, 1024)])
def test_page_examines_a_bounded_number_of_slots_and_spans(slots: int, spans: int) -> None:
    for page in pages_of(state_with(100, slots, spans)):
        assert len(page) <= PAGE_CONSUMERS_MAX
        assert (len(page) - 1) * (slots + spans) <= PAGE_PARTS_MAX


def test_keys_stay_sorted_when_consumers_are_replaced_and_removed() -> None:
    states = state_with(20, 1).consumers
    first, second = states.keys[:2]
    states.put(second, states.consumers[second])
    states.put(first, None)
    assert states.keys == sorted(states.consumers)
    assert first not in states.keys
