"""Runs a node's core: one thread waits for inputs, steps the core with them and performs its effects.

Each iteration steps the core with all inputs that wait; with `Woken` if the core's deadline has passed; with `Serve`
for as many client requests as `request_scheduler` allows; and finally with `Drained`. Then the loop performs all
effects in order. It groups the writes of an iteration so that one sync covers them all. Small writes usually
complete within the iteration; the loop then steps the core with `Persisted` at once, because another wake-up would
cost more than the sync.

The loop knows no protocol.

Invariants: time never goes back; the loop performs each effect once, in order; an exception in the core, or a `Halt`
effect, ends the process, so that a node never runs on in a broken state.
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
from chaplain.runtime.request_scheduler import RequestScheduler
from chaplain.runtime.udp_beacon import BeaconSocket
from chaplain.runtime.worker_pool import TaskGroup, WorkerPool
from chaplain.units import SECOND_NS

DRAIN_NS = 2_000_000_000
"""After a request to stop, the loop runs on for at most this long to send queued frames and finish queued writes."""
LINGER_MS = 2000
"""After that, ZeroMQ has this long to send the frames in its own buffers; closing returns earlier if they are empty."""
IDLE_NS = SECOND_NS
"""The longest wait of an iteration, also without a deadline; so a health check always gets an answer in time."""
QUESTIONS_MAX = 64
"""Calls of `ask` that may wait; another one raises TimeoutError."""
CLOCK_SET_NS = SECOND_NS
"""If the system's clock differs from the node's by this much, it was set, and the node logs an error."""

T = TypeVar("T")


class HostedCore(Protocol):
    """The interface of a core that the event loop uses."""

    @property
    def counts(self) -> Counter[str]: ...

    def step(self, now_ns: int, event: Any, /) -> list[Any]:
        """Take a `HostInput` or the result of a background task; return `HostEffect`s and new background tasks."""
        ...

    def deadline(self) -> int | None: ...


class BackgroundTasks:
    """Performs, in worker threads, the effects that the event loop does not know itself.

    The type of an effect selects its handler. The handler's result becomes an input of the core. The loop calls `poll`
    about once a second for further inputs, such as the free space on the disk.
    """

    def __init__(
        self,
        handlers: Mapping[type, Callable[[Any], Any]] | None = None,
        poll: Callable[[], list[Any]] = list,
        *,
        groups: Sequence[TaskGroup] = (),
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """`handlers` share one thread pool; each of `groups` has its own. `on_close` runs after all pools have
        ended.
        """
        self.poll = poll
        self.pools: list[WorkerPool[Any]] = []
        self._tasks: dict[type, tuple[WorkerPool[Any], Callable[[Any], Any]]] = {}
        for group in (TaskGroup(handlers or {}), *groups):
            pool: WorkerPool[Any] = WorkerPool(group.threads)
            self.pools.append(pool)
            self._tasks.update({kind: (pool, handler) for kind, handler in group.handlers.items()})
        self._on_close = on_close
        self._cancel = [group.cancel for group in groups]

    def run(self, effect: object) -> None:
        pool, handler = self._tasks[type(effect)]
        pool.submit(partial(handler, effect))

    def close(self) -> None:
        for cancel in self._cancel:
            cancel()
        for pool in self.pools:
            pool.close()
        if self._on_close is not None:
            self._on_close()


class EventLoop:
    """Runs one core. One thread calls `run`; any thread may call `stop` and `ask`."""

    def __init__(
        self,
        core: HostedCore,
        sockets: Sockets,
        storage: DiskWriter,
        log: JsonLog,
        *,
        beacon: BeaconSocket | None = None,
        clock: Clock | None = None,
        background_tasks: BackgroundTasks | None = None,
        scheduler: RequestScheduler | None = None,
    ) -> None:
        """`scheduler` is for a core that queues client requests (`request_scheduler.ClientRequests`)."""
        self.core = core
        self._scheduler = scheduler
        self._clock = clock or Clock()
        self._sockets, self._storage, self._log, self._beacon = sockets, storage, log, beacon
        self._counts: Counter[str] = Counter()
        self._background_tasks = background_tasks
        self._next_poll_ns = 0
        self._pending_inputs: list[Any] = []
        self._questions: deque[Callable[[], None]] = deque()
        self._stop = threading.Event()
        self._drain_deadline_ns: int | None = None
        self._unwritten = 0
        self._descriptor_waits = 0
        self._clock_was_set = False
        self._halt_reason = ""
        self._removal_reason = ""
        self.restart_requested = False
        """Whether the core halted in order to be restarted at once from what is on disk."""
        sockets.watch(storage.fd, self._take_completed)
        if beacon is not None:
            sockets.watch(beacon.fd, lambda: self._pending_inputs.extend(beacon.receive()))
        if background_tasks is not None:
            for pool in background_tasks.pools:
                sockets.watch(pool.fd, partial(self._take_results, pool))

    # Called by other threads.

    def stop(self) -> None:
        self._stop.set()
        self._sockets.wake()

    def ask(self, question: Callable[[], T], timeout_s: float = 2.0) -> T:
        """Run `question` in the loop's thread between two iterations and return its result.

        Raises TimeoutError if the loop does not get to it within `timeout_s`.
        """
        answer: Future[T] = Future()

        def answer_question() -> None:
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)

        if len(self._questions) >= QUESTIONS_MAX:
            raise TimeoutError("too many questions wait")
        self._questions.append(answer_question)
        self._sockets.wake()
        return answer.result(timeout_s)

    def measures(self) -> tuple[dict[str, int], Mapping[str, float]]:
        """Return counters and gauges. Call it through `ask`."""
        counters = dict(self.core.counts)
        pools = [] if self._background_tasks is None else [pool.counts for pool in self._background_tasks.pools]
        for part in (self._counts, self._sockets.counts, self._storage.counts, *self._beacon_counts(), *pools):
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
        """The lead of the system's clock over the node's clock after the clock was set."""
        return self._clock.error_ns / 1e9

    def _beacon_counts(self) -> list[Counter[str]]:
        return [] if self._beacon is None else [self._beacon.counts]

    # The loop.

    def stop_on_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())

    def run(self) -> int:
        try:
            while not self._halt_reason and not self._has_drained():
                self._run_once()
        except Exception:
            self._log.write("broken", {"traceback": traceback.format_exc()}, level="error")
            return BROKEN
        if self._drain_deadline_ns is not None and not self._halt_reason:
            self._report_unsent()
        if self._halt_reason:
            level = "info" if self.restart_requested else "error"
            self._log.write(
                "starting again" if self.restart_requested else "halted", {"reason": self._halt_reason}, level=level
            )
            return HALTED
        if self._removal_reason:
            self._log.write("halted", {"reason": self._removal_reason}, level="error")
            return REMOVED
        self._log.write("stopped")
        return DONE

    def _report_unsent(self) -> None:
        """Log what could not be sent or written in time. Peers see that the connection ended, and retry."""
        queued_bytes = self._sockets.queued_bytes
        if queued_bytes or self._unwritten:
            detail = {"queued_bytes": queued_bytes, "unwritten": self._unwritten, "seconds": DRAIN_NS // SECOND_NS}
            self._log.write("stopped before everything was sent", detail, level="error")

    def close(self) -> None:
        self._sockets.close(LINGER_MS)
        if self._beacon is not None:
            self._beacon.close()
        self._storage.close()
        if self._background_tasks is not None:
            self._background_tasks.close()

    def _run_once(self) -> None:
        deadline_ns = self.core.deadline()  # it cannot change before the next step of the core
        inputs: list[Any] = [*self._sockets.wait(self._timeout_ns(deadline_ns))]
        pending, self._pending_inputs = self._pending_inputs, []
        inputs += pending
        now_ns = self._clock.now_ns()
        if now_ns >= self._next_poll_ns:
            self._next_poll_ns = now_ns + IDLE_NS
            self._log_clock_change()
            if self._background_tasks is not None:
                inputs += self._background_tasks.poll()
                self._log_descriptor_waits(self._background_tasks)
        if self._stop.is_set() and self._drain_deadline_ns is None:
            self._drain_deadline_ns = now_ns + DRAIN_NS
            inputs.append(Stopping())
        if deadline_ns is not None and deadline_ns <= now_ns:
            inputs.append(Woken())
        if inputs or self._client_wait_ns() == 0:
            self._counts["host_wakeups"] += 1
            written = self._step(inputs, now_ns)
            if written and not self._halt_reason:
                # What completes in this second step waits for the next iteration, which then does not block.
                self._pending_inputs += self._step(written, self._clock.now_ns())
        for _ in range(len(self._questions)):
            self._questions.popleft()()

    def _client_wait_ns(self) -> int | None:
        """Return the time until a client request may be served; None if no request is queued."""
        return None if self._scheduler is None else self._scheduler.wait_ns()

    def _log_clock_change(self) -> None:
        error_ns = self._clock.error_ns
        if self._clock_was_set:
            if abs(error_ns) <= SLACK_NS:
                self._clock_was_set = False
                self._log.write("clock followed")
        elif abs(error_ns) >= CLOCK_SET_NS:
            self._clock_was_set = True
            detail = {
                "ahead_seconds": error_ns // SECOND_NS,
                "followed_in_seconds": FIFTH * abs(error_ns) // SECOND_NS,
                "reason": "this machine's clock was set: the node adjusts slowly; restart the node to adjust at once",
            }
            self._log.write("clock was set", detail, level="error")

    def _log_descriptor_waits(self, background_tasks: BackgroundTasks) -> None:
        waits = sum(pool.counts["worker_waits_for_descriptors"] for pool in background_tasks.pools)
        if waits > self._descriptor_waits:
            detail = {"reason": "this process cannot open more files: reads of the log wait", "waits": waits}
            self._log.write("no descriptors left", detail, level="error")
        self._descriptor_waits = waits

    def _timeout_ns(self, deadline_ns: int | None) -> int:
        now_ns = self._clock.now_ns()
        wait_ns = IDLE_NS if deadline_ns is None else max(0, min(deadline_ns - now_ns, IDLE_NS))
        if self._questions or self._pending_inputs:
            return 0
        if (client_ns := self._client_wait_ns()) is not None:
            wait_ns = min(wait_ns, client_ns)
        return wait_ns if self._drain_deadline_ns is None else min(wait_ns, 20_000_000)

    def _step(self, inputs: list[Any], now_ns: int) -> list[Any]:
        """Step the core and perform its effects. Return the completions of writes that are on disk already."""
        step = self.core.step
        effects: list[Any] = []
        for event in inputs:
            effects += step(now_ns, event)
        if self._scheduler is not None:
            self._scheduler.serve(lambda light: effects.extend(step(now_ns, Serve(light))))
        effects += step(now_ns, Drained())
        persists = [effect for effect in effects if isinstance(effect, Persist)]
        send = self._sockets.send
        for effect in effects:
            if type(effect) is Send:
                send(effect.channel, effect.frame)
            else:
                self._perform(effect)
        written: list[Any] = self._storage.write_now(persists) if persists else []
        if persists and not written:
            self._unwritten += len(persists)
            self._storage.submit(persists)
        self._counts["host_inputs"] += len(inputs)
        busy_ns = self._clock.now_ns() - now_ns
        if self._scheduler is not None:
            self._scheduler.record_busy(busy_ns)
        self._counts["host_busy_microseconds"] += busy_ns // 1000
        return written

    def _perform(self, effect: Any) -> None:
        match effect:
            case Dial() | HangUp() | Admit() | Refuse():
                self._sockets.perform(effect)
            case Persist():
                pass  # `_step` hands all writes of an iteration to the disk together
            case Cast():
                if self._beacon is not None:
                    self._beacon.broadcast(effect.datagram)
            case Report():
                self._log.write(effect.event, effect.detail, peer=effect.peer)
            case Halt() if effect.removed:
                self._removal_reason = effect.reason
                self.stop()  # unlike other halts this one sends what is queued, as a normal stop does
            case Halt():
                self._halt_reason = self._halt_reason or effect.reason
                self.restart_requested = effect.again
            case _:
                assert self._background_tasks is not None, f"no handler for {type(effect).__name__}"
                self._background_tasks.run(effect)

    def _take_results(self, pool: WorkerPool[Any]) -> None:
        self._pending_inputs.extend(pool.completed())

    def _take_completed(self) -> None:
        completed = self._storage.completed()
        self._unwritten -= len(completed)
        self._pending_inputs.extend(completed)

    def _has_drained(self) -> bool:
        """Whether a requested stop is complete: everything queued is sent and written, or `DRAIN_NS` is over."""
        if self._drain_deadline_ns is None:
            return False
        if self._clock.now_ns() >= self._drain_deadline_ns:
            return True
        return self._sockets.queued_bytes == 0 and self._unwritten == 0 and not self._pending_inputs
