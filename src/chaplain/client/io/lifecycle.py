"""How engines end, whichever thread they run in: what they owe to whoever waits, at exit and after a fork."""

from __future__ import annotations

import atexit
import os
from typing import Protocol

from chaplain.client.protocol.events import Outcome
from chaplain.errors import Closed

LINGER_MS = 200
"""How long closing waits for what was said last (a `Cancel`, say) to leave the machine."""
JOIN_S = 10.0
CLOSED = "this client is closed: connect again"
FORKED = "this client was connected before a fork and belongs to the parent process: connect again in this one"
LOOP_ENDED = "the loop that this client belongs to has ended: connect again"
OTHER_LOOP = "this client belongs to another event loop: use it there, or connect in this one"


class Receiver(Protocol):
    """Whom an engine tells what happened."""

    def deliver(self, outcomes: list[Outcome], /) -> None: ...
    def fail_all(self, error: BaseException, /) -> None: ...


class Stops(Protocol):
    def stop(self) -> None: ...


def defect(failure: BaseException) -> Closed:
    """What those are told who wait while an engine fails."""
    error = Closed(f"the client ended by a defect: {failure!r}; connect again")
    error.__cause__ = failure
    return error


running: set[Stops] = set()
"""Kept, so that none is collected with its sockets open: what ZeroMQ does then depends on the order of finalizers."""


def _stop_all() -> None:
    for engine in list(running):
        engine.stop()


def _forget_all() -> None:
    """In the child of a fork: the threads stayed behind, and their sockets are not ours to close."""
    running.clear()


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_forget_all)
