"""Runs a client core inside the loop of a program that uses asyncio, without a thread of its own.

A second thread would share the interpreter with the program's coroutines: while those keep it busy, it waits up to
5 ms for each of its turns, and every answer costs two of them. In the loop a turn is one callback among the others:
what was submitted since the last one, and whatever came, is taken in at once. See docs/decisions/0145.

It decides when a turn is due: when something was submitted, when the sockets have something, and when the core wants to
be woken; and how it ends: as `engine` does.

Invariants: the sockets are used by one thread at a time, the loop's while it runs; after the end nobody is left
waiting; no turn keeps the program from its own for longer than `TURNS_MAX` rounds of the sockets.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from contextlib import suppress

from chaplain.client.io.lifecycle import CLOSED, FORKED, JOIN_S, LINGER_MS, LOOP_ENDED, Receiver, defect, running
from chaplain.client.io.stepper import Stepper, StepsClient
from chaplain.client.protocol.events import ClientInput
from chaplain.core import Stopping
from chaplain.errors import Closed
from chaplain.link.zmq.sockets import Sockets

TURNS_MAX = 4
"""Sockets that were written to are looked at once more; after so many looks the program has its turn."""


class LoopEngine:
    def __init__(self, core: StepsClient, sockets: Sockets) -> None:
        """To be made in the loop."""
        self._drive = Stepper(core, sockets)
        self._sockets = sockets
        self._receiver: Receiver | None = None
        self._loop = asyncio.get_running_loop()
        self._queue: deque[ClientInput] = deque()
        self._called = False
        """A turn is on its way."""
        self._turning = False
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False
        self._gone = threading.Event()
        self.gone = self._loop.create_future()
        """Done when the sockets are closed."""
        self._closer: threading.Thread | None = None
        self._pid = os.getpid()

    def start(self, receiver: Receiver) -> None:
        """Outcomes are told in the loop."""
        self._receiver = receiver
        self._loop.add_reader(self._sockets.fileno(), self._turn)
        self._call()
        running.add(self)

    def submit(self, event: ClientInput) -> None:
        """Hand an input to the core, with the next turn. Any thread may call this: collecting a listener does."""
        if os.getpid() != self._pid:
            raise Closed(FORKED)
        if self._ended:
            raise Closed(CLOSED)
        self._queue.append(event)
        if not self._called:
            self._call()

    def push(self) -> None:
        """Have a turn now rather than after whatever else is ready to run. Only for the loop's own thread."""
        if not self._turning:
            self._turn()

    def stop(self, wait: bool = True) -> None:
        """End the sockets; what is under way fails. Harmless if it has ended. In the loop it cannot wait."""
        if os.getpid() != self._pid:
            return
        if self._loop.is_running():
            with suppress(Closed):
                self.submit(Stopping())
        elif not self._ended:  # nobody else will have a turn
            self._queue.append(Stopping())
            self._turn()
        if wait and not self._is_inside():
            self._gone.wait(JOIN_S)

    @property
    def running(self) -> bool:
        return not self._ended and os.getpid() == self._pid

    def _is_inside(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _call(self) -> None:
        self._called = True
        try:
            if self._is_inside():
                self._loop.call_soon(self._turn)
            else:
                self._loop.call_soon_threadsafe(self._turn)
        except RuntimeError:
            self._called = False  # who comes next must hear of it, too
            raise Closed(LOOP_ENDED) from None

    # Turns.

    def _turn(self) -> None:
        self._called = False  # before the queue is looked at: what is submitted from now on has its own
        if self._ended:
            return
        self._turning = True
        try:
            self._look()
        except BaseException as failure:  # a bug of ours: whoever waits must hear of it rather than hang
            self._end(defect(failure))
            if not isinstance(failure, Exception):
                raise
        finally:
            self._turning = False

    def _look(self) -> None:
        """Take everything in, do and tell what follows from it, until nothing more is there."""
        assert self._receiver is not None
        for _ in range(TURNS_MAX):
            events: list[ClientInput] = [*self._sockets.wait(0), *self._submitted()]
            if (outcomes := self._drive.take(events)) and not self._loop.is_closed():
                self._receiver.deliver(outcomes)
            if any(isinstance(event, Stopping) for event in events):
                self._end(Closed(CLOSED))
                return
            left_s = self._sockets.idle_timeout_s(self._drive.left_ns())
            if left_s != 0 and not self._queue:
                self._set_timer(left_s)
                return
        self._call()

    def _submitted(self) -> list[ClientInput]:
        events: list[ClientInput] = []
        while self._queue:
            events.append(self._queue.popleft())
        return events

    def _set_timer(self, left_s: float | None) -> None:
        """A timer that rings too early is left alone: the turn that it brings sets it anew."""
        if left_s is None:
            return
        at_s = self._loop.time() + left_s
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._turn()

    # The end.

    def _end(self, error: Closed) -> None:
        self._ended = True
        running.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._receiver is not None and not self._loop.is_closed():  # else nobody is left to tell
            self._loop.remove_reader(self._sockets.fileno())
            self._receiver.fail_all(error)
        if self._loop.is_running():  # what was said last may take a moment to leave, for which nobody need wait
            self._closer = threading.Thread(target=self._close, name="chaplain-client", daemon=True)
            self._closer.start()
        else:
            self._close()

    def _close(self) -> None:
        self._sockets.close(LINGER_MS)
        self._gone.set()
        with suppress(RuntimeError):  # the loop may have ended meanwhile
            self._loop.call_soon_threadsafe(self._tell_gone)

    def _tell_gone(self) -> None:
        if self._closer is not None:
            self._closer.join()  # telling us was the last that it did
        if not self.gone.done():
            self.gone.set_result(None)
