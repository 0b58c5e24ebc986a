"""Runs a client core in one background thread per connection, for programs that wait in threads.

Takes inputs from any thread through a queue and a wake-up; gives outcomes back in batches, one per wake-up of the
thread. It decides how it ends: by `stop`, when its owner is collected, or when the interpreter exits; after a fork the
child's copy does nothing and says so.

Invariants: the sockets are made, used and closed by the thread alone; after it has ended, nobody is left waiting.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress

from chaplain.client.drive import Drive, StepsClient
from chaplain.client.ending import CLOSED, FORKED, JOIN_S, LINGER_MS, Receiver, defect, running
from chaplain.client.events import ClientInput
from chaplain.core import Stopping
from chaplain.errors import Closed
from chaplain.link.sockets import Sockets


class Engine:
    def __init__(self, core: StepsClient, sockets: Sockets) -> None:
        self._drive = Drive(core, sockets)
        self._sockets = sockets
        self._queue: deque[ClientInput] = deque()
        self._lock = threading.RLock()  # a listener may be collected, and cancel, wherever this thread allocates
        self._ended = False
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    def start(self, receiver: Receiver) -> None:
        """Outcomes are told in the engine's thread."""
        self._thread = threading.Thread(target=self._run, args=(receiver,), name="chaplain-client", daemon=True)
        self._thread.start()
        running.add(self)

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
            error = defect(failure)
        finally:
            with self._lock:
                self._ended = True
            self._sockets.close(LINGER_MS)
            running.discard(self)
            receiver.fail_all(error)

    def _turn(self, receiver: Receiver) -> bool:
        """One wake-up: take everything in, then do and tell everything. False when it was the last."""
        events: list[ClientInput] = [*self._sockets.wait(self._drive.left_ns()), *self._submitted()]
        outcomes = self._drive.take(events)
        if outcomes:
            receiver.deliver(outcomes)
        return not any(isinstance(event, Stopping) for event in events)

    def _submitted(self) -> list[ClientInput]:
        with self._lock:
            events = list(self._queue)
            self._queue.clear()
        return events
