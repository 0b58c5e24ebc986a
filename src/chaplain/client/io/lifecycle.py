"""How both engines end: at interpreter exit, after a fork, and by a defect."""

from __future__ import annotations

import atexit
import os
from typing import Protocol

from chaplain.client.protocol.events import Outcome
from chaplain.errors import Closed

LINGER_MS = 200
"""How long closing waits for the last messages (a `Cancel`, for example) to leave the machine."""
JOIN_TIMEOUT_S = 10.0
"""How long `close` waits for the engine to end."""
CLOSED = "this client is closed: connect again"
FORKED = "this client was connected before a fork and belongs to the parent process: connect again in this one"
LOOP_ENDED = "the loop that this client belongs to has ended: connect again"
OTHER_LOOP = "this client belongs to another event loop: use it there, or connect in this one"


class Receiver(Protocol):
    """Receives the outcomes of calls from an engine."""

    def deliver(self, outcomes: list[Outcome], /) -> None: ...
    def fail_all(self, error: BaseException, /) -> None: ...


class Stoppable(Protocol):
    """An engine that `stop` ends."""

    def stop(self) -> None: ...


def defect_error(failure: BaseException) -> Closed:
    """The error for callers that wait while an engine fails because of a defect."""
    error = Closed(f"the client ended because of a defect: {failure!r}; connect again")
    error.__cause__ = failure
    return error


running_engines: set[Stoppable] = set()
"""Engines that have not ended. The references keep them from being garbage-collected with open sockets: what ZeroMQ
does then depends on the order of finalizers.
"""


def _stop_all() -> None:
    for engine in list(running_engines):
        engine.stop()


def _forget_all() -> None:
    """Forget the engines in the child of a fork: their threads stayed in the parent, which also owns the sockets."""
    running_engines.clear()


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_forget_all)
