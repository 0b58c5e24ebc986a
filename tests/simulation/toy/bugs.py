"""Bugs for the toy: one of each fate a planted bug can have."""

from simulator.mutate import Bug

TOY = "tests.simulation.toy.counter:Toy"

BUGS = [
    Bug(
        name="tell before it is on disk",
        module="tests.simulation.toy.counter",
        old="            effects.append(Dial(",
        new="            effects.extend(self._say(self.number)); effects.append(Dial(",
        workload=TOY,
        expected=("remembered",),
    ),
    Bug(
        name="harmless",
        module="tests.simulation.toy.counter",
        old='return [Admit(request, "someone")]',
        new='return [Admit(request, "anyone")]',
        workload=TOY,
        expected=("remembered",),
        seeds=5,
    ),
    Bug(
        name="text that is not there",
        module="tests.simulation.toy.counter",
        old="no such line",
        new="",
        workload=TOY,
        expected=("remembered",),
        seeds=5,
    ),
    Bug(
        name="not even a program that runs",
        module="tests.simulation.toy.counter",
        old="self._wake_ns = now_ns + SECOND // 2",
        new="self._wake_ns = later",
        workload=TOY,
        expected=("remembered",),
        seeds=5,
    ),
    Bug(
        name="caught by a test",
        module="tests.simulation.toy.counter",
        old='("a", "b", "c", "d", "e")[: rng.choice((2, 3, 5))]',
        new="()",
        workload="",
        expected=("test",),
        tests=("tests/simulation/toy/checks.py", "-k", "names"),
    ),
    Bug(
        name="tests that are not there",
        module="tests.simulation.toy.counter",
        old='return [Admit(request, "someone")]',
        new='return [Admit(request, "anyone")]',
        workload="",
        expected=("test",),
        tests=("tests/simulation/no_such_checks.py",),
    ),
    Bug(
        name="tests that pass",
        module="tests.simulation.toy.counter",
        old='return [Admit(request, "someone")]',
        new='return [Admit(request, "anyone")]',
        workload="",
        expected=("test",),
        tests=("tests/simulation/toy/checks.py",),
    ),
    Bug(
        name="tests that are skipped",
        module="tests.simulation.toy.counter",
        old='return [Admit(request, "someone")]',
        new='return [Admit(request, "anyone")]',
        workload="",
        expected=("test",),
        tests=("tests/simulation/toy/checks.py", "-k", "skipped"),
    ),
]
