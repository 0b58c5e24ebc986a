"""How much of the node's time requests of clients get, by a clock that is told how long each takes."""

from __future__ import annotations

from chaplain.runtime.request_scheduler import REST_COSTLY_NS_MAX, REST_NS_MAX, REST_UNIT_NS, RequestScheduler

MILLISECOND = 1_000_000


class Loop:
    """A loop with a clock of its own, and the core that it runs."""

    def __init__(self, cost_ns: int, heavy: int, share: float = 0.5) -> None:
        self.now_ns = 10 * REST_NS_MAX
        self.cost_ns = cost_ns
        self.heavy = heavy
        """Requests that wait of clients that are not light."""
        self.light = 0
        self.contended = True
        self.behind = False
        self.units = 1
        """What each request is charged."""
        self.charged = 0
        self.cpu_ns = 0
        """Processor time of all threads."""
        self.scheduler = RequestScheduler(self, MILLISECOND, share, lambda: self.now_ns, lambda: self.cpu_ns)

    @property
    def waiting(self) -> bool:
        return self.heavy + self.light > 0

    @property
    def light_waiting(self) -> bool:
        return self.light > 0

    def turn(self, other_work_ns: int = 0) -> int:
        """How many requests were served in it, after other work."""
        before, began_ns = self.heavy + self.light, self.now_ns
        self.now_ns += other_work_ns
        self.scheduler.serve(self._serve)
        self.scheduler.record_busy(self.now_ns - began_ns)
        return before - self.heavy - self.light

    def _serve(self, light: bool) -> None:
        if light or not self.heavy:
            self.light -= 1
        else:
            self.heavy -= 1
        self.now_ns += self.cost_ns
        self.charged += self.units


def test_turn_ends_when_its_time_is_over() -> None:
    loop = Loop(MILLISECOND // 10, 1000)
    assert loop.turn() == 10


def test_request_longer_than_a_turn_is_served_alone() -> None:
    assert Loop(5 * MILLISECOND, 1000).turn() == 1


def test_contended_node_is_busy_for_at_most_its_share() -> None:
    loop = Loop(MILLISECOND // 10, 100_000, share=0.25)
    began_ns, served = loop.now_ns, 0
    while loop.now_ns - began_ns < 1000 * MILLISECOND:
        served += loop.turn()
        loop.now_ns += MILLISECOND // 10  # the node waits
    assert abs(served * loop.cost_ns - 250 * MILLISECOND) < 20 * MILLISECOND


def test_work_for_other_nodes_counts_as_busy_time() -> None:
    loop = Loop(MILLISECOND // 100, 100_000)
    began_ns, busy_ns = loop.now_ns, 0
    while loop.now_ns - began_ns < 1000 * MILLISECOND:
        served = loop.turn()
        # Each request makes all nodes work ten times as long as it takes to serve it.
        later_ns = 10 * served * loop.cost_ns
        busy_ns += served * loop.cost_ns + later_ns
        loop.now_ns += later_ns
        loop.scheduler.record_busy(later_ns)
        loop.now_ns += MILLISECOND // 10
    assert busy_ns < 550 * MILLISECOND


def test_light_clients_are_served_while_the_node_rests() -> None:
    loop = Loop(MILLISECOND // 10, 1000)
    assert loop.turn() == 10
    assert loop.turn() == 0
    loop.light = 1
    assert loop.scheduler.wait_ns() == 0
    assert loop.turn() == 1
    assert loop.light == 0


def test_no_client_starves_while_the_node_is_always_busy() -> None:
    loop = Loop(MILLISECOND // 10, 1000)
    began_ns, served = loop.now_ns, 0
    while loop.now_ns - began_ns < 1000 * MILLISECOND:
        served += loop.turn(other_work_ns=MILLISECOND)
    assert served >= 1000 * MILLISECOND // REST_NS_MAX - 1


def test_always_busy_node_serves_expensive_requests_less_often() -> None:
    loop = Loop(MILLISECOND // 10, 1000)
    loop.units = 250
    for _ in range(3):
        loop.turn(other_work_ns=MILLISECOND)
    began_ns, served = loop.now_ns, 0
    while loop.now_ns - began_ns < 4000 * MILLISECOND:
        served += loop.turn(other_work_ns=MILLISECOND)
    assert served in range(7, 10)
    assert loop.units * REST_UNIT_NS == 500 * MILLISECOND


def test_wait_after_the_most_expensive_request_is_bounded() -> None:
    loop = Loop(MILLISECOND // 10, 1000)
    loop.units = 1_000_000
    loop.behind = True
    loop.turn()
    wait_ns = loop.scheduler.wait_ns()
    assert wait_ns is not None
    assert MILLISECOND < wait_ns <= REST_COSTLY_NS_MAX


def test_work_in_threads_counts_as_busy_time() -> None:
    loop = Loop(MILLISECOND // 100, 100_000)
    began_ns = loop.now_ns
    while loop.now_ns - began_ns < 1000 * MILLISECOND:
        # A thread works ten times as long as the loop takes to serve the request.
        loop.cpu_ns += 11 * loop.turn() * loop.cost_ns
        loop.now_ns += MILLISECOND // 10
    assert loop.cpu_ns < 550 * MILLISECOND


def test_time_with_many_writes_under_way_counts_as_busy_time() -> None:
    loop = Loop(MILLISECOND // 10, 1000, share=0.5)
    loop.turn()
    loop.now_ns += 50 * MILLISECOND  # idle
    loop.behind = True
    loop.turn()
    loop.now_ns += 40 * MILLISECOND
    loop.behind = False
    loop.turn()
    loop.now_ns += 30 * MILLISECOND
    assert loop.turn() == 0
    loop.now_ns += 15 * MILLISECOND
    assert loop.turn() > 0


def test_only_light_clients_are_served_while_many_octets_are_under_way() -> None:
    loop = Loop(MILLISECOND // 10, 1000)
    loop.turn()
    loop.now_ns += REST_NS_MAX // 2
    loop.behind = True
    assert loop.turn() == 0
    loop.light = 1
    assert loop.turn() == 1
    loop.now_ns += MILLISECOND
    assert loop.turn() == 0
    loop.behind = False
    loop.now_ns += REST_NS_MAX // 2
    assert loop.turn() > 0


def test_single_client_is_served_without_a_rest() -> None:
    loop = Loop(MILLISECOND // 10, 1000)
    loop.contended, loop.behind = False, True
    assert loop.turn() == 10
    assert loop.scheduler.wait_ns() == 0
    assert loop.turn() == 10


def test_wait_after_a_full_turn_is_known() -> None:
    loop = Loop(MILLISECOND // 10, 1000)
    loop.turn()
    assert loop.scheduler.wait_ns() == MILLISECOND
    assert loop.turn() == 0
    loop.now_ns += MILLISECOND
    assert loop.turn() == 10
    loop.heavy = 0
    assert loop.scheduler.wait_ns() is None


def test_rest_after_a_long_step_is_bounded() -> None:
    loop = Loop(MILLISECOND // 10, 1000)
    loop.turn(other_work_ns=100 * REST_NS_MAX)
    wait_ns = loop.scheduler.wait_ns()
    assert wait_ns is not None
    assert wait_ns <= REST_NS_MAX
