"""Runs a client core for programs that wait in threads.

Whoever waits for an answer drives: steps the core and waits on the sockets in its own thread until the answer is there,
and tells others theirs meanwhile. One background thread per connection drives for what nobody waits for: heartbeats,
listeners, writers that go on writing. Who drives when is the wheel's business; see docs/decisions/0148.

It decides what a turn is, and how it ends: by `stop`, when its owner is collected, or when the interpreter exits; after
a fork the child's copy does nothing and says so.

Invariants: the sockets are used by whoever drives alone, and closed by the background thread when nobody will drive
again; after it has ended, nobody is left waiting.
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
from chaplain.client.io.lifecycle import CLOSED, FORKED, JOIN_S, LINGER_MS, Receiver, defect, running
from chaplain.client.io.signal_deferral import OPEN, NoDeferral, SignalDeferral
from chaplain.client.io.stepper import Stepper, StepsClient
from chaplain.client.io.timeouts import NAP_S, Patience
from chaplain.client.io.waiter import Waiter
from chaplain.client.protocol.events import ClientInput
from chaplain.core import Stopping
from chaplain.errors import Closed
from chaplain.link.zmq.sockets import Sockets

_NAP_NS = int(NAP_S * 1e9)


class ThreadEngine:
    def __init__(self, core: StepsClient, sockets: Sockets) -> None:
        self._drive = Stepper(core, sockets)
        self._sockets = sockets
        self._wheel = IoLeader(sockets.wake)
        self.attended = self._wheel.attended
        """`with` it, a thread may wait without driving: the background thread sees to it that it is told."""
        self._shield = SignalDeferral()
        sockets.watch(self._shield.fileno(), partial(os.eventfd_read, self._shield.fileno()))
        self._receiver: Receiver | None = None
        self._error = Closed(CLOSED)
        """Why it has ended, for those who wait then."""
        self._looks_s = -inf
        """When the background thread will look even if nothing happens."""
        self._main = threading.main_thread().ident
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    def start(self, receiver: Receiver) -> None:
        """Outcomes are told by whoever drives."""
        self._receiver = receiver
        self._thread = threading.Thread(target=self._run, name="chaplain-client", daemon=True)
        self._thread.start()
        running.add(self)

    def submit(self, event: ClientInput) -> None:
        """Hand an input to the core, and go on. Any thread may call this."""
        if os.getpid() != self._pid:
            raise Closed(FORKED)
        self._wheel.put(event)

    def call(self, event: ClientInput, waiter: Waiter, timeout_s: float) -> bool:
        """Hand an input to the core, and wait for what comes of it; False if nothing did in time."""
        if os.getpid() != self._pid:
            raise Closed(FORKED)
        me = threading.get_ident()
        if self._wheel.driver == me:
            raise RuntimeError("a finalizer ran in the middle of a client's call: it cannot wait for that client")
        shield = self._shield if me == self._main else OPEN
        patience = Patience(timeout_s)
        new: ClientInput | None = event
        driving = False
        try:
            while not waiter.over:
                with shield:
                    driving = self._wheel.take(me, waiter, new)
                    if driving:
                        self._drive_for(waiter, patience, shield.held)
                new = None
                left_s = patience.left_s()
                if waiter.over or left_s <= 0:
                    break
                if not driving:
                    waiter.sleep(min(left_s, NAP_S))
        finally:
            if not driving:
                self._wheel.go(waiter)
        return waiter.over

    @property
    def shielded(self) -> SignalDeferral | NoDeferral:
        """`with` it, the main thread hands something over whole, or not at all: what a signal raises comes after it."""
        me = threading.get_ident()
        return self._shield if me == self._main and me != self._wheel.driver else OPEN

    def stop(self, wait: bool = True) -> None:
        """End the thread and its sockets; what is under way fails. Harmless if it has ended."""
        if os.getpid() != self._pid:
            return
        with suppress(Closed):
            self.submit(Stopping())
        me, thread = threading.get_ident(), self._thread
        if wait and thread is not None and me not in (thread.ident, self._wheel.driver):
            thread.join(JOIN_S)

    @property
    def running(self) -> bool:
        return not self._wheel.ended and os.getpid() == self._pid

    # Driving.

    def _drive_for(self, waiter: Waiter, patience: Patience, held: Sized) -> None:
        """Until the waiter has its outcome, time is up, or a signal wants to be handled."""
        try:
            # What came before goes first: a session that has ended must not be written to as if it had not.
            goes_on = self._turn([*self._sockets.wait(0), *self._wheel.taken_in()])
            while goes_on and not waiter.over and not held and patience.left_s() > 0:
                left_ns = self._drive.left_ns()
                arrived = self._sockets.wait(_NAP_NS if left_ns is None else min(left_ns, _NAP_NS))
                goes_on = self._turn([*arrived, *self._wheel.taken_in()])
            soon = goes_on and not self._wheel.dozes and self._next_look_s() < self._looks_s
        except BaseException as failure:
            self._fail(failure)
            if not isinstance(failure, Exception):  # thrown into this thread, and meant for its program
                raise
            return
        if goes_on:
            self._wheel.leave(soon=soon)
        else:
            self._wheel.end()

    def _turn(self, events: list[ClientInput]) -> bool:
        """Take everything in, then do and tell everything. False when it was the last."""
        outcomes = self._drive.take(events)
        if outcomes:
            assert self._receiver is not None
            self._receiver.deliver(outcomes)
        return Stopping not in map(type, events)

    def _next_look_s(self) -> float:
        """When to look although nothing happens."""
        left_s = self._sockets.idle_timeout_s(self._drive.left_ns())
        return inf if left_s is None else time.monotonic() + left_s

    def _fail(self, failure: BaseException) -> None:
        """A bug of ours: whoever waits must hear of it rather than hang."""
        self._error = defect(failure)
        self._wheel.end()

    # The background thread.

    def _run(self) -> None:
        watching = select.poll()
        watching.register(self._sockets.fileno(), select.POLLIN)
        try:
            while not self._wheel.ended:
                if self._wheel.take_over():
                    self._look()
                    self._watch(watching)
                else:
                    self._wheel.doze()
        finally:
            self._sockets.close(LINGER_MS)
            running.discard(self)
            if self._receiver is not None:
                self._receiver.fail_all(self._error)

    def _look(self) -> None:
        try:
            goes_on = self._turn([*self._sockets.wait(0), *self._wheel.taken_in()])
            self._looks_s = self._next_look_s()
        except BaseException as failure:
            self._fail(failure)
            return
        if goes_on:
            self._wheel.leave(soon=False)
        else:
            self._wheel.end()

    def _watch(self, watching: select.poll) -> None:
        """Until something happens, or is due. Whoever drives meanwhile takes what happens; then there is nothing."""
        left_s = self._looks_s - time.monotonic()
        watching.poll(None if left_s == inf else max(0.0, left_s) * 1000)
