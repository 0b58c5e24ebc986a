"""Minimal adapter that lets the simulator run a single protocol core: it dials every peer and passes frames on.

Decides nothing. Each subclass defines what connections and frames mean to its core.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from chaplain.core import Admit, Arrived, Connected, Core, Disconnected, Knocked, Woken, soonest
from simulator.adapters.dialer import Dialer


class CoreAdapter(ABC):
    wants_flushed = False

    def __init__(self, core: Core[Any, Any], dialer: Dialer) -> None:
        self._core = core
        self._dialer = dialer

    def deadline(self) -> int | None:
        return soonest((*self._dialer.due(), *self._due(), self._core.deadline()))

    def step(self, now_ns: int, event: Any, /) -> list[Any]:
        effects: list[Any] = []
        match event:
            case Knocked():
                effects.append(Admit(event.request, "node"))
            case Connected():
                self._up(now_ns, self._dialer.connected(event.dial), effects)
            case Disconnected():
                peer = self._dialer.lost(now_ns, event, effects)
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
        self._dialer.dial(now_ns, effects)
        for event in self._late(now_ns):
            self._feed(now_ns, event, effects)
        own = self._core.deadline()
        if own is not None and own <= now_ns:
            self._feed(now_ns, Woken(), effects)

    def _due(self) -> Iterable[int]:
        """When the delayed inputs are due."""
        return ()

    def _late(self, now_ns: int) -> Iterable[Any]:
        """The delayed inputs that are due now."""
        return ()

    @abstractmethod
    def _up(self, now_ns: int, peer: int, effects: list[Any]) -> None: ...

    @abstractmethod
    def _down(self, now_ns: int, peer: int, reason: str, effects: list[Any]) -> None: ...

    @abstractmethod
    def _arrived(self, now_ns: int, event: Arrived, effects: list[Any]) -> None: ...

    @abstractmethod
    def _feed(self, now_ns: int, event: Any, effects: list[Any]) -> None:
        """Step the core, and carry out the effects that a host does not know."""
