"""Verifies a log with worker processes on this machine, one for each processor.

    plan the tasks ──▶ start workers ──▶ give each the next task when it returns a result ──▶ join the results

This module distributes tasks to processes. It starts the workers itself and does not use `multiprocessing`. The start
methods of `multiprocessing` either fork a process that may have threads, or import the caller's main module again in
every worker: a script without a guard would then run twice, and one from standard input not at all.

A small log is verified in this process, because the start of workers would take longer than the verification.

Bounds: `TASK_COST` in a task, and one task in each worker. A worker reads one record at a time, so the
memory that it needs does not depend on the size of the log. Workers are in process groups of their own: Ctrl-C reaches
only this process, which ends them. They also end if this process is killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Pipe, wait
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from chaplain import errors
from chaplain.errors import ChaplainError
from chaplain.verification.batches import Keys
from chaplain.verification.plan import VerifyPlan, VerifyRequest, cost_of, keys_of, make_plan
from chaplain.verification.proof_segments import ProofSegment
from chaplain.verification.record_reader import check
from chaplain.verification.result import VerifyResult, join_results
from chaplain.verification.worker import Outcome, Setup, Task

TASK_COST = 32 << 20
SMALL_COST = 256 << 20
"""A log up to this cost (see `plan.cost_of`) is verified without workers: they would not save the time to start."""
TASKS_PER_WORKER = 4
"""At least this many tasks for each worker, so that all of them end at about the same time."""
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(64 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""Settings of glibc for workers. Without them it returns the memory of each record to the system, and the page faults
of the next record take a third of the processor time. Other C libraries ignore them."""
STOP_S = 30.0
"""A worker without a task is killed if it does not end within this time."""

_outcomes = msgspec.msgpack.Decoder(Outcome)


class VerifyProgress(NamedTuple):
    """The progress of a verification."""

    done: int
    """Cost of the finished tasks; see `plan.cost_of`."""
    total: int
    rows: int
    breaks: int


def verify_in_processes(
    request: VerifyRequest,
    workers: int = 0,
    report: Callable[[VerifyProgress], None] = lambda progress: None,
    small_cost: int = SMALL_COST,
) -> tuple[VerifyResult, VerifyPlan]:
    """Verify a log with worker processes: `workers`, or one for each processor that this process may use.

    `report` is called after the log is planned and after each task.
    """
    count = workers or len(os.sched_getaffinity(0))
    plan = make_plan(request, count * TASKS_PER_WORKER, TASK_COST)
    costs = [sum(map(cost_of, segment)) for segment in plan.segments]
    tally = _Tally(costs, report)
    if sum(costs) <= small_cost:
        for number, segment in enumerate(plan.segments):
            tally.add(number, check(segment, keys_of(plan, segment), plan.siblings, plan.leaf_range(number)))
    else:
        _run_in_workers(plan, min(count, len(costs)), tally)
    return join_results(plan, [segment for segment in tally.segments if segment is not None]), plan


class _Tally:
    """The results so far, by number of the task."""

    def __init__(self, costs: list[int], report: Callable[[VerifyProgress], None]) -> None:
        self.segments: list[ProofSegment | None] = [None] * len(costs)
        self._costs = costs
        self._report = report
        self._progress = VerifyProgress(0, sum(costs), 0, 0)
        report(self._progress)

    def add(self, number: int, segment: ProofSegment) -> None:
        self.segments[number] = segment
        done, total, rows, breaks = self._progress
        self._progress = VerifyProgress(
            done + self._costs[number], total, rows + segment.rows, breaks + len(segment.breaks)
        )
        self._report(self._progress)


def _run_in_workers(plan: VerifyPlan, count: int, tally: _Tally) -> None:
    setup = Setup(None if plan.keys is None else Keys(plan.cluster, plan.keys), plan.siblings)
    waiting = iter(range(len(plan.segments)))
    with ExitStack() as stack:
        idle = [stack.enter_context(_Worker()) for _ in range(count)]
        for worker in idle:
            worker.send(setup)
        busy: dict[Any, tuple[_Worker, int]] = {}
        while True:
            while idle and (number := next(waiting, None)) is not None:
                segment, worker = plan.segments[number], idle.pop()
                signed = keys_of(plan, segment) is not None
                worker.send(Task(segment, signed, plan.leaf_range(number)))
                busy[worker.connection] = worker, number
            if not busy:
                return
            for connection in wait(list(busy)):
                worker, number = busy.pop(connection)
                tally.add(number, worker.receive())
                idle.append(worker)


class _Worker:
    """A worker process, and the socket to it. It is killed when the context is left with an error."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-P", "-m", "chaplain.verification.worker", str(theirs.fileno())]
            # The worker must import the same modules as this process, which may have changed its search path.
            path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
                env={**os.environ, **ALLOCATOR, "PYTHONPATH": path},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.connection.close()
        if kind is not None:
            self._process.kill()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def send(self, what: Setup | Task) -> None:
        try:
            self.connection.send_bytes(msgspec.msgpack.encode(what))
        except (BrokenPipeError, ConnectionResetError):
            raise self._died() from None

    def receive(self) -> ProofSegment:
        """Return the result of the task. Raises the error with which it failed."""
        try:
            outcome = _outcomes.decode(self.connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise self._died() from None
        if outcome.segment is not None:
            return outcome.segment
        if not outcome.kind:
            raise RuntimeError(f"a worker failed:\n{outcome.error}")
        kind = getattr(errors, outcome.kind, ChaplainError)
        raise kind(outcome.error)

    def _died(self) -> ChaplainError:
        code = self._process.wait()
        reason = f"with signal {-code}" if code < 0 else f"with code {code}"
        return ChaplainError(f"a worker process ended {reason}: if the memory did not suffice, use fewer workers")
