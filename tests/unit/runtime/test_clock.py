from __future__ import annotations

import json
from io import StringIO

from hypothesis import example, given
from hypothesis import strategies as st

from chaplain.clock import FIFTH, READ_INTERVAL_NS, SLACK_NS, Clock
from chaplain.link.zmq.sockets import Sockets
from chaplain.runtime.disk.syscalls import DataDirectory
from chaplain.runtime.disk.writer import DiskWriter
from chaplain.runtime.event_loop import EventLoop
from chaplain.runtime.json_log import JsonLog
from tests.support.toy_core import ToyCore

SECOND = 10**9


class Machine:
    """Its clock, which can be set, and the time that went by."""

    def __init__(self) -> None:
        self.elapsed_ns = 5 * SECOND
        self.epoch_ns = 1_800_000_000 * SECOND
        self.clock = Clock(self.unix_ns, lambda: self.elapsed_ns)

    def unix_ns(self) -> int:
        return self.epoch_ns + self.elapsed_ns

    def ahead_ns(self) -> int:
        return self.unix_ns() - self.clock.now_ns()

    def go(self, seconds: float, step_ns: int = SECOND // 10) -> None:
        for _ in range(round(seconds * SECOND / step_ns)):
            self.elapsed_ns += step_ns
            self.clock.now_ns()


def test_clock_follows_the_system_time() -> None:
    machine = Machine()
    machine.go(3600)
    assert machine.ahead_ns() == machine.clock.error_ns == 0


def test_changed_system_clock_is_followed_by_a_fifth_of_elapsed_time() -> None:
    for set_by_ns in (60 * SECOND, -60 * SECOND):
        machine = Machine()
        machine.epoch_ns += set_by_ns
        assert machine.ahead_ns() == set_by_ns, "nothing leaps"
        machine.go(0.1)
        assert machine.clock.error_ns == set_by_ns, "seen"
        machine.go(100)
        assert machine.ahead_ns() == machine.clock.error_ns == set_by_ns * 2 // 3
        machine.go(200)
        assert abs(machine.ahead_ns()) <= SLACK_NS
        assert machine.clock.error_ns == machine.ahead_ns()


def test_change_between_two_readings_is_followed_from_then_on() -> None:
    machine = Machine()
    machine.epoch_ns += 60 * SECOND
    machine.elapsed_ns += 3600 * SECOND
    assert machine.ahead_ns() == 60 * SECOND
    machine.elapsed_ns += 3600 * SECOND
    assert machine.ahead_ns() == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, READ_INTERVAL_NS - 1, READ_INTERVAL_NS]) | st.integers(0, 100 * SECOND),
            st.just(0) | st.integers(-(10**6) * SECOND, 10**6 * SECOND),
        ),
        max_size=50,
    )
)
@example([(READ_INTERVAL_NS, -SECOND), (READ_INTERVAL_NS - 1, 0), (1, 0)])
def test_clock_never_goes_back_nor_leaps(moments: list[tuple[int, int]]) -> None:
    machine = Machine()
    before_ns = machine.clock.now_ns()
    for passed_ns, set_by_ns in moments:
        machine.elapsed_ns += passed_ns
        machine.epoch_ns += set_by_ns
        now_ns = machine.clock.now_ns()
        assert abs(now_ns - before_ns - passed_ns) <= passed_ns // FIFTH + 1
        assert now_ns >= before_ns
        before_ns = now_ns


def test_node_reports_when_its_clock_was_set_and_when_it_followed(tmp_path) -> None:
    machine, lines = Machine(), StringIO()
    core = ToyCore(machine.clock.now_ns())
    host = EventLoop(
        core, Sockets(b"h" * 16), DiskWriter(DataDirectory(str(tmp_path))), JsonLog("toy", lines), clock=machine.clock
    )

    def turn() -> list[str]:
        machine.go(2)
        host._run_once()
        return [json.loads(line)["event"] for line in lines.getvalue().splitlines() if "clock" in line]

    assert turn() == []
    machine.epoch_ns -= 30 * SECOND
    assert turn() == turn() == ["clock was set"]
    (said,) = [json.loads(line) for line in lines.getvalue().splitlines() if "clock was set" in line]
    assert -30 <= said["ahead_seconds"] < -25
    machine.go(150)
    assert turn() == ["clock was set", "clock followed"]
    assert host.measures()[1]["clock_error_seconds"] == machine.clock.error_ns / 1e9
    host.close()
