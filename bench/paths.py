"""Runs several cores in one process, with frames passed in memory, and measures the Python cost of an operation.

The cores are the real ones; writes to disk complete immediately. `journal_path.py` and `sequence_path.py` use it.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import FrameType
from typing import Any

import chaplain
from chaplain.core import (
    Admit,
    Arrived,
    Channel,
    Connected,
    Dial,
    Disconnected,
    Drained,
    HangUp,
    Knocked,
    Persist,
    Persisted,
    Refuse,
    Send,
    Serve,
    Woken,
)

HOP_NS = 100_000


class Party:
    """A core, its waiting inputs, and its accumulated cost."""

    def __init__(self, name: str, core: Any, routing_id: bytes = b"") -> None:
        self.name = name
        self.core = core
        self.routing_id = routing_id
        self.waiting: list[Any] = []
        self.told: list[Any] = []
        """The events that a client's core delivered to the application."""
        self.peers: dict[Channel, tuple[Party, Channel]] = {}
        """By channel: the party at the other end, and that party's channel."""
        self.turns = self.calls = self.busy_ns = 0
        self.modules: Counter[str] = Counter()
        """Calls of Python functions by file of the package."""

    def clear(self) -> None:
        self.turns = self.calls = self.busy_ns = 0
        self.modules.clear()

    def usual_modules(self, acts: int) -> set[str]:
        """The modules that at least every second operation calls. Timers add others now and then."""
        return {module for module, calls in self.modules.items() if 2 * calls >= acts}


class Network:
    """Passes frames between cores. Its clock is simulated and advances with each wake-up."""

    def __init__(self, now_ns: int, errands: Mapping[type, Callable[[Any], Any]] | None = None) -> None:
        """`errands` are the handlers of background tasks, by type of effect; a result is the core's next input."""
        self.now_ns = now_ns
        self._errands = errands or {}
        self.parties: dict[str, Party] = {}
        """By endpoint, or by name for a client, which has no endpoint."""
        self.counting = False
        self.profiles: dict[str, cProfile.Profile] = {}
        self._ready: deque[Party] = deque()
        self._knocks: dict[bytes, tuple[Party, Dial, Party]] = {}
        self._routes = 0

    def give(self, party: Party, event: Any) -> None:
        if not party.waiting:
            self._ready.append(party)
        party.waiting.append(event)

    def run(self, done: Callable[[], bool], wake_ups_max: int = 100_000) -> None:
        for _ in range(wake_ups_max):
            if done():
                return
            if self._ready:
                self._turn(self._ready.popleft())
            else:
                self._let_time_pass()
        raise SystemExit(f"nothing came of it in {wake_ups_max} wake-ups")

    def _let_time_pass(self) -> None:
        due = [(deadline, party) for party in self.parties.values() if (deadline := party.core.deadline()) is not None]
        deadline_ns, party = min(due, key=lambda pair: pair[0])
        self.now_ns = max(self.now_ns, deadline_ns)
        self._turn(party)

    def _turn(self, party: Party) -> None:
        """Step a core as the event loop does: all waiting inputs, then `Drained`, then completed writes."""
        self.now_ns += HOP_NS
        events, party.waiting = party.waiting, []
        party.turns += 1
        effects: list[Any] = []
        with self.profiles.get(party.name, nullcontext()):
            if self.counting:
                sys.setprofile(_counter(party))
            began_ns = time.perf_counter_ns()
            deadline_ns = party.core.deadline()
            if deadline_ns is not None and deadline_ns <= self.now_ns:
                events.append(Woken())
            for event in events:
                effects += party.core.step(self.now_ns, event)
            while getattr(party.core, "waiting", False):
                effects += party.core.step(self.now_ns, Serve())
            effects += party.core.step(self.now_ns, Drained())
            persists = [effect for effect in effects if type(effect) is Persist]
            later: list[Any] = []
            for event in (*(Persisted(persist.ticket) for persist in persists), *([Drained()] if persists else ())):
                later += party.core.step(self.now_ns, event)
            party.busy_ns += time.perf_counter_ns() - began_ns
            sys.setprofile(None)
        for effect in effects:
            self._perform(party, effect)
        for effect in later:
            self._perform(party, effect)
            if type(effect) is Persist:
                self.give(party, Persisted(effect.ticket))

    def _perform(self, party: Party, effect: Any) -> None:
        match effect:
            case Send():
                end = party.peers.get(effect.channel)
                if end is not None:
                    self.give(end[0], Arrived(end[1], effect.frame))
            case Dial():
                self._routes += 1
                request = self._routes.to_bytes(4, "big")
                self._knocks[request] = (party, effect, self.parties[effect.endpoint])
                self.give(self.parties[effect.endpoint], Knocked(request, effect.name, effect.proof, "127.0.0.1"))
            case Admit():
                dialler, dial, taker = self._knocks.pop(effect.request)
                route = dialler.routing_id + effect.request
                dialler.peers[dial.dial], taker.peers[route] = (taker, route), (dialler, dial.dial)
                self.give(dialler, Connected(dial.dial))
            case Refuse():
                dialler, dial, _ = self._knocks.pop(effect.request)
                self.give(dialler, Disconnected(dial.dial, effect.reason))
            case HangUp():
                end = party.peers.pop(effect.channel, None)
                if end is not None:
                    self.give(end[0], Disconnected(end[1], "hung up"))
            case _ if type(effect) in self._errands:
                self.give(party, self._errands[type(effect)](effect))
            case _:
                party.told.append(effect)


_PACKAGE = os.path.dirname(chaplain.__file__) + os.sep


def _counter(party: Party) -> Callable[..., None]:
    def count(frame: FrameType, event: str, _arg: object) -> None:
        if event in ("call", "c_call"):
            party.calls += 1
            name = frame.f_code.co_filename
            if event == "call" and name.startswith(_PACKAGE):
                party.modules[name] += 1

    return count


def options(what: str, about: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(f"--{what}s", dest="acts", type=int, default=500)
    parser.add_argument("--size", type=int, default=100, help=f"bytes of one {what}")
    parser.add_argument("--profile", default="", help="write a cProfile of each party to this path and its name")
    return parser


def measure(network: Network, act: Callable[[], None], acts: int, profile: str = "") -> dict[str, list[float]]:
    """Run the operation twice and return the costs by party.

    The first run measures wake-ups and microseconds. The second run also counts function calls and the modules of
    the package that they are in, which slows it down.
    """
    measured: dict[str, list[float]] = {}
    for counting in (False, True):
        network.counting = counting and not profile
        if counting and profile:
            network.profiles = {party.name: cProfile.Profile() for party in network.parties.values()}
        for party in network.parties.values():
            party.clear()
        for _ in range(acts):
            act()
        for party in network.parties.values():
            figures = (party.turns, party.busy_ns / 1000, party.calls)
            measured.setdefault(party.name, []).extend(figure / acts for figure in figures)
            measured[party.name].append(len(party.usual_modules(acts)))
    for name, found in network.profiles.items():
        found.dump_stats(f"{profile}.{name.replace(' ', '-')}")
    return measured


def show(
    what: str, network: Network, measured: dict[str, list[float]], acts: int, role: Callable[[Party], str]
) -> None:
    """Print wake-ups and microseconds of the first run, and function calls and modules of the second. The last line
    counts each module once.
    """
    print(f"{what:<20} {'wake-ups':>8} {'µs':>8} {'calls':>8} {'modules':>8}")
    for party in network.parties.values():
        wake_ups, busy_us, *_, calls, modules = measured[party.name]
        print(f"{party.name + role(party):<20} {wake_ups:>8.2f} {busy_us:>8.0f} {calls:>8.0f} {modules:>8}")
    busy_us, calls = (sum(figures[at] for figures in measured.values()) for at in (1, 6))
    modules = len(set().union(*(party.usual_modules(acts) for party in network.parties.values())))
    print(f"{'all':<20} {'':>8} {busy_us:>8.0f} {calls:>8.0f} {modules:>8}")
