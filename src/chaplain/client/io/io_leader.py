"""Decide which thread runs the I/O of a client (leader/follower pattern).

A thread that waits for an answer becomes the leader if there is none, so it reads its own answer from the socket
without a thread switch. The background thread of the engine leads when no caller waits. While callers lead, the
background thread sleeps instead of polling the sockets: otherwise every packet would wake it for nothing. See
docs/decisions/client-engines.md.

This module decides which thread leads and which thread to wake. It knows neither the core nor the sockets nor what a
turn does. The callback `wake` makes the thread that waits on the sockets return, whether that thread leads or only
polls.

Invariants:
- at most one thread leads; the lead passes through one lock, which is also the memory barrier for the core's state;
- a thread that leads later processes every queued input, and such a thread exists: a leader that waits on the sockets
  is woken; a leader that releases the lead wakes a waiter whose call is not finished, or the background thread polls
  the sockets, or it was woken;
- the background thread runs a turn at the latest `BACKGROUND_SLEEP_S` after the last caller led.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock, RLock, get_ident

from chaplain.client.io.lifecycle import CLOSED
from chaplain.client.io.waiter import Waiter
from chaplain.client.protocol.events import ClientInput
from chaplain.errors import Closed

BACKGROUND_SLEEP_S = 0.01
"""How late the background thread may notice data that arrives while no caller waits."""
_NO_THREAD = 0


class _PassiveWait:
    """Context manager for a thread that waits without leading."""

    def __init__(self, io_leader: IoLeader) -> None:
        self._io_leader = io_leader

    def __enter__(self) -> None:
        self._io_leader.add_passive_waiter()

    def __exit__(self, *_: object) -> None:
        self._io_leader.remove_passive_waiter()


class IoLeader:
    """The lead of one client's I/O, its input queue, and the threads that wait."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = (
            RLock()
        )  # reentrant: garbage collection may run a listener's finalizer, which cancels, at any allocation
        self.thread = _NO_THREAD
        """The id of the thread that leads; 0 if none does."""
        self.ended = False
        self.background_sleeps = False
        """True while the background thread waits for a wake-up or a timeout and does not poll the sockets."""
        self._queue: list[ClientInput] = []
        self._wake_pending = False
        """True if `wake` was called and the queue was not taken since."""
        self._waiters: dict[Waiter, None] = {}
        self.passive_wait = _PassiveWait(self)
        self._passive_waiters = 0
        """Number of threads that wait without leading."""
        self._caller_leads = 0
        """How often a caller became the leader."""
        self._background_wakeup = Lock()  # held; released to wake the background thread
        self._background_wakeup.acquire()

    # For any thread.

    def submit(self, event: ClientInput) -> None:
        """Queue an input and make sure that a leader processes it at once."""
        with self._lock:
            if self.ended:
                raise Closed(CLOSED)
            self._queue.append(event)
            self._wake_for_queue()

    def add_passive_waiter(self) -> None:
        """Count a thread that waits without leading, and wake the background thread: it has to lead for it."""
        with self._lock:
            self._passive_waiters += 1
            if self.background_sleeps and self.thread == _NO_THREAD:
                self._wake_background()

    def remove_passive_waiter(self) -> None:
        with self._lock:
            self._passive_waiters -= 1

    # For callers.

    def try_lead(self, this_thread: int, waiter: Waiter, event: ClientInput | None) -> bool:
        """Queue the event, if there is one, and become the leader if there is none.

        A caller that gets False is woken through its waiter when it should try again.
        """
        with self._lock:
            if self.ended:
                if event is not None:
                    raise Closed(CLOSED)
                return False
            if event is not None:
                self._queue.append(event)
            if self.thread == _NO_THREAD:
                self.thread = this_thread
                self._caller_leads += 1
                if self._waiters:
                    self._waiters.pop(waiter, None)
                return True
            waiter.prepare_wakeup()
            self._waiters[waiter] = None
            if self._queue:
                self._wake_for_queue()
            return False

    def take_queue(self) -> list[ClientInput]:
        """Return and clear the queued inputs. Only for the leader."""
        with self._lock:
            self._wake_pending = False
            events, self._queue = self._queue, []
        return events

    def release(self, *, wake_background: bool) -> None:
        """Give up the lead. `wake_background`: the next turn is due earlier than the background thread expects."""
        with self._lock:
            self.thread = _NO_THREAD
            self._hand_over()
            if wake_background and not self._wake_pending:
                self._wake()  # before the flag is set: a signal handler may raise in between
                self._wake_pending = True

    def remove_waiter(self, waiter: Waiter) -> None:
        """Stop waiting. If this waiter was woken to lead, wake another thread instead."""
        with self._lock:
            if waiter in self._waiters:
                del self._waiters[waiter]
                if self.thread == _NO_THREAD:
                    self._hand_over()

    def end(self) -> None:
        """End the engine: no thread leads again. Only for the leader."""
        with self._lock:
            self.ended = True
            self.thread = _NO_THREAD
            self._wake_background()
            self._wake()

    # For the background thread.

    def try_lead_in_background(self) -> bool:
        """Become the leader if there is none; otherwise the background thread is to sleep.

        Returns False after `end`: the thread that ended the engine sent a wake-up, and another turn would consume it.
        """
        with self._lock:
            self.background_sleeps = self.thread != _NO_THREAD or self.ended
            if not self.background_sleeps:
                self.thread = get_ident()
            return not self.background_sleeps

    def sleep_in_background(self) -> None:
        """Sleep until woken, or until no caller led for `BACKGROUND_SLEEP_S`."""
        seen = -1
        while seen != self._caller_leads and not self.ended:
            seen = self._caller_leads
            if self._background_wakeup.acquire(timeout=BACKGROUND_SLEEP_S):
                return

    # Under the lock.

    def _wake_for_queue(self) -> None:
        """Wake the thread that will process the queue."""
        if self.background_sleeps and self.thread == _NO_THREAD:
            self._wake_background()
        elif not self._wake_pending:
            self._wake()
            self._wake_pending = True

    def _hand_over(self) -> None:
        """Find the next leader: a waiter whose call is not finished, else the background thread if it has work."""
        for waiter in self._waiters:
            if not waiter.finished:
                waiter.wake()
                return
        if self._queue:
            self._wake_for_queue()
        elif self.background_sleeps and self._passive_waiters:
            self._wake_background()

    def _wake_background(self) -> None:
        with suppress(RuntimeError):  # it was woken already
            self._background_wakeup.release()
