"""Blocking calls and the thread that answers them: no interruption, thread or end leaves a client unusable, or a caller
waiting."""

from __future__ import annotations

import _signal
import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from random import Random

import pytest

from chaplain import Client
from chaplain.client.api import calls as requests
from chaplain.client.io.call_registry import CallRegistry, Completion
from chaplain.client.io.thread_engine import ThreadEngine
from chaplain.client.protocol.events import Cancelled, Returned
from chaplain.client.sync.waiting import CallFuture
from chaplain.core import Disconnected, Drained
from chaplain.errors import ChaplainError, Closed
from chaplain.link.zmq.sockets import Sockets
from tests.support.client_threads import client_threads

LIMIT_S = 60.0


def test_listener_and_callers_share_one_client_without_delay(cluster) -> None:
    """Items come while other threads drive, while none does, and in between."""
    count = 300
    with Client.connect(**cluster.how) as client:
        client.pool("chat").join()
        threads = [
            threading.Thread(target=lambda: [client.pool("chat").broadcast(b"x") for _ in range(count)])
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        heard = [next(client.pool("chat").listen(timeout=LIMIT_S)).value for _ in range(2 * count)]
        for thread in threads:
            thread.join(LIMIT_S)
        assert heard == [b"x"] * 2 * count


class Answers:
    """A core that answers every `Cancelled` at the end of the turn, and may do something meanwhile."""

    def __init__(self, act: Callable[[], None] = lambda: None) -> None:
        self._act = act
        self._calls: list[int] = []

    def step(self, now_ns: int, event: object) -> list[object]:
        if isinstance(event, Cancelled):
            self._act()
            self._calls.append(event.call)
        if not isinstance(event, Drained):
            return []
        calls, self._calls = self._calls, []
        return [Returned(call, b"") for call in calls]

    def deadline(self) -> int | None:
        return None


def started(core: object) -> tuple[ThreadEngine, CallRegistry]:
    engine = ThreadEngine(core, Sockets(bytes(16)))  # type: ignore[arg-type]
    registry = CallRegistry(engine.submit)
    engine.start(registry)
    return engine, registry


def call(registry: CallRegistry) -> object:
    future = CallFuture()
    registry.submit_call(Cancelled, Completion(future))
    return future.result()


class Keeps(Answers):
    """Keeps what it was given, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def step(self, now_ns: int, event: object) -> list[object]:
        self.seen.append(event)
        return super().step(now_ns, event)


def test_input_that_arrived_before_a_call_is_processed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a write would go to a session that has ended, and once more to another: nobody could tell its fate."""
    ended, core = Disconnected(1, "the node is gone"), Keeps()
    engine, registry = started(core)
    future = CallFuture()

    def wait_until_both_are_there(_left_ns: int | None) -> list[object]:
        monkeypatch.undo()
        registry.submit_call(Cancelled, Completion(future))
        return [ended]

    monkeypatch.setattr(engine._sockets, "wait", wait_until_both_are_there)
    call(registry)  # after this turn, the engine waits again
    future.result()
    assert [type(event) for event in core.seen if type(event) is not Drained] == [Cancelled, Disconnected, Cancelled]
    engine.stop()


def test_defect_in_the_core_ends_every_wait() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    engine, registry = started(Answers(fail))
    with pytest.raises(Closed, match="ZeroDivisionError"):
        call(registry)
    with pytest.raises(Closed, match="connect again"):
        call(registry)
    engine.stop()
    assert not client_threads()


def test_finalizer_in_the_engines_thread_may_submit_but_not_wait() -> None:
    caught: list[BaseException] = []

    def act() -> None:
        try:
            registry.submit(Cancelled(0))
            engine.check_may_wait()
        except RuntimeError as error:
            caught.append(error)

    acts = iter([act])

    def act_once() -> None:
        for one in acts:
            one()

    engine, registry = started(Answers(act_once))
    assert call(registry) == b""
    assert len(caught) == 1
    assert call(registry) == b""
    engine.stop()
    assert not client_threads()


def test_engine_may_be_stopped_in_its_own_thread() -> None:
    def act() -> None:
        engine.stop()

    engine, registry = started(Answers(act))
    assert call(registry) == b"", "the turn was finished"
    engine.stop()
    with pytest.raises(Closed):
        call(registry)
    assert not client_threads()


def test_input_that_is_submitted_during_a_turn_needs_no_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up costs a system call, and answers often lead to the next request."""
    wakes: list[None] = []
    second = CallFuture()

    def act() -> None:
        if not begun:
            begun.append(None)
            monkeypatch.setattr(engine._sockets, "wake", lambda: wakes.append(None))
            registry.submit_call(Cancelled, Completion(second))

    begun: list[None] = []
    engine, registry = started(Answers(act))
    call(registry)
    assert second.result() == b""
    assert wakes == []
    monkeypatch.undo()
    engine.stop()


def test_library_leaves_signal_handlers_alone(cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a library installs no signal handler")

    for name in ("signal", "set_wakeup_fd", "siginterrupt", "pthread_sigmask"):
        monkeypatch.setattr(signal, name, refuse)
        monkeypatch.setattr(_signal, name, refuse)
    with Client.connect(**cluster.how) as client:
        assert client.status() == {"state": "WRK"}


@pytest.mark.parametrize("seed", range(4))
def test_concurrent_calls_timeouts_listeners_writes_and_close_all_end(cluster, seed: int) -> None:
    """Whatever they do, everyone is told, and the end leaves nothing behind."""
    client = Client.connect(**cluster.how)
    random, ends = Random(seed), []
    begin = threading.Barrier(8)

    def work(random: Random) -> None:
        begin.wait()
        try:
            while True:
                act = random.randrange(6)
                if act == 0:
                    with pytest.raises(ChaplainError):
                        client._context.run(_never(random.uniform(0.0001, 0.01)))
                elif act == 1:
                    client.events(timeout=0.001).close()
                elif act == 2:
                    client.events()  # dropped, and so cancelled
                elif act == 3:
                    assert client.ping() > 0
                else:
                    assert client.status() == {"state": "WRK"}
        except Closed as error:
            ends.append(error)

    threads = [threading.Thread(target=work, args=(Random(random.random()),)) for _ in range(7)]
    for thread in threads:
        thread.start()
    begin.wait()
    time.sleep(random.uniform(0.05, 1.0))
    client.close()
    for thread in threads:
        thread.join(LIMIT_S)
    assert len(ends) == 7
    gc.collect()
    assert not client_threads()


def _never(timeout_s: float) -> requests.PreparedCall[object]:
    ask = requests.ask("never", None, b"")
    ask.timeout_s = timeout_s
    return ask


_INTERRUPTED = """
import signal, sys, threading, time
from random import Random
from chaplain import Client

class Stop(BaseException):
    pass

def interrupt(number, frame):
    global armed
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0002, 0.01))
    if armed:
        armed = False  # until the program has caught it
        raise Stop

def ask(number, frame):
    answers.append(client.status()["state"])
    raise Stop

random, armed, answers = Random({seed}), False, []
client = Client.connect(endpoints={endpoints!r}, identity={identity!r}, node_keys={keys!r})
before = signal.getsignal(signal.SIGINT)
stop = threading.Event()
def others():
    while not stop.is_set():
        assert client.status()["state"] == "WRK"
thread = threading.Thread(target=others)
if {others}:
    thread.start()
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.001)
stops = done = 0
end = time.monotonic() + 60
while stops < 300 and time.monotonic() < end:
    try:
        armed = True
        while True:
            assert client.status()["state"] == "WRK"
            done += 1
    except Stop:
        stops += 1
for _ in range(100):
    assert client.status()["state"] == "WRK"
signal.setitimer(signal.ITIMER_REAL, 0)
calls = len(client._context.registry._sinks)
signal.signal(signal.SIGALRM, ask)
late_s = []
for _ in range(5):
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        client.ask("never", timeout=50)
    except Stop:
        late_s.append(time.monotonic() - began - 0.1)
stop.set()
if {others}:
    thread.join()
assert signal.getsignal(signal.SIGINT) is before
assert signal.getsignal(signal.SIGALRM) is ask
client.close()
print(stops, done > 0, calls <= {others}, sorted(late_s)[2] < 0.2, *answers)
"""


@pytest.mark.parametrize(("seed", "others"), [(1, 0), (2, 1)])
def test_signals_that_raise_at_any_moment_leave_the_client_usable(cluster, tmp_path, seed, others) -> None:
    """Also a handler that asks the client itself, while the program waits for it."""
    identity = tmp_path / "identity"
    identity.write_text(cluster.identity.text())
    how = cluster.how
    program = _INTERRUPTED.format(
        endpoints=how["endpoints"], identity=str(identity), keys=how["node_keys"], seed=seed, others=others
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=90, check=False
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("300 True True True" + 5 * " WRK" + "\n", "", 0)
