"""Run a client core for programs that block in threads.

A thread that waits for an answer runs the I/O itself (leader/follower pattern): it steps the core and waits on the
sockets until its answer arrives, and meanwhile delivers the answers of other threads. One background thread per
connection runs the I/O when no caller waits: for heartbeats, listeners and writers. `IoLeader` decides which thread
leads. The reasons and measurements are in docs/decisions/client-engines.md.

The engine decides what one turn is and when it ends: by `stop`, when its owner is garbage-collected, or when the
interpreter exits. In the child of a fork every call raises `Closed`.

Invariants:
- only the leading thread uses the sockets; the background thread closes them once no thread can lead again;
- after the engine has ended, no caller is left waiting.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Sized
from contextlib import suppress
from functools import partial
from math import inf

from chaplain.client.io.io_leader import IoLeader
from chaplain.client.io.lifecycle import (
    CLOSED,
    FORKED,
    JOIN_TIMEOUT_S,
    LINGER_MS,
    Receiver,
    defect_error,
    running_engines,
)
from chaplain.client.io.signal_deferral import NO_DEFERRAL, NoDeferral, SignalDeferral
from chaplain.client.io.stepper import Stepper, StepsClient
from chaplain.client.io.timeouts import SLICE_S, RunningTimeout
from chaplain.client.io.waiter import Waiter
from chaplain.client.protocol.events import ClientInput
from chaplain.core import Stopping
from chaplain.errors import Closed
from chaplain.link.zmq.sockets import Sockets

_SLICE_NS = int(SLICE_S * 1e9)


class ThreadEngine:
    """Runs one client core for any number of threads."""

    def __init__(self, core: StepsClient, sockets: Sockets) -> None:
        self._stepper = Stepper(core, sockets)
        self._sockets = sockets
        self._io_leader = IoLeader(sockets.wake)
        self.passive_wait = self._io_leader.passive_wait
        """Context manager for a thread that waits without leading: the background thread leads for it without delay."""
        self._signals = SignalDeferral()
        sockets.watch(self._signals.fileno(), partial(os.eventfd_read, self._signals.fileno()))
        self._receiver: Receiver | None = None
        self._error = Closed(CLOSED)
        """The error for callers that are still waiting when the engine ends."""
        self._background_due_s = -inf
        """When the background thread runs its next turn if no socket becomes readable before."""
        self._main = threading.main_thread().ident
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    def start(self, receiver: Receiver) -> None:
        """Start the background thread. The leading thread delivers outcomes to `receiver`."""
        self._receiver = receiver
        self._thread = threading.Thread(target=self._run, name="chaplain-client", daemon=True)
        self._thread.start()
        running_engines.add(self)

    def submit(self, event: ClientInput) -> None:
        """Queue an input for the core without waiting. Any thread may call this."""
        if os.getpid() != self._pid:
            raise Closed(FORKED)
        self._io_leader.submit(event)

    def call(self, event: ClientInput, waiter: Waiter, timeout_s: float) -> bool:
        """Queue an input for the core and wait for its outcome. Returns False after `timeout_s` without one."""
        if os.getpid() != self._pid:
            raise Closed(FORKED)
        this_thread = threading.get_ident()
        if self._io_leader.thread == this_thread:
            raise RuntimeError("a finalizer ran inside a call of this client: it cannot wait for the same client")
        deferral = self._signals if this_thread == self._main else NO_DEFERRAL
        timeout = RunningTimeout(timeout_s)
        new: ClientInput | None = event
        leading = False
        try:
            while not waiter.finished:
                with deferral:
                    leading = self._io_leader.try_lead(this_thread, waiter, new)
                    if leading:
                        self._lead_until(waiter, timeout, deferral.pending)
                new = None
                left_s = timeout.left_s()
                if waiter.finished or left_s <= 0:
                    break
                if not leading:
                    waiter.wait(min(left_s, SLICE_S))
        finally:
            if not leading:
                self._io_leader.remove_waiter(waiter)
        return waiter.finished

    @property
    def signals_deferred(self) -> SignalDeferral | NoDeferral:
        """Context manager that makes a hand-over atomic for the main thread.

        An exception that a signal handler raises arrives after the `with` block, never inside it.
        """
        this_thread = threading.get_ident()
        return self._signals if this_thread == self._main and this_thread != self._io_leader.thread else NO_DEFERRAL

    def stop(self, wait: bool = True) -> None:
        """End the background thread and close the sockets; pending calls fail with `Closed`. Idempotent."""
        if os.getpid() != self._pid:
            return
        with suppress(Closed):
            self.submit(Stopping())
        this_thread, thread = threading.get_ident(), self._thread
        if wait and thread is not None and this_thread not in (thread.ident, self._io_leader.thread):
            thread.join(JOIN_TIMEOUT_S)

    @property
    def running(self) -> bool:
        return not self._io_leader.ended and os.getpid() == self._pid

    # Leading.

    def _lead_until(self, waiter: Waiter, timeout: RunningTimeout, pending: Sized) -> None:
        """Run turns until the waiter is finished, the time is up, or a signal is pending."""
        try:
            # Read the sockets before the queue: the core must learn that a session ended before it writes to it.
            goes_on = self._turn([*self._sockets.wait(0), *self._io_leader.take_queue()])
            while goes_on and not waiter.finished and not pending and timeout.left_s() > 0:
                until_due_ns = self._stepper.until_due_ns()
                arrived = self._sockets.wait(_SLICE_NS if until_due_ns is None else min(until_due_ns, _SLICE_NS))
                goes_on = self._turn([*arrived, *self._io_leader.take_queue()])
            wake_background = (
                goes_on and not self._io_leader.background_sleeps and self._next_due_s() < self._background_due_s
            )
        except BaseException as failure:
            self._fail(failure)
            if not isinstance(failure, Exception):  # e.g. KeyboardInterrupt: the program must see it, too
                raise
            return
        if goes_on:
            self._io_leader.release(wake_background=wake_background)
        else:
            self._io_leader.end()

    def _turn(self, events: list[ClientInput]) -> bool:
        """Step the core with these events and deliver the outcomes. Returns False after the last turn."""
        outcomes = self._stepper.step(events)
        if outcomes:
            assert self._receiver is not None
            self._receiver.deliver(outcomes)
        return Stopping not in map(type, events)

    def _next_due_s(self) -> float:
        """When the next turn is due if no socket becomes readable before."""
        left_s = self._sockets.idle_timeout_s(self._stepper.until_due_ns())
        return inf if left_s is None else time.monotonic() + left_s

    def _fail(self, failure: BaseException) -> None:
        """End the engine because of a defect in the client, so that waiting callers get an error and do not hang."""
        self._error = defect_error(failure)
        self._io_leader.end()

    # The background thread.

    def _run(self) -> None:
        """Body of the background thread."""
        poller = select.poll()
        poller.register(self._sockets.fileno(), select.POLLIN)
        try:
            while not self._io_leader.ended:
                if self._io_leader.try_lead_in_background():
                    self._background_turn()
                    self._wait_for_io(poller)
                else:
                    self._io_leader.sleep_in_background()
        finally:
            self._sockets.close(LINGER_MS)
            running_engines.discard(self)
            if self._receiver is not None:
                self._receiver.fail_all(self._error)

    def _background_turn(self) -> None:
        """Run one turn as leader, then give the lead up."""
        try:
            goes_on = self._turn([*self._sockets.wait(0), *self._io_leader.take_queue()])
            self._background_due_s = self._next_due_s()
        except BaseException as failure:
            self._fail(failure)
            return
        if goes_on:
            self._io_leader.release(wake_background=False)
        else:
            self._io_leader.end()

    def _wait_for_io(self, poller: select.poll) -> None:
        """Block until a socket is readable or the next turn is due. Spurious wake-ups are harmless.

        A caller that leads meanwhile may take the events that woke this thread.
        """
        left_s = self._background_due_s - time.monotonic()
        poller.poll(None if left_s == inf else max(0.0, left_s) * 1000)
