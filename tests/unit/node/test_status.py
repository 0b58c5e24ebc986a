"""A node's status: what one request for it costs does not depend on how many ask, or on how much there is."""

from __future__ import annotations

import json
from random import Random

import pytest

from chaplain.core import STATUS_STREAMS_MAX
from chaplain.journal.execution.state import ExecutionState
from chaplain.journal.model.consumers import Consumer, Slot
from chaplain.journal.model.records import StreamHead
from chaplain.node import status
from chaplain.node.core import NodeCore
from chaplain.node.snapshot import FRESH_NS, Snapshot
from simulator.trace import Trace
from simulator.world.world import World
from tests.unit.node.test_seeds import NAMES, endpoint, make, node

SECOND = 10**9


@pytest.fixture
def core() -> NodeCore:
    world = World("status", make, Trace())
    for name in NAMES:
        world.start(world.add(name, endpoint(name)))
    world.run(3 * SECOND)
    return node(world, NAMES[0])


def test_status_never_exports_the_state(core: NodeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecutionState, "export", lambda _: pytest.fail("the whole state was written down"))
    assert json.loads(core.status())["agreed"] == core.journal.execution.applied_index


def test_status_is_computed_once_for_requests_in_quick_succession(core: NodeCore, monkeypatch) -> None:
    core.now_ns += FRESH_NS
    made = []
    monkeypatch.setattr(status, "of_node", lambda _: made.append(1) or {"made": len(made)})
    first = core.status()
    assert [core.status() for _ in range(1000)] == [first] * 1000
    assert len(made) == 1
    core.now_ns += FRESH_NS
    assert core.status() != first


def test_status_is_computed_again_after_another_message(core: NodeCore, monkeypatch) -> None:
    core.now_ns += FRESH_NS
    made = []
    monkeypatch.setattr(status, "of_node", lambda _: made.append(1) or {"made": len(made)})
    before = core.status()
    state = core.journal.execution.state
    state.position = type(state.position)(state.position.index + 1, 1, 1, Random(0).randbytes(32))
    assert core.status() != before


def test_status_lists_a_bounded_number_of_streams_and_counts_all(core: NodeCore) -> None:
    core.now_ns += FRESH_NS
    core.journal.streams.load_heads({f"s{number:05}": 1 for number in range(3000)})
    told = json.loads(core.status())
    assert list(told["streams"]) == [f"s{number:05}" for number in range(STATUS_STREAMS_MAX)]
    assert told["streams_count"] == 3000
    assert core.gauges()["journal_executed_messages"] == 3000


def test_status_lists_consumers_with_the_largest_lag_first(core: NodeCore, monkeypatch) -> None:
    monkeypatch.setattr(core.journal.streams, "first_offset", lambda stream: 0)
    core.now_ns += FRESH_NS
    state = core.journal.execution.state
    core.journal.streams.load_heads({"orders": 9})
    state.put_streams({"orders": StreamHead(9, bytes(32))})
    for name, position in (("near", 8), ("far", 2)):
        consumer = Consumer("orders", name, bytes(15), 1, 1, 0, "", slots=(Slot(position),))
        state.consumers.put(consumer.key, consumer)
    told = json.loads(core.status())
    assert [(one["name"], one["lag"]) for one in told["consumers"]] == [("far", 7), ("near", 1)]
    gauges = core.gauges()
    assert (gauges["journal_consumers"], gauges["journal_consumer_lag_max"]) == (2, 7)


def test_cached_status_of_another_version_is_computed_again() -> None:
    made: list[int] = []
    snapshot = Snapshot(lambda: made.append(1) or len(made))
    assert [snapshot.get(0, "a"), snapshot.get(1, "a"), snapshot.get(2, "b"), snapshot.get(2, "b")] == [
        b"1",
        b"1",
        b"2",
        b"2",
    ]
