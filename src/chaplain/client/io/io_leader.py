"""Who drives: of all threads that use a client, the one that steps its core and uses its sockets.

Whoever waits for an answer drives, if nobody does; so the answer is taken in by the thread that wants it. The engine's
own thread looks after what nobody waits for: it watches the sockets without holding the wheel, and dozes while others
drive, because everything that comes would wake it for nothing. See docs/decisions/0148.

Decides whose turn it is and who is to be woken; refuses to know the core, the sockets and what a turn does. `wake`
makes whoever waits on the sockets, driving or watching, return.

Invariants:
- at most one thread drives; giving the wheel away and taking it pass through one lock, a fence for everything else;
- what was put in is taken by somebody who drives after it, and somebody does: a driver who waits is woken; a driver who
  leaves rings a waiter whose call is not over, or the engine's thread is watching, or was kicked;
- the engine's thread looks at the latest `DOZE_S` after the last caller drove.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock, RLock, get_ident

from chaplain.client.io.lifecycle import CLOSED
from chaplain.client.io.waiter import Waiter
from chaplain.client.protocol.events import ClientInput
from chaplain.errors import Closed

DOZE_S = 0.01
"""How late the engine's thread may be for what comes while nobody waits for anything."""
_NOBODY = 0


class _Attended:
    """`with` it, somebody waits without driving."""

    def __init__(self, wheel: IoLeader) -> None:
        self._wheel = wheel

    def __enter__(self) -> None:
        self._wheel.attend()

    def __exit__(self, *_: object) -> None:
        self._wheel.attend_no_more()


class IoLeader:
    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = RLock()  # a listener may be collected, and cancel, wherever this thread allocates
        self.driver = _NOBODY
        """The thread that drives."""
        self.ended = False
        self.dozes = False
        """The engine's thread waits for a kick, or for some time, and does not watch the sockets."""
        self._queue: list[ClientInput] = []
        self._roused = False
        """`wake` was called, and the queue not taken since."""
        self._waiters: dict[Waiter, None] = {}
        self.attended = _Attended(self)
        self._attending = 0
        """Threads that wait without driving."""
        self._drives = 0
        """How often a caller took the wheel."""
        self._kick = Lock()  # held until there is one
        self._kick.acquire()

    # For any thread.

    def put(self, event: ClientInput) -> None:
        """Have whoever drives take this in, at once."""
        with self._lock:
            if self.ended:
                raise Closed(CLOSED)
            self._queue.append(event)
            self._rouse()

    def attend(self) -> None:
        """From now on somebody waits without driving, and what comes must not wait for the end of a doze."""
        with self._lock:
            self._attending += 1
            if self.dozes and self.driver == _NOBODY:
                self._kick_engine()

    def attend_no_more(self) -> None:
        with self._lock:
            self._attending -= 1

    # For callers.

    def take(self, me: int, waiter: Waiter, event: ClientInput | None) -> bool:
        """Put the event in, if there is one, and drive, if nobody does. Who gets False is rung when to try again."""
        with self._lock:
            if self.ended:
                if event is not None:
                    raise Closed(CLOSED)
                return False
            if event is not None:
                self._queue.append(event)
            if self.driver == _NOBODY:
                self.driver = me
                self._drives += 1
                if self._waiters:
                    self._waiters.pop(waiter, None)
                return True
            waiter.arm()
            self._waiters[waiter] = None
            if self._queue:
                self._rouse()
            return False

    def taken_in(self) -> list[ClientInput]:
        """What was put in. Only for who drives."""
        with self._lock:
            self._roused = False
            events, self._queue = self._queue, []
        return events

    def leave(self, *, soon: bool) -> None:
        """Drive no more. `soon`: something is due before the engine's thread means to look."""
        with self._lock:
            self.driver = _NOBODY
            self._pass_on()
            if soon and not self._roused:
                self._wake()  # before it is noted: what a signal raises may come between
                self._roused = True

    def go(self, waiter: Waiter) -> None:
        """Wait no more. It may have been us who were rung to drive; then somebody else must."""
        with self._lock:
            if waiter in self._waiters:
                del self._waiters[waiter]
                if self.driver == _NOBODY:
                    self._pass_on()

    def end(self) -> None:
        """Nobody drives any more: the engine's thread ends everything. To be called by who drives."""
        with self._lock:
            self.ended = True
            self.driver = _NOBODY
            self._kick_engine()
            self._wake()

    # For the engine's thread.

    def take_over(self) -> bool:
        """Drive, if nobody does; else doze. Not after the end: who ended it woke us, and a turn would eat that."""
        with self._lock:
            self.dozes = self.driver != _NOBODY or self.ended
            if not self.dozes:
                self.driver = get_ident()
            return not self.dozes

    def doze(self) -> None:
        """Until there is a kick, or no caller drove for a while."""
        seen = -1
        while seen != self._drives and not self.ended:
            seen = self._drives
            if self._kick.acquire(timeout=DOZE_S):
                return

    # Under the lock.

    def _rouse(self) -> None:
        if self.dozes and self.driver == _NOBODY:
            self._kick_engine()
        elif not self._roused:
            self._wake()
            self._roused = True

    def _pass_on(self) -> None:
        """Nobody drives: a waiter shall; failing that, the engine's thread if there is reason to."""
        for waiter in self._waiters:
            if not waiter.over:
                waiter.ring()
                return
        if self._queue:
            self._rouse()
        elif self.dozes and self._attending:
            self._kick_engine()

    def _kick_engine(self) -> None:
        with suppress(RuntimeError):  # it was kicked already
            self._kick.release()
