"""A core in the simplest possible coat, so that a host can run it: every peer is dialled, frames are passed on.

Decides nothing. What coming, going and frames mean to the core is said by each node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from chaplain.core import Admit, Arrived, Connected, Core, Disconnected, Knocked, Woken, soonest
from simulator.adapters.dialer import Ways


class Coat(ABC):
    wants_flushed = False

    def __init__(self, core: Core[Any, Any], ways: Ways) -> None:
        self._core = core
        self._ways = ways

    def deadline(self) -> int | None:
        return soonest((*self._ways.due(), *self._due(), self._core.deadline()))

    def step(self, now_ns: int, event: Any, /) -> list[Any]:
        effects: list[Any] = []
        match event:
            case Knocked():
                effects.append(Admit(event.request, "node"))
            case Connected():
                self._up(now_ns, self._ways.connected(event.dial), effects)
            case Disconnected():
                peer = self._ways.lost(now_ns, event, effects)
                if peer is not None:
                    self._down(now_ns, peer, event.reason, effects)
            case Arrived():
                self._arrived(now_ns, event, effects)
            case Woken():
                self._wake(now_ns, effects)
            case _:
                self._feed(now_ns, event, effects)
        return effects

    def _wake(self, now_ns: int, effects: list[Any]) -> None:
        self._ways.dial(now_ns, effects)
        for event in self._late(now_ns):
            self._feed(now_ns, event, effects)
        own = self._core.deadline()
        if own is not None and own <= now_ns:
            self._feed(now_ns, Woken(), effects)

    def _due(self) -> Iterable[int]:
        """When something comes that the node keeps for later."""
        return ()

    def _late(self, now_ns: int) -> Iterable[Any]:
        """What was kept for later, and has come."""
        return ()

    @abstractmethod
    def _up(self, now_ns: int, peer: int, effects: list[Any]) -> None: ...

    @abstractmethod
    def _down(self, now_ns: int, peer: int, reason: str, effects: list[Any]) -> None: ...

    @abstractmethod
    def _arrived(self, now_ns: int, event: Arrived, effects: list[Any]) -> None: ...

    @abstractmethod
    def _feed(self, now_ns: int, event: Any, effects: list[Any]) -> None:
        """Step the core, and do for it what a host does not."""
