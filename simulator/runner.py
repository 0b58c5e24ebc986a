"""Runs one seed of one workload from start to end, and reports the outcome."""

from __future__ import annotations

import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import msgspec

from chaplain.units import SECOND_NS
from simulator.checkers.base import HostContract, Violation
from simulator.faults.injector import FaultInjector
from simulator.faults.plan import Plan, draw
from simulator.memo import memoized
from simulator.trace import Trace
from simulator.workloads import Workload, load
from simulator.world.machine import Host
from simulator.world.world import World, derive

MODES = ("safety", "liveness")

CALM_NS = 3 * SECOND_NS
"""A healed run ends when every checker has been satisfied for this long."""
_PATIENT = 1 / 8
"""Fraction of the seeds that run to the end all the same: a node may stop working later."""


class Outcome(msgspec.Struct):
    workload: str
    seed: int
    mode: str
    digest: str
    steps: int
    simulated_ns: int
    counts: dict[str, int]
    checker: str = ""
    """What failed: a checker, `assert` for an assertion in the code, `crash` for any other error. Empty if the run
    passed.
    """
    reason: str = ""

    @property
    def ok(self) -> bool:
        return not self.checker

    def replay(self) -> str:
        return f"python -m simulator --workload {self.workload} --mode {self.mode} --seed {self.seed} --trace"


def plan_of(workload: Workload, world: World, mode: str) -> Plan:
    return draw(
        world.rng("faults"),
        workload.names,
        mode,
        workload.kinds,
        members=workload.members,
        heals_all=workload.heals_all,
        rare=workload.rare_kinds,
        rare_rng=world.rng("rare faults"),
    )


def run_seed(name: str, seed: int, mode: str, show: Callable[[str], None] | None = None) -> Outcome:
    """Run one seed. The outcome contains every error; nothing is raised."""
    trace = Trace(show)
    root = f"{name}/{mode}/{seed}"
    workload, world = _build(name, root, trace)
    plan = plan_of(workload, world, mode)
    if show is not None:
        show(str(plan))
    outcome = Outcome(name, seed, mode, "", 0, 0, {})
    try:
        with memoized(workload.memoized_functions):
            _play(workload, world, plan)
    except Violation as violation:
        outcome.checker, outcome.reason = violation.checker, violation.reason
    except AssertionError as error:
        outcome.checker, outcome.reason = "assert", _where(error)
    except Exception as error:  # a core that raises anything is a finding like any other
        outcome.checker, outcome.reason = "crash", _where(error)
    outcome.digest, outcome.steps = trace.digest(), trace.steps
    outcome.simulated_ns, outcome.counts = world.now_ns, dict(sorted(world.counts.items()))
    return outcome


def _build(name: str, root: str, trace: Trace) -> tuple[Workload, World]:
    workload = load(name)(derive(root, "workload"))
    return workload, World(root, workload.make_node, trace, [HostContract(), *workload.checkers()])


def _play(workload: Workload, world: World, plan: Plan) -> None:
    for node in workload.names:
        world.start(world.add(node, workload.endpoint(node)))
    injector = FaultInjector(world, plan, workload.points, workload.inject_fault)
    injector.begin()
    workload.plan = plan
    workload.begin(world)
    world.run(plan.heal_ns)
    _run_until_calm(world, plan, injector.healed())
    for checker in world.checkers:
        checker.finish(injector.healed())


def _run_until_calm(world: World, plan: Plan, healed: Sequence[Host]) -> None:
    """After the heal: run until all checkers stay satisfied for `CALM_NS`, or until the plan's end."""
    patient = world.rng("patience").random() < _PATIENT
    calm_ns = 0
    while world.now_ns < plan.end_ns:
        began_ns = world.now_ns
        world.run(min(began_ns + SECOND_NS, plan.end_ns))
        content = not patient and all(checker.is_satisfied(healed) for checker in world.checkers)
        calm_ns = calm_ns + world.now_ns - began_ns if content else 0
        if calm_ns >= CALM_NS:
            return


def _where(error: BaseException) -> str:
    """The last line of code in the error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    return f"{type(error).__name__}: {error} at {os.path.basename(last.filename)}:{last.lineno} `{last.line}`"


def run_seeds(name: str, seeds: Iterable[int], modes: Iterable[str], jobs: int = 1) -> Iterator[Outcome]:
    """Run many seeds in order of seed and mode, on `jobs` processes."""
    modes = tuple(modes)
    if jobs <= 1:
        for seed in seeds:
            for mode in modes:
                yield run_seed(name, seed, mode)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for outcomes in pool.map(partial(_run_modes, name, modes), seeds, chunksize=16):
            yield from outcomes


def _run_modes(name: str, modes: tuple[str, ...], seed: int) -> list[Outcome]:
    return [run_seed(name, seed, mode) for mode in modes]


def total(outcomes: Iterable[Outcome]) -> Counter[str]:
    """How often each fault occurred in these runs."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome.counts)
    return counts
