"""Runs a node's core for real: one thread that waits, drains, steps and performs.

A wake-up steps the core for everything that was waiting, then `Woken` if its deadline has come, then `Serve` for as
many requests of clients as there is time for (`turns`), then `Drained` once, and then performs all effects in order.
Writes go to the disk together, so that one sync serves them all. If they are done at once, as small ones are, the core
hears of it in the same wake-up: waiting anew would cost more than the sync.

It decides nothing about protocols. What it owes: time never goes back; every effect is performed once, in order;
a core that breaks or a promise that cannot be kept ends the process, never a limping node.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

from chaplain.clock import FIFTH, SLACK_NS, Clock
from chaplain.core import (
    Admit,
    Cast,
    Dial,
    Drained,
    Halt,
    HangUp,
    Persist,
    Refuse,
    Report,
    Send,
    Serve,
    Stopping,
    Woken,
)
from chaplain.link.zmq.sockets import Sockets
from chaplain.runtime.disk.writer import DiskWriter
from chaplain.runtime.exit_codes import BROKEN, DONE, HALTED, REMOVED
from chaplain.runtime.json_log import JsonLog
from chaplain.runtime.turns import Turns
from chaplain.runtime.udp_beacon import BeaconSocket
from chaplain.runtime.worker_pool import TaskGroup, WorkerPool

GOODBYE_NS = 2_000_000_000
"""How long queued frames and writes may take to leave when the node is asked to stop."""
LINGER_MS = 2000
"""How long what ZeroMQ has taken may take to leave after that; it ends earlier as soon as all has left."""
IDLE_NS = 1_000_000_000
"""The longest wait: a core without a deadline is still looked at, and its health still known."""
QUESTIONS_MAX = 64
CLOCK_SET_NS = 1_000_000_000
"""So far off, the system's clock was set, and its operator is told."""

T = TypeVar("T")


class HostedCore(Protocol):
    @property
    def counts(self) -> Counter[str]: ...

    def step(self, now_ns: int, event: Any, /) -> list[Any]:
        """Takes `HostInput`s and answers of its errands; gives `HostEffect`s and errands."""
        ...

    def deadline(self) -> int | None: ...


class BackgroundTasks:
    """What a core wants done beside the host's own effects: by type of effect, who does it.

    Done by other threads; what comes of it is the core's input. `round` is asked for inputs about once a second.
    """

    def __init__(
        self,
        doers: Mapping[type, Callable[[Any], Any]] | None = None,
        round_: Callable[[], list[Any]] = list,
        *,
        crews: Sequence[TaskGroup] = (),
        end: Callable[[], None] | None = None,
    ) -> None:
        """What `crews` do holds up nobody else; `end` comes after all of them."""
        self.round = round_
        self.labours: list[WorkerPool[Any]] = []
        self._tasks: dict[type, tuple[WorkerPool[Any], Callable[[Any], Any]]] = {}
        for crew in (TaskGroup(doers or {}), *crews):
            labour: WorkerPool[Any] = WorkerPool(crew.threads)
            self.labours.append(labour)
            self._tasks.update({kind: (labour, doer) for kind, doer in crew.doers.items()})
        self._end = end
        self._give_up = [crew.give_up for crew in crews]

    def run(self, effect: object) -> None:
        labour, doer = self._tasks[type(effect)]
        labour.submit(partial(doer, effect))

    def close(self) -> None:
        for give_up in self._give_up:
            give_up()
        for labour in self.labours:
            labour.close()
        if self._end is not None:
            self._end()


class EventLoop:
    """One core and the world it sees. `run` belongs to one thread; `stop` and `ask` may come from any."""

    def __init__(
        self,
        core: HostedCore,
        sockets: Sockets,
        storage: DiskWriter,
        log: JsonLog,
        *,
        beacon: BeaconSocket | None = None,
        clock: Clock | None = None,
        errands: BackgroundTasks | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`turns` are for a core whose requests of clients wait to be served."""
        self.core = core
        self._turns = turns
        self._clock = clock or Clock()
        self._sockets, self._storage, self._log, self._beacon = sockets, storage, log, beacon
        self._counts: Counter[str] = Counter()
        self._errands = errands
        self._round_ns = 0
        self._others: list[Any] = []
        self._questions: deque[Callable[[], None]] = deque()
        self._stop = threading.Event()
        self._good_bye_ns: int | None = None
        self._unwritten = 0
        self._waits = 0
        self._clock_was_set = False
        self._halted = ""
        self._removed = ""
        self.again = False
        """Whether a node that halted is to be started again at once."""
        sockets.watch(storage.fd, self._take_completed)
        if beacon is not None:
            sockets.watch(beacon.fd, lambda: self._others.extend(beacon.heard()))
        if errands is not None:
            for labour in errands.labours:
                sockets.watch(labour.fd, partial(self._take_answers, labour))

    # From other threads.

    def stop(self) -> None:
        self._stop.set()
        self._sockets.wake()

    def ask(self, question: Callable[[], T], timeout_s: float = 2.0) -> T:
        """Have the loop answer between two wake-ups, when the core is at rest. TimeoutError if it does not."""
        answer: Future[T] = Future()

        def give() -> None:
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)

        if len(self._questions) >= QUESTIONS_MAX:
            raise TimeoutError("too many questions wait")
        self._questions.append(give)
        self._sockets.wake()
        return answer.result(timeout_s)

    def measures(self) -> tuple[dict[str, int], Mapping[str, float]]:
        """Counters and gauges. Ask for them through `ask`."""
        counters = dict(self.core.counts)
        labours = [] if self._errands is None else [labour.counts for labour in self._errands.labours]
        for part in (self._counts, self._sockets.counts, self._storage.counts, *self._beacon_counts(), *labours):
            for name, count in part.items():
                counters[name] = counters.get(name, 0) + count
        gauges: dict[str, float] = getattr(self.core, "gauges", dict)()
        own: dict[str, float] = {
            "send_queue_bytes": self._sockets.queued_bytes,
            "storage_queue_bytes": self._storage.queued_bytes,
            "clock_error_seconds": self.clock_error_s,
        }
        return counters, own | gauges

    @property
    def clock_error_s(self) -> float:
        """How far the machine's clock is ahead of ours: it was set."""
        return self._clock.error_ns / 1e9

    def _beacon_counts(self) -> list[Counter[str]]:
        return [] if self._beacon is None else [self._beacon.counts]

    # The loop.

    def stop_on_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())

    def run(self) -> int:
        try:
            while not self._halted and not self._left():
                self._turn()
        except Exception:
            self._log.write("broken", {"traceback": traceback.format_exc()}, level="error")
            return BROKEN
        if self._good_bye_ns is not None and not self._halted:
            self._report_unsent()
        if self._halted:
            level = "info" if self.again else "error"
            self._log.write("starting again" if self.again else "halted", {"reason": self._halted}, level=level)
            return HALTED
        if self._removed:
            self._log.write("halted", {"reason": self._removed}, level="error")
            return REMOVED
        self._log.write("stopped")
        return DONE

    def _report_unsent(self) -> None:
        """Say what did not leave in time: whoever waits for it learns that the connection ended, and asks again."""
        queued_bytes = self._sockets.queued_bytes
        if queued_bytes or self._unwritten:
            detail = {"queued_bytes": queued_bytes, "unwritten": self._unwritten, "seconds": GOODBYE_NS // 10**9}
            self._log.write("stopped before everything was sent", detail, level="error")

    def close(self) -> None:
        self._sockets.close(LINGER_MS)
        if self._beacon is not None:
            self._beacon.close()
        self._storage.close()
        if self._errands is not None:
            self._errands.close()

    def _turn(self) -> None:
        deadline_ns = self.core.deadline()  # holds until the core is stepped
        inputs: list[Any] = [*self._sockets.wait(self._timeout_ns(deadline_ns))]
        others, self._others = self._others, []
        inputs += others
        now_ns = self._clock.now_ns()
        if now_ns >= self._round_ns:
            self._round_ns = now_ns + IDLE_NS
            self._tell_clock()
            if self._errands is not None:
                inputs += self._errands.round()
                self._tell_waits(self._errands)
        if self._stop.is_set() and self._good_bye_ns is None:
            self._good_bye_ns = now_ns + GOODBYE_NS
            inputs.append(Stopping())
        if deadline_ns is not None and deadline_ns <= now_ns:
            inputs.append(Woken())
        if inputs or self._client_wait_ns() == 0:
            self._counts["host_wakeups"] += 1
            written = self._step(inputs, now_ns)
            if written and not self._halted:
                self._others += self._step(written, self._clock.now_ns())  # for the next turn, which does not wait
        for _ in range(len(self._questions)):
            self._questions.popleft()()

    def _client_wait_ns(self) -> int | None:
        """How long it is until a request of a client may be served; None if none waits."""
        return None if self._turns is None else self._turns.wait_ns()

    def _tell_clock(self) -> None:
        error_ns = self._clock.error_ns
        if self._clock_was_set:
            if abs(error_ns) <= SLACK_NS:
                self._clock_was_set = False
                self._log.write("clock followed")
        elif abs(error_ns) >= CLOCK_SET_NS:
            self._clock_was_set = True
            detail = {
                "ahead_seconds": error_ns // 1_000_000_000,
                "followed_in_seconds": FIFTH * abs(error_ns) // 1_000_000_000,
                "reason": "this machine's clock was set: the node follows slowly; restart it to have it follow at once",
            }
            self._log.write("clock was set", detail, level="error")

    def _tell_waits(self, errands: BackgroundTasks) -> None:
        waits = sum(labour.counts["labour_waits_for_descriptors"] for labour in errands.labours)
        if waits > self._waits:
            detail = {"reason": "this process may open no more files: what is to be read waits", "waits": waits}
            self._log.write("no descriptors left", detail, level="error")
        self._waits = waits

    def _timeout_ns(self, deadline_ns: int | None) -> int:
        now_ns = self._clock.now_ns()
        wait_ns = IDLE_NS if deadline_ns is None else max(0, min(deadline_ns - now_ns, IDLE_NS))
        if self._questions or self._others:
            return 0
        if (client_ns := self._client_wait_ns()) is not None:
            wait_ns = min(wait_ns, client_ns)
        return wait_ns if self._good_bye_ns is None else min(wait_ns, 20_000_000)

    def _step(self, inputs: list[Any], now_ns: int) -> list[Any]:
        """Says what was written and is on disk already."""
        step = self.core.step
        effects: list[Any] = []
        for event in inputs:
            effects += step(now_ns, event)
        if self._turns is not None:
            self._turns.serve(lambda light: effects.extend(step(now_ns, Serve(light))))
        effects += step(now_ns, Drained())
        persists = [effect for effect in effects if isinstance(effect, Persist)]
        send = self._sockets.send
        for effect in effects:
            if type(effect) is Send:
                send(effect.channel, effect.frame)
            else:
                self._perform(effect)
        written: list[Any] = self._storage.at_once(persists) if persists else []
        if persists and not written:
            self._unwritten += len(persists)
            self._storage.submit(persists)
        self._counts["host_inputs"] += len(inputs)
        busy_ns = self._clock.now_ns() - now_ns
        if self._turns is not None:
            self._turns.worked(busy_ns)
        self._counts["host_busy_microseconds"] += busy_ns // 1000
        return written

    def _perform(self, effect: Any) -> None:
        match effect:
            case Dial() | HangUp() | Admit() | Refuse():
                self._sockets.perform(effect)
            case Persist():
                pass  # goes to the storage thread with the others of this wake-up
            case Cast():
                if self._beacon is not None:
                    self._beacon.cast(effect.datagram)
            case Report():
                self._log.write(effect.event, effect.detail, peer=effect.peer)
            case Halt() if effect.removed:
                self._removed = effect.reason
                self.stop()  # what it owes others leaves first, as when it is asked to stop
            case Halt():
                self._halted = self._halted or effect.reason
                self.again = effect.again
            case _:
                assert self._errands is not None, f"nobody here can {type(effect).__name__}"
                self._errands.run(effect)

    def _take_answers(self, labour: WorkerPool[Any]) -> None:
        self._others.extend(labour.completed())

    def _take_completed(self) -> None:
        completed = self._storage.completed()
        self._unwritten -= len(completed)
        self._others.extend(completed)

    def _left(self) -> bool:
        """Whether we said good-bye and nothing of it waits any more, or it waited too long."""
        if self._good_bye_ns is None:
            return False
        if self._clock.now_ns() >= self._good_bye_ns:
            return True
        return self._sockets.queued_bytes == 0 and self._unwritten == 0 and not self._others
