"""When a made-up disk writes and syncs: one sync serves all that is queued, as in the runtime."""

from chaplain.core import Persist, Persisted, PersistFailed, Replace
from chaplain.units import MILLISECOND_NS, SECOND_NS
from simulator.trace import Trace
from simulator.world.machine import SYNCED_NOT_TOLD, WRITTEN_NOT_SYNCED, Armed
from simulator.world.world import World


class Asking:
    """A core that asks for what it is told to, and keeps what it hears of its disk."""

    wants_drained = False

    def __init__(self):
        self.routing_id = b"\x01" + bytes(16)
        self.heard = []

    def deadline(self):
        return None

    def step(self, now_ns, event):
        if isinstance(event, list):
            return event
        self.heard.append((now_ns, event))
        return []

    def tickets(self, kind=Persisted):
        return [event.ticket for _, event in self.heard if isinstance(event, kind)]


class Machine:
    def __init__(self, seed):
        self.core = Asking()
        self.world = World(str(seed), lambda *given: self.core, Trace())
        self.host = self.world.add("a", "tcp://a:1")
        self.world.start(self.host)

    def ask(self, *tickets):
        self.world.tell(self.host, [Persist(ticket, (Replace(str(ticket), b"x"),)) for ticket in tickets])

    def run(self, duration_ns):
        self.world.run(self.world.now_ns + duration_ns)

    def files(self):
        return sorted(map(int, self.host.disk.contents()))


def test_writes_during_a_slow_sync_share_the_next_one():
    for seed in range(20):
        machine = Machine(seed)
        machine.host.disk_slow_until_ns = 100 * MILLISECOND_NS
        machine.ask(0)
        machine.run(MILLISECOND_NS)
        for ticket in range(1, 40):
            machine.ask(ticket)
        machine.host.disk_slow_until_ns = 0
        machine.run(5 * SECOND_NS + 10 * MILLISECOND_NS)
        assert machine.core.tickets() == list(range(40))
        assert len({time_ns for time_ns, _ in machine.core.heard}) == 2
        assert machine.files() == list(range(40))


def test_simultaneous_writes_share_a_sync_or_the_first_is_alone():
    moments = set()
    for seed in range(20):
        machine = Machine(seed)
        machine.ask(1, 2, 3)
        machine.run(SECOND_NS)
        assert machine.core.tickets() == [1, 2, 3]
        moments.add(len({time_ns for time_ns, _ in machine.core.heard}))
    assert moments == {1, 2}


def test_failed_sync_fails_its_writes_and_all_later_ones():
    machine = Machine(1)
    machine.host.disk_error = "EIO"
    machine.ask(1, 2, 3)
    machine.run(SECOND_NS)
    machine.host.disk_error = ""
    machine.ask(4)
    machine.run(SECOND_NS)
    assert machine.core.tickets(PersistFailed) == [1, 2, 3, 4]
    assert machine.core.tickets() == []


def test_kill_between_the_writes_of_a_group_loses_the_unwritten_ones():
    kept = set()
    for seed in range(20):
        machine = Machine(seed)
        machine.host.armed = Armed(WRITTEN_NOT_SYNCED, nth=2, power=False)
        machine.ask(1, 2, 3)
        machine.run(SECOND_NS)
        assert not machine.host.up
        kept.add((tuple(machine.files()), tuple(machine.core.tickets())))
    assert kept == {((1, 2), ())}


def test_kill_after_the_sync_of_a_group_keeps_it_and_reports_nothing():
    kept = set()
    for seed in range(20):
        machine = Machine(seed)
        machine.host.armed = Armed(SYNCED_NOT_TOLD, nth=2, power=True)
        machine.ask(1, 2, 3)
        machine.run(SECOND_NS)
        kept.add((tuple(machine.files()), tuple(machine.core.tickets())))
    assert kept == {((1, 2, 3), ()), ((1, 2, 3), (1,))}


def test_new_process_does_not_wait_for_the_sync_of_the_old_one():
    machine = Machine(1)
    machine.host.disk_slow_until_ns = SECOND_NS
    machine.ask(1)
    machine.run(MILLISECOND_NS)
    machine.world.crash(machine.host, power=False)
    machine.host.disk_slow_until_ns = 0
    machine.world.start(machine.host)
    machine.ask(2)
    machine.run(10 * MILLISECOND_NS)
    assert machine.core.tickets() == [2]
