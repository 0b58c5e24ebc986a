"""Runs a client core over real sockets, in one background thread per connection.

Takes inputs from any thread through a queue and a wake-up; gives outcomes back in batches, one per wake-up of the
thread. Decides nothing about the protocol. It does decide how it ends: by `stop`, when its owner is collected, or when
the interpreter exits; after a fork the child's copy does nothing and says so.

Invariants: the sockets are made, used and closed by the thread alone; after it has ended, nobody is left waiting.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from chaplain.client.events import Began, ClientEffect, ClientInput, Outcome, Raised, Returned, Yielded
from chaplain.client.journal_events import Portion, Written
from chaplain.core import Admit, Cast, Dial, Drained, Halt, HangUp, Persist, Refuse, Report, Send, Stopping, Woken
from chaplain.errors import Closed
from chaplain.link.sockets import Sockets

LINGER_MS = 200
"""How long closing waits for what was said last (a `Cancel`, say) to leave the machine."""
JOIN_S = 10.0
CLOSED = "this client is closed: connect again"
FORKED = "this client was connected before a fork and belongs to the parent process: connect again in this one"


class StepsClient(Protocol):
    def step(self, now_ns: int, event: ClientInput, /) -> list[ClientEffect]: ...
    def deadline(self) -> int | None: ...


class Receiver(Protocol):
    """Whom the engine tells what happened. Called from the engine's thread."""

    def deliver(self, outcomes: list[Outcome], /) -> None: ...
    def fail_all(self, error: BaseException, /) -> None: ...


class Engine:
    def __init__(self, core: StepsClient, sockets: Sockets) -> None:
        self._core = core
        self._sockets = sockets
        self._queue: deque[ClientInput] = deque()
        self._lock = threading.RLock()  # a listener may be collected, and cancel, wherever this thread allocates
        self._ended = False
        self._pid = os.getpid()
        self._epoch_ns = time.time_ns() - _elapsed_ns()
        self._thread: threading.Thread | None = None

    def start(self, receiver: Receiver) -> None:
        self._thread = threading.Thread(target=self._run, args=(receiver,), name="chaplain-client", daemon=True)
        self._thread.start()
        _running.add(self)

    def submit(self, event: ClientInput) -> None:
        """Hand an input to the core. Any thread may call this."""
        if os.getpid() != self._pid:
            raise Closed(FORKED)
        with self._lock:
            if self._ended:
                raise Closed(CLOSED)
            first = not self._queue
            self._queue.append(event)
            if first:  # whoever finds it not empty knows that a wake-up is on its way
                self._sockets.wake()

    def stop(self, wait: bool = True) -> None:
        """End the thread and its sockets; what is under way fails. Harmless if it has ended."""
        if os.getpid() != self._pid:
            return
        with suppress(Closed):
            self.submit(Stopping())
        thread = self._thread
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_S)

    @property
    def running(self) -> bool:
        return not self._ended and os.getpid() == self._pid

    def _run(self, receiver: Receiver) -> None:
        error: BaseException = Closed(CLOSED)
        try:
            while self._turn(receiver):
                pass
        except BaseException as failure:  # a bug of ours: whoever waits must hear of it rather than hang
            error = Closed(f"the client's thread ended by a defect: {failure!r}; connect again")
            error.__cause__ = failure
        finally:
            with self._lock:
                self._ended = True
            self._sockets.close(LINGER_MS)
            _running.discard(self)
            receiver.fail_all(error)

    def _turn(self, receiver: Receiver) -> bool:
        """One wake-up: take everything in, then do and tell everything. False when it was the last."""
        due_ns = self._core.deadline()  # holds until the core is stepped
        events: list[ClientInput] = [*self._sockets.wait(self._timeout_ns(due_ns)), *self._submitted()]
        now_ns = self._now_ns()
        if due_ns is not None and due_ns <= now_ns:
            events.append(Woken())
        outcomes: list[Outcome] = []
        for event in (*events, Drained()):
            self._perform(self._core.step(now_ns, event), outcomes)
        if outcomes:
            receiver.deliver(outcomes)
        return not any(isinstance(event, Stopping) for event in events)

    def _now_ns(self) -> int:
        """Unix time that never goes back: nodes compare it with theirs, and timers must not see a clock being set."""
        return self._epoch_ns + _elapsed_ns()

    def _timeout_ns(self, due_ns: int | None) -> int | None:
        return None if due_ns is None else max(0, due_ns - self._now_ns())

    def _submitted(self) -> list[ClientInput]:
        with self._lock:
            events = list(self._queue)
            self._queue.clear()
        return events

    def _perform(self, effects: list[ClientEffect], outcomes: list[Outcome]) -> None:
        for effect in effects:
            match effect:
                case Send() | Dial() | HangUp():
                    self._sockets.perform(effect)
                case Returned() | Raised() | Began() | Yielded() | Written() | Portion():
                    outcomes.append(effect)
                case Report():
                    pass  # what a user must know is in the error that follows from it
                case Admit() | Refuse() | Cast() | Persist() | Halt():
                    raise AssertionError(f"a client does not ask for {type(effect).__name__}")


def _elapsed_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)  # goes on while the machine sleeps, as the nodes' clocks do


_running: WeakSet[Engine] = WeakSet()


def _stop_all() -> None:
    for engine in list(_running):
        engine.stop()


def _forget_all() -> None:
    """In the child of a fork: the threads stayed behind, and their sockets are not ours to close."""
    _running.clear()


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_forget_all)
