"""Steps a client core over real sockets, for whoever has the thread: one of its own, or a program's loop.

Decides nothing about the protocol, and nothing about when it is called; knows the clock that nodes compare with theirs.
Belongs to one thread at a time.
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
    def step(self, now_ns: int, event: ClientInput, /) -> list[ClientEffect]: ...
    def deadline(self) -> int | None: ...


class Stepper:
    def __init__(self, core: StepsClient, sockets: Sockets) -> None:
        self._core = core
        self._sockets = sockets
        self._clock = Clock()
        self._due_ns = core.deadline()

    def left_ns(self) -> int | None:
        """How long until the core wants to be woken; None: until something happens. To be asked before `take`."""
        self._due_ns = self._core.deadline()  # holds until the core is stepped
        return None if self._due_ns is None else max(0, self._due_ns - self._clock.now_ns())

    def take(self, events: list[ClientInput]) -> list[Outcome]:
        """Everything that came since the last time: do what follows from it, and give what is to be told."""
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
                    pass  # what a user must know is in the error that follows from it
                case Admit() | Refuse() | Cast() | Persist() | Halt():
                    raise AssertionError(f"a client does not ask for {type(effect).__name__}")
