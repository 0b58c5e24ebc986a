"""Workloads: what nodes do in the simulated world. Each module is named like its workload and has its class as
`WORKLOAD`.
"""

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
    """The nodes of one run, the requests to them, and the checkers. A base class."""

    kinds: ClassVar[Sequence[str]] = ALL
    """The faults that make sense here; `inject_fault` carries out kinds that the workload adds."""
    rare_kinds: ClassVar[Sequence[str]] = ()
    """Further kinds, each enabled in fewer seeds."""
    points: ClassVar[Sequence[CrashPoint]] = ()
    """Named moments at which a node may be crashed."""
    heals_all: bool = False
    """True if a heal covers all nodes, for workloads in which all must become equal."""
    memoized_functions: ClassVar[Sequence[Pure]] = ()
    """Pure functions that many nodes call with the same arguments: within a run each result is computed once."""
    plan: Plan
    """The fault plan of this run, known from `begin` on."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.names: Sequence[str] = ("a", "b")
        self.members: Sequence[str] = ()
        """The nodes of which a majority must make progress after a heal; all nodes if empty."""

    def endpoint(self, name: str) -> str:
        return f"tcp://10.0.0.{self.names.index(name) + 1}:7171"

    def make_node(self, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> NodeCore:
        """Start a process of this name."""
        raise NotImplementedError

    def begin(self, world: World) -> None:
        """Schedule the requests of users."""

    def checkers(self) -> list[Checker]:
        """The checkers, in addition to those of every workload."""
        raise NotImplementedError

    def inject_fault(self, world: World, fault: Fault) -> None:
        """Carry out a fault of a kind that this workload adds."""
        raise NotImplementedError


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> type[Workload]:
    """The workload of this name, or, written `module:Class`, one from another module."""
    module, _, attribute = name.partition(":")
    if not attribute:
        if name not in names():
            raise LookupError(f"there is no workload {name!r}; there are: {', '.join(names())}")
        module, attribute = f"{__name__}.{name}", "WORKLOAD"
    workload: type[Workload] = getattr(importlib.import_module(module), attribute)
    return workload
