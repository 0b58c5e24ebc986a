"""Run a client core in a thread of its own, for programs that block.

The thread steps the core, uses the sockets and delivers outcomes. Callers only queue inputs and wait for futures, so an
exception that a signal handler raises in the main thread never interrupts the core. The library installs no signal
handlers. The measurements are in docs/decisions/client-engines.md.

The engine ends by `stop`, when its owner is garbage-collected, or when the interpreter exits. In the child of a fork
every call raises `Closed`.

Invariants:
- only the engine's thread uses the core and the sockets;
- after the engine has ended, no caller is left waiting.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from chaplain.client.io.lifecycle import (
    CLOSED,
    FORKED,
    JOIN_TIMEOUT_S,
    LINGER_MS,
    Receiver,
    defect_error,
    running_engines,
)
from chaplain.client.io.stepper import Stepper, StepsClient
from chaplain.client.protocol.events import ClientInput
from chaplain.core import Stopping
from chaplain.errors import Closed
from chaplain.link.zmq.sockets import Sockets


class ThreadEngine:
    """Runs one client core for any number of threads."""

    def __init__(self, core: StepsClient, sockets: Sockets) -> None:
        self._stepper = Stepper(core, sockets)
        self._sockets = sockets
        self._receiver: Receiver | None = None
        self._lock = threading.RLock()  # reentrant: the garbage collector may run a finalizer, which submits
        self._queue: list[ClientInput] = []
        self._acts: dict[Callable[[], None], None] = {}
        self._awake = True
        """False while the thread waits on the sockets, or is about to: then a submission must wake it."""
        self._stopping = False
        self._ended = False
        self._pid = os.getpid()
        self._thread_id = 0
        self._thread = threading.Thread(target=self._run, name="chaplain-client", daemon=True)

    def start(self, receiver: Receiver) -> None:
        """Start the thread. It delivers outcomes to `receiver`."""
        self._receiver = receiver
        running_engines.add(self)
        self._thread.start()

    def submit(self, event: ClientInput) -> None:
        """Queue an input for the core. Any thread may call this."""
        if os.getpid() != self._pid:
            raise Closed(FORKED)
        with self._lock:
            if self._ended:
                raise Closed(CLOSED)
            if not self._awake:
                self._sockets.wake()  # first: a signal handler may raise after it
            self._queue.append(event)

    def call_soon(self, act: Callable[[], None]) -> None:
        """Call a function in the engine's thread, once, however often it was passed until then.

        A function that was accepted is called even if the engine ends.
        """
        if os.getpid() != self._pid:
            raise Closed(FORKED)
        with self._lock:
            if self._ended:
                raise Closed(CLOSED)
            if act not in self._acts:
                if not self._awake:
                    self._sockets.wake()
                self._acts[act] = None

    def stop(self, wait: bool = True) -> None:
        """End the thread and close the sockets; pending calls fail with `Closed`. Idempotent."""
        if os.getpid() != self._pid:
            return
        with self._lock, suppress(Closed):
            self._stopping = True
            self.submit(Stopping())
        if wait and threading.current_thread() is not self._thread:
            self._thread.join(JOIN_TIMEOUT_S)

    @property
    def running(self) -> bool:
        return not self._ended and os.getpid() == self._pid

    def check_may_wait(self) -> None:
        """Raise `RuntimeError` in the engine's own thread, which would wait for itself: a finalizer may run there."""
        if threading.get_ident() == self._thread_id:
            raise RuntimeError("a finalizer ran inside a call of this client: it cannot wait for the same client")

    # The engine's thread.

    def _run(self) -> None:
        assert self._receiver is not None
        self._thread_id = threading.get_ident()
        error = Closed(CLOSED)
        try:
            while not self._ended:
                # Read the sockets before the queue: the core must learn that a session ended before it writes to it.
                arrived = self._sockets.wait(self._until_turn_ns())
                if outcomes := self._stepper.step([*arrived, *self._submitted()]):
                    self._receiver.deliver(outcomes)
        except BaseException as failure:  # a defect in the client: waiting callers must get an error and not hang
            error = defect_error(failure)
        with self._lock:
            self._ended = True
        self._sockets.close(LINGER_MS)
        running_engines.discard(self)
        self._receiver.fail_all(error)
        self._act()

    def _until_turn_ns(self) -> int | None:
        """How long to wait on the sockets for the next turn."""
        until_due_ns = self._stepper.until_due_ns()
        with self._lock:
            self._awake = False  # before the queue is looked at: a finalizer may submit in between
            return 0 if self._queue or self._acts else until_due_ns

    def _act(self) -> None:
        """Call the functions that `call_soon` was given."""
        with self._lock:
            acts, self._acts = self._acts, {}
        for act in acts:
            act()

    def _submitted(self) -> list[ClientInput]:
        """The inputs that callers have submitted until now."""
        self._awake = True
        if self._acts:
            self._act()
        with self._lock:
            events, self._queue = self._queue, []
            self._ended = self._stopping
        return events
