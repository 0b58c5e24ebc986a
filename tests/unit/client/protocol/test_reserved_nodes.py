"""A client among nodes that are reserved: where it writes, and what it is told."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from chaplain.client.io.call_registry import error_of
from chaplain.client.protocol.call_events import Failure
from chaplain.client.protocol.endpoints import Endpoints
from chaplain.client.protocol.events import Settings
from chaplain.client.protocol.journal.events import Batch, NodeSpoke, WriteCommand, WritesAcknowledged
from chaplain.client.protocol.journal.node_selection import NodeSelector
from chaplain.errors import StatementFailed
from chaplain.journal.events import DryRun, DryRunDone
from chaplain.journal.messages.client import NotWritten, Opened, Receipts
from tests.unit.client.client_stage import Stage
from tests.unit.client.journal_stage import CLUSTER, Bench
from tests.unit.client.journal_stage import Cluster as OpenCluster

SECOND_NS = 10**9


class Cluster(OpenCluster):
    """Nodes are reserved for these; whatever is tried out and begins with `bad` would fail."""

    def __init__(self, **reserved: tuple[str, ...]) -> None:
        self._reserved = reserved
        super().__init__(3)
        for node in self.nodes.values():
            node._perform = self._performer(node)  # type: ignore[method-assign]

    def settings(self, number: int):
        reserved = self._reserved.get(f"node{number}", ())
        return replace(super().settings(number), reserved=reserved, prevalidate=bool(reserved))

    def _performer(self, node):
        perform = node._perform

        def act(effect) -> None:
            if isinstance(effect, DryRun):
                fails = ("constraint", "it is bad") if b"bad" in effect.raw else ()
                node.inbox.append(DryRunDone(effect.ticket, *fails))
            else:
                perform(effect)

        return act


def execute(bench: Bench, value: bytes, wait_s: float = 60) -> int:
    """As SQL does it: one request that may be tried out."""
    batch = Batch("orders", [value], transaction=True, size_bytes=len(value), message_type=1, check=True)
    return bench.wish(lambda call: WriteCommand(call, batch, int(wait_s * SECOND_NS), 0))


def node_of(bench: Bench) -> int:
    return bench.sessions[bench.journal._selector.chosen.instance].node


def opened(selector: NodeSelector, number: int, leads: int = 0, reserved: tuple[str, ...] = ()) -> None:
    instance = bytes([number])
    selector.on_session_up(0, instance)
    call = selector._sessions[instance].call
    answer = Opened(call, number, CLUSTER, bytes(15), "alice", 10, leads=leads, reserved=reserved, epoch=bytes(16))
    selector.on_reply(0, instance, call, answer, b"")


def test_node_choice_prefers_own_reserved_node_then_master_then_others() -> None:
    selector = NodeSelector([], CLUSTER)
    selector.open_all(0)
    opened(selector, 1, leads=9, reserved=("bob",))
    assert selector.chosen.unusable_reason == "node 1 is reserved for bob: connect to another node, too"
    opened(selector, 2)
    assert selector.chosen.instance == b"\2", "a master that takes nothing of ours is no better than none"
    opened(selector, 3, leads=8)
    assert selector.chosen.instance == b"\3"
    opened(selector, 4, reserved=("bob", "alice"))
    assert selector.chosen.instance == b"\4"
    selector.on_master_change(b"\3", 10)
    assert selector.chosen.instance == b"\4", "reserved for us goes before master"
    assert [node.instance[0] for node in selector._ready()] == [4, 3, 2, 1]
    for instance in (b"\4", b"\3", b"\2"):
        assert selector.chosen.instance == instance
        selector.on_session_down(instance, "gone")
    assert selector.chosen.instance == b"\1", "for whatever else there is"


def test_rotation_never_selects_a_node_that_refuses_writes() -> None:
    selector = NodeSelector([], CLUSTER)
    selector.open_all(0)
    opened(selector, 1, reserved=("bob",))
    opened(selector, 2)
    assert not selector.rotate()
    assert selector.chosen.instance == b"\2"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_reserved_master_does_not_prevent_writes_elsewhere(number) -> None:
    cluster = Cluster(**{f"node{number}": ("somebody",)})
    cluster.elect()
    bench = Bench(cluster, 1, 2, 3)
    assert isinstance(bench.end(bench.write(b"a")), WritesAcknowledged)
    assert node_of(bench) != number


def test_client_that_knows_only_foreign_reserved_nodes_is_refused_unsigned() -> None:
    cluster = Cluster(node1=("somebody",), node2=("else",))
    cluster.elect()
    bench = Bench(cluster, 1, 2)
    raised = bench.end(bench.write(b"a", wait_s=5))
    assert raised.failure is Failure.UNREACHABLE
    assert "not written: waited 5 s; node" in raised.reason
    assert "is reserved for" in raised.reason
    assert not bench.packs
    bench.connect(3)
    assert isinstance(bench.end(bench.write(b"b")), WritesAcknowledged), "another node helps"
    assert [message.value for message in bench.messages()] == [b"b"], "and reading goes through any"


def test_statement_refused_by_a_dry_run_is_never_ordered() -> None:
    cluster = Cluster(node3=("default",))
    cluster.elect()
    bench = Bench(cluster, 1, 2, 3)
    bench.end(execute(bench, b"good"))
    assert node_of(bench) == 3
    raised = bench.end(execute(bench, b"bad"))
    error = error_of(raised)
    assert isinstance(error, StatementFailed)
    assert (error.kind, str(error), error.result) == ("constraint", "it is bad", None)
    last = [execute(bench, b"better"), bench.write(b"bad data")]
    assert all(isinstance(bench.end(call), WritesAcknowledged) for call in last)
    assert [message.value for message in bench.messages()] == [b"good", b"better", b"bad data"]


def test_client_continues_elsewhere_when_its_reserved_node_dies() -> None:
    cluster = Cluster(node3=("default",))
    cluster.elect()
    bench = Bench(cluster, 1, 2, 3)
    bench.end(execute(bench, b"a"))
    bench.kill(3)
    assert isinstance(bench.end(execute(bench, b"bad, but nobody tries it out")), WritesAcknowledged)


def test_client_returns_to_its_reserved_node_once_it_works() -> None:
    cluster = Cluster(node3=("default",))
    cluster.elect()
    bench = Bench(cluster, 1, 2, 3)
    bench.end(execute(bench, b"a"))
    away = {(3, 1), (3, 2), (1, 3), (2, 3)}
    cluster.cut |= away
    bench.end(execute(bench, b"b"))
    assert node_of(bench) != 3, "it did not get us on"
    for number in range(15):
        bench.end(execute(bench, b"%d" % number))
        bench.rest(1)
    assert node_of(bench) != 3, "nor would it now"
    cluster.cut -= away
    bench.end(execute(bench, b"c"))
    assert node_of(bench) != 3, "not at once: it may fall silent again"
    for number in range(20):
        bench.end(execute(bench, b"%d" % number))
        bench.rest(1)
    assert node_of(bench) == 3


def test_dry_run_refusal_is_uncertain_while_another_copy_may_be_ordered() -> None:
    """A refusal holds for one copy; the fence tells of the other."""
    cluster = Cluster(node3=("default",))
    cluster.elect()
    bench = Bench(cluster, 3)
    bench.end(execute(bench, b"first"))
    lane, third = bench.journal._writers._lane, bench.journal._selector.chosen.instance
    late: list[NotWritten] = []

    def lose(outward: bool, message: object) -> int:
        if isinstance(message, NotWritten):
            late.append(message)
        return 0 if isinstance(message, NotWritten | Receipts) else 1

    bench.spoil = lose
    call = execute(bench, b"bad")
    bench.until(lambda: bool(late))
    bench.connect(1)
    bench.until(lambda: cluster.nodes[1].core.execution.state.streams["orders"].next_offset == 2)  # it went on there
    bench.spoil = None
    bench.give(NodeSpoke(third, late[0], b""))
    assert not bench.ended(call), "one copy was refused, the other written"
    assert isinstance(bench.end(call), WritesAcknowledged)
    assert [message.value for message in bench.messages()] == [b"first", b"bad"]
    assert isinstance(bench.end(execute(bench, b"last")), WritesAcknowledged)
    assert bench.journal._writers._lane is not lane


def test_dry_run_refusal_is_final_after_the_fence() -> None:
    cluster = Cluster(node3=("default",))
    cluster.elect()
    bench = Bench(cluster, 3)
    bench.end(execute(bench, b"first"))
    third = bench.journal._selector.chosen.instance
    late: list[NotWritten] = []
    bench.spoil = lambda outward, message: 0 if isinstance(message, NotWritten) and not late.append(message) else 1
    call = execute(bench, b"bad")
    bench.until(lambda: len(late) == 2)  # it was sent again, and tried out again
    bench.spoil = None
    bench.give(NodeSpoke(third, late[0], b""))
    assert not bench.ended(call)
    assert bench.end(call).failure is Failure.STATEMENT
    assert [message.value for message in bench.messages()] == [b"first"]


class _AllUnusable:
    """A journal that finds every node reserved for others."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.has_waiters = False

    @property
    def unusable_sessions(self) -> frozenset[bytes]:
        return frozenset(self._stage.core._connections.sessions)

    def step(self, now_ns: int, event: object) -> list[object]:
        return []

    def deadline(self) -> None:
        return None


def test_client_connects_to_more_nodes_while_all_are_reserved_for_others() -> None:
    stage = Stage(count=6)
    stage.run(1)
    assert len(stage.dialled) == 3
    stage.core._journal = _AllUnusable(stage)
    stage.run(5)
    assert sorted(stage.dialled) == sorted(stage.nodes)
    assert len(stage.core._connections.sessions) == 6, "nobody is left for it"


def test_nodes_reserved_for_others_do_not_count_toward_the_three_sessions() -> None:
    names = [f"tcp://127.0.0.1:{port}" for port in range(1, 21)]
    endpoints = Endpoints(names, Settings(), Random(1))
    assert len(endpoints.choose(0)) == 3
    assert endpoints.next_ns() is None
    endpoints.unusable = frozenset(list(endpoints.wanted)[:2])
    assert endpoints.next_ns() is not None
    assert len(endpoints.choose(0)) == 2, "three are wanted that are of use"
    endpoints.unusable = frozenset(endpoints.wanted)
    assert len(endpoints.choose(0)) == 3
    for _ in range(10):
        endpoints.unusable = frozenset(endpoints.wanted)
        endpoints.choose(0)
    assert len(endpoints.wanted) == Settings().sessions_max, "and not more than the bound"
    endpoints.unusable = frozenset()
    assert endpoints.choose(0) == []
    endpoints.failed(0, next(iter(endpoints.wanted)), "gone", refused=False)
    assert endpoints.choose(0) == [], "those that are there are enough"
