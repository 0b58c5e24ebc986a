"""Base classes of the checkers, which watch a run from outside.

A checker sees every step of every node: the input and the resulting effects. It does not trust a node's own state; it
compares what one node was given with what another got. A checker that finds an error raises `Violation`; the runner
adds the seed and the command for a replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

from chaplain.core import (
    Admit,
    Arrived,
    Connected,
    Dial,
    Disconnected,
    HangUp,
    Knocked,
    Persist,
    Refuse,
    Send,
)
from simulator.world.machine import Host


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, checker: str, reason: str) -> None:
        super().__init__(f"{checker}: {reason}")
        self.checker = checker
        self.reason = reason


class Checker(Protocol):
    name: str

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        """See one step of one node, before its effects are performed."""
        ...

    def process_started(self, time_ns: int, host: Host, /) -> None:
        """See a process start; `host.core` is the new one."""
        ...

    def process_ended(self, time_ns: int, host: Host, reason: str, /) -> None:
        """See a process end; `host.core` is still the old one."""
        ...

    def is_satisfied(self, healed: Sequence[Host], /) -> bool:
        """True if the healed nodes already do everything that `finish` demands, and have done it since the heal."""
        ...

    def finish(self, healed: Sequence[Host], /) -> None:
        """Judge the whole run. The nodes in `healed` must have made progress; empty in safety mode."""
        ...


class Watcher:
    """A checker that checks nothing; a base class."""

    name = "watcher"

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        """See nothing."""

    def process_started(self, time_ns: int, host: Host, /) -> None:
        """See nothing."""

    def process_ended(self, time_ns: int, host: Host, reason: str, /) -> None:
        """See nothing."""

    def is_satisfied(self, healed: Sequence[Host], /) -> bool:
        """Return False: the run goes on to its end."""
        return False

    def finish(self, healed: Sequence[Host], /) -> None:
        """Demand nothing."""

    def complain(self, reason: str) -> NoReturn:
        raise Violation(self.name, reason)


class HostContract(Watcher):
    """Checks that a node asks its host only for what `chaplain.core` allows. Every workload has this checker."""

    name = "host contract"

    def __init__(self) -> None:
        self._books: dict[str, _Book] = {}

    def process_started(self, time_ns: int, host: Host, /) -> None:
        self._books[host.name] = _Book()

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        book = self._books[host.name]
        book.note(event)
        for effect in effects:
            complaint = book.judge(effect)
            if complaint:
                self.complain(f"{host.name}.{host.process} {complaint}")

    def is_satisfied(self, healed: Sequence[Host], /) -> bool:
        return True


class _Book:
    """The inputs and requests of one process so far."""

    __slots__ = ("_dialled", "_knocks", "_open", "_ticket")

    def __init__(self) -> None:
        self._dialled: set[int] = set()
        self._open: set[object] = set()
        self._knocks: set[bytes] = set()
        self._ticket = -1

    def note(self, event: object) -> None:
        match event:
            case Arrived():
                self._open.add(event.channel)
            case Knocked():
                self._knocks.add(event.request)
            case Connected():
                self._open.add(event.dial)
            case Disconnected():
                self._open.discard(event.channel)
            case _:
                pass

    def judge(self, effect: object) -> str:
        match effect:
            case Send():
                if effect.channel not in self._open:
                    return f"sends on channel {effect.channel!r}, which is not open"
            case Admit() | Refuse():
                if effect.request not in self._knocks:
                    return f"answers a knock that is not waiting: {effect.request!r}"
                self._knocks.discard(effect.request)
            case Dial():
                if effect.dial in self._dialled:
                    return f"dials {effect.dial} twice"
                self._dialled.add(effect.dial)
            case HangUp():
                self._open.discard(effect.channel)
            case Persist():
                if effect.ticket <= self._ticket:
                    return f"uses ticket {effect.ticket} after {self._ticket}"
                self._ticket = effect.ticket
            case _:
                pass
        return ""
