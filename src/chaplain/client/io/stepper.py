"""Step a client core over real sockets.

The caller provides the thread: the engine's own, or that of the program's event loop. The stepper knows the clock that
nodes compare with theirs. It decides nothing about the protocol and nothing about when it is called. Only one thread
may use it at a time.
"""

from __future__ import annotations

from typing import Protocol

from chaplain.client.protocol.events import (
    ClientEffect,
    ClientInput,
    ListeningBegan,
    Outcome,
    Raised,
    Returned,
    Yielded,
)
from chaplain.client.protocol.journal.events import ReadChunk, WritesAcknowledged
from chaplain.clock import Clock
from chaplain.core import Admit, Cast, Dial, Drained, Halt, HangUp, Persist, Refuse, Report, Send, Woken
from chaplain.link.zmq.sockets import Sockets


class StepsClient(Protocol):
    """The interface of the client core."""

    def step(self, now_ns: int, event: ClientInput, /) -> list[ClientEffect]: ...
    def deadline(self) -> int | None: ...


class Stepper:
    """Steps one core over its sockets."""

    def __init__(self, core: StepsClient, sockets: Sockets) -> None:
        self._core = core
        self._sockets = sockets
        self._clock = Clock()
        self._due_ns = core.deadline()

    def until_due_ns(self) -> int | None:
        """Nanoseconds until the core's next deadline; None if it has none. Call it before `step`."""
        self._due_ns = self._core.deadline()  # valid until the core is stepped again
        return None if self._due_ns is None else max(0, self._due_ns - self._clock.now_ns())

    def step(self, events: list[ClientInput]) -> list[Outcome]:
        """Step the core with the events since the last call, perform its effects and return the outcomes of calls."""
        now_ns = self._clock.now_ns()
        if self._due_ns is not None and self._due_ns <= now_ns:
            events = [*events, Woken()]
        if not events:
            return []
        outcomes: list[Outcome] = []
        for event in (*events, Drained()):
            effects = self._core.step(now_ns, event)
            if effects:
                self._perform(effects, outcomes)
        return outcomes

    def _perform(self, effects: list[ClientEffect], outcomes: list[Outcome]) -> None:
        for effect in effects:
            match effect:
                case Send() | Dial() | HangUp():
                    self._sockets.perform(effect)
                case Returned() | Raised() | ListeningBegan() | Yielded() | WritesAcknowledged() | ReadChunk():
                    outcomes.append(effect)
                case Report():
                    pass  # the error of the affected call tells the user
                case Admit() | Refuse() | Cast() | Persist() | Halt():
                    raise AssertionError(f"a client does not ask for {type(effect).__name__}")
