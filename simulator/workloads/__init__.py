"""What nodes do in the made-up world: one module each, named like its file, with the class as `WORKLOAD`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, ClassVar

from simulator.faults.plan import ALL, Fault, Plan
from simulator.memo import Pure
from simulator.world.machine import CrashPoint, NodeCore

if TYPE_CHECKING:
    from simulator.checkers.base import Checker
    from simulator.world.world import World


class Workload:
    """One run's nodes, what is asked of them, and who watches. Take it as a base."""

    kinds: ClassVar[Sequence[str]] = ALL
    """The faults that make sense here; kinds of one's own are carried out by `strike`."""
    rare_kinds: ClassVar[Sequence[str]] = ()
    """More of them, each in fewer seeds."""
    points: ClassVar[Sequence[CrashPoint]] = ()
    """Named moments at which a node may be made to die."""
    heals_all: bool = False
    """Whether a heal mends everybody, for what must become equal everywhere."""
    recalled: ClassVar[Sequence[Pure]] = ()
    """Functions of their arguments alone that many nodes ask for the same: in a run, each answer is computed once."""
    plan: Plan
    """What is drawn for this run, known from `begin` on."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.names: Sequence[str] = ("a", "b")
        self.members: Sequence[str] = ()
        """Those of whom a majority must make progress after a heal; all, if none is named."""

    def endpoint(self, name: str) -> str:
        return f"tcp://10.0.0.{self.names.index(name) + 1}:7171"

    def make_node(self, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> NodeCore:
        """Start a process of this name."""
        raise NotImplementedError

    def begin(self, world: World) -> None:
        """Put on the calendar what users ask of the nodes."""

    def checkers(self) -> list[Checker]:
        """Who watches, beside those that watch every workload."""
        raise NotImplementedError

    def strike(self, world: World, fault: Fault) -> None:
        """Carry out a fault of a kind that is this workload's own."""
        raise NotImplementedError


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> type[Workload]:
    """The workload of this name, or, written `module:Class`, one from elsewhere."""
    module, _, attribute = name.partition(":")
    if not attribute:
        if name not in names():
            raise LookupError(f"there is no workload {name!r}; there are: {', '.join(names())}")
        module, attribute = f"{__name__}.{name}", "WORKLOAD"
    workload: type[Workload] = getattr(importlib.import_module(module), attribute)
    return workload
