"""Run a client core inside the event loop of an asyncio program, without a thread of its own.

A second thread would compete with the program's coroutines for the interpreter lock: while they are busy it waits up to
5 ms for each turn, and every answer costs two turns. In the loop, a turn is one callback among others. It processes all
inputs submitted since the last turn and all data that arrived. See docs/decisions/client-engines.md.

The engine decides when a turn is due: after a submission, when a socket is readable, and at the core's deadline. It
ends in the same way as the thread engine.

Invariants:
- one thread uses the sockets at a time: the loop's while the loop runs;
- after the engine has ended, no caller is left waiting;
- a turn polls the sockets at most `TURNS_MAX` times before the program's other callbacks run.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from contextlib import suppress

from chaplain.client.io.lifecycle import (
    CLOSED,
    FORKED,
    JOIN_TIMEOUT_S,
    LINGER_MS,
    LOOP_ENDED,
    Receiver,
    defect_error,
    running_engines,
)
from chaplain.client.io.stepper import Stepper, StepsClient
from chaplain.client.protocol.events import ClientInput
from chaplain.core import Stopping
from chaplain.errors import Closed
from chaplain.link.zmq.sockets import Sockets

TURNS_MAX = 4
"""Sockets that were written to are polled again; after this many polls the program's callbacks run."""


class LoopEngine:
    """Runs one client core in the running event loop."""

    def __init__(self, core: StepsClient, sockets: Sockets) -> None:
        """Call it inside the running loop."""
        self._stepper = Stepper(core, sockets)
        self._sockets = sockets
        self._receiver: Receiver | None = None
        self._loop = asyncio.get_running_loop()
        self._queue: deque[ClientInput] = deque()
        self._turn_scheduled = False
        """True if a turn is scheduled."""
        self._in_turn = False
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False
        self._closed = threading.Event()
        self.closed = self._loop.create_future()
        """A future that is done when the sockets are closed."""
        self._closer: threading.Thread | None = None
        self._pid = os.getpid()

    def start(self, receiver: Receiver) -> None:
        """Start polling. Outcomes are delivered to `receiver` in the loop."""
        self._receiver = receiver
        self._loop.add_reader(self._sockets.fileno(), self._turn)
        self._schedule_turn()
        running_engines.add(self)

    def submit(self, event: ClientInput) -> None:
        """Queue an input for the next turn. Any thread may call this: the finalizer of a listener does."""
        if os.getpid() != self._pid:
            raise Closed(FORKED)
        if self._ended:
            raise Closed(CLOSED)
        self._queue.append(event)
        if not self._turn_scheduled:
            self._schedule_turn()

    def flush_now(self) -> None:
        """Run a turn now, before the other callbacks that are ready. Call this only in the loop's own thread."""
        if not self._in_turn:
            self._turn()

    def stop(self, wait: bool = True) -> None:
        """Close the sockets; pending calls fail with `Closed`. Idempotent.

        Called from inside the loop, it cannot wait for the end.
        """
        if os.getpid() != self._pid:
            return
        if self._loop.is_running():
            with suppress(Closed):
                self.submit(Stopping())
        elif not self._ended:  # the loop does not run, so no scheduled turn would come
            self._queue.append(Stopping())
            self._turn()
        if wait and not self._is_inside():
            self._closed.wait(JOIN_TIMEOUT_S)

    @property
    def running(self) -> bool:
        return not self._ended and os.getpid() == self._pid

    def _is_inside(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _schedule_turn(self) -> None:
        self._turn_scheduled = True
        try:
            if self._is_inside():
                self._loop.call_soon(self._turn)
            else:
                self._loop.call_soon_threadsafe(self._turn)
        except RuntimeError:
            self._turn_scheduled = False  # the next call must fail with this error, too
            raise Closed(LOOP_ENDED) from None

    # Turns.

    def _turn(self) -> None:
        self._turn_scheduled = False  # before the queue is read: an input submitted from now on schedules its own turn
        if self._ended:
            return
        self._in_turn = True
        try:
            self._run_turn()
        except BaseException as failure:  # a defect in the client: waiting callers must get an error and not hang
            self._end(defect_error(failure))
            if not isinstance(failure, Exception):
                raise
        finally:
            self._in_turn = False

    def _run_turn(self) -> None:
        """Process inputs and arrived data until nothing is left or `TURNS_MAX` is reached."""
        assert self._receiver is not None
        for _ in range(TURNS_MAX):
            events: list[ClientInput] = [*self._sockets.wait(0), *self._submitted()]
            if (outcomes := self._stepper.step(events)) and not self._loop.is_closed():
                self._receiver.deliver(outcomes)
            if any(isinstance(event, Stopping) for event in events):
                self._end(Closed(CLOSED))
                return
            left_s = self._sockets.idle_timeout_s(self._stepper.until_due_ns())
            if left_s != 0 and not self._queue:
                self._set_timer(left_s)
                return
        self._schedule_turn()

    def _submitted(self) -> list[ClientInput]:
        events: list[ClientInput] = []
        while self._queue:
            events.append(self._queue.popleft())
        return events

    def _set_timer(self, left_s: float | None) -> None:
        """Set the timer of the next turn. A timer that is too early stays: its turn sets the next one."""
        if left_s is None:
            return
        at_s = self._loop.time() + left_s
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._turn()

    # The end.

    def _end(self, error: Closed) -> None:
        self._ended = True
        running_engines.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if (
            self._receiver is not None and not self._loop.is_closed()
        ):  # otherwise no coroutine is left that could receive the error
            self._loop.remove_reader(self._sockets.fileno())
            self._receiver.fail_all(error)
        if self._loop.is_running():  # the last messages may take a moment to leave: do not block the loop meanwhile
            self._closer = threading.Thread(target=self._close, name="chaplain-client", daemon=True)
            self._closer.start()
        else:
            self._close()

    def _close(self) -> None:
        self._sockets.close(LINGER_MS)
        self._closed.set()
        with suppress(RuntimeError):  # the loop may have ended
            self._loop.call_soon_threadsafe(self._report_closed)

    def _report_closed(self) -> None:
        if self._closer is not None:
            self._closer.join()  # this callback was the thread's last action
        if not self.closed.done():
            self.closed.set_result(None)
