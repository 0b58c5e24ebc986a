"""Planted bugs (mutations): one-line changes of the cores that the checks must catch.

A bug is data: the module, a text that occurs in it exactly once, and the text that replaces it. It is planted in
memory, in its own process, before the module is loaded; no file changes. A bug is:

- *caught* if an expected checker fails within the seeds, or, if the bug names tests, one of them fails;
- *survived* if all seeds or tests pass;
- *stale* if its text does not occur exactly once;
- *broken* if something else fails: then the mutation does not do what its name says;
- *skipped* if pytest skips all of its tests, because the machine lacks a program that they need.

That the text exists (`mutated`) does not mean that the bug is caught. Tests that compare the texts of bugs fail for
every mutation and say nothing about behaviour, so they are left out.

This module imports nothing of chaplain at the top: the modules in which it plants bugs must not be loaded yet.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import CodeType, ModuleType

_TIMEOUT_S = 600


@dataclass(frozen=True)
class Bug:
    name: str
    module: str
    old: str
    new: str
    workload: str
    expected: tuple[str, ...]
    """The checkers that may catch it; `assert` is an assertion in the code."""
    seeds: int = 300
    mode: str = "safety"
    layer: str = ""
    tests: tuple[str, ...] = ()
    """Arguments of pytest that select the tests which must fail with it, used instead of seeds: for bugs that need real
    files, or a schedule that random seeds hardly ever produce. They run from the root of the repository.
    """


def caught_by_tests(name: str, module: str, old: str, new: str, file: str, *words: str) -> Bug:
    """Return a bug of a module of chaplain that tests of a file below `tests` must catch: all, or those with a word."""
    chosen = ("-k", " or ".join(words)) if words else ()
    return Bug(name, f"chaplain.{module}", old, new, "", (), tests=(f"tests/{file}", *chosen))


@dataclass(frozen=True)
class Verdict:
    bug: Bug
    status: str
    """caught, survived, stale, broken, skipped or undecided"""
    detail: str

    @property
    def ok(self) -> bool:
        return self.status == "caught"


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module, and loads it with its text changed."""

    def __init__(self, bug: Bug, path: str) -> None:
        self._bug = bug
        self._path = path

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._bug.module:
            return None
        loader = _Loader(self._bug, self._path)
        return importlib.util.spec_from_file_location(fullname, self._path, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, bug: Bug, path: str) -> None:
        super().__init__(bug.module, path)
        self._bug = bug

    def get_code(self, fullname: str) -> CodeType | None:
        """The code of the changed text: the cached bytecode of the real one must be neither used nor written."""
        return _compiled(self._bug, self.path)


def mutated(bug: Bug) -> CodeType:
    """The code of the bug's module with the bug in it."""
    return _compiled(bug, _path(bug))


def _compiled(bug: Bug, path: str) -> CodeType:
    with open(path, encoding="utf-8") as source:
        code: CodeType = compile(_mutate(bug, source.read()), path, "exec", dont_inherit=True)
    return code


def _path(bug: Bug) -> str:
    """The path of the module's source. Its packages are not imported, because one of them might load the module."""
    top, *inner = bug.module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is not None and spec.origin is not None and not inner:
        return spec.origin
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = os.path.join(place, *inner)
        for found in (f"{path}.py", os.path.join(path, "__init__.py")):
            if os.path.exists(found):
                return found
    raise LookupError(f"stale: there is no module {bug.module}")


def _mutate(bug: Bug, source: str) -> str:
    count = source.count(bug.old)
    if count != 1:
        raise LookupError(f"stale: the text of {bug.name!r} is {count} times in {bug.module}, not once")
    if bug.old == bug.new:
        raise LookupError(f"stale: {bug.name!r} changes nothing")
    return source.replace(bug.old, bug.new)


def install(bug: Bug) -> None:
    """Plant the bug in this process."""
    assert bug.module not in sys.modules, f"{bug.module} is loaded already"
    path = _path(bug)
    _compiled(bug, path)  # report a stale bug here, not when the module is loaded
    sys.meta_path.insert(0, _Finder(bug, path))


def layers() -> list[str]:
    package = importlib.import_module("simulator.mutations")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def bugs(layer: str) -> list[Bug]:
    """The bugs of a layer, or, written `module:`, of another module."""
    name = layer.removesuffix(":") if layer.endswith(":") else f"simulator.mutations.{layer}"
    found: list[Bug] = importlib.import_module(name).BUGS
    return found


def find(path: str) -> Bug:
    layer, _, name = path.partition("/")
    for bug in bugs(layer):
        if bug.name == name:
            return bug
    raise LookupError(f"there is no bug {name!r} in {layer!r}")


def judge(layer: str, bug: Bug) -> Verdict:
    """Run the bug's seeds or tests with the bug in place, in a separate process."""
    try:
        return _judge_by_tests(layer, bug) if bug.tests else _judge_by_seeds(layer, bug)
    except subprocess.TimeoutExpired:
        return Verdict(bug, "undecided", f"neither caught nor survived within {_TIMEOUT_S} s")


def _judge_by_seeds(layer: str, bug: Bug) -> Verdict:
    command = [sys.executable, "-m", "simulator", "--plant", f"{layer}/{bug.name}", "--workload", bug.workload]
    command += ["--seeds", f"0:{bug.seeds}", "--mode", bug.mode, "--output", "json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603
    if run.returncode == 0:
        return Verdict(bug, "survived", f"{bug.seeds} seeds passed with it")
    lines = run.stdout.splitlines()
    if not lines or json.loads(lines[-1])["ok"]:
        error = (run.stderr.splitlines() or ["no word"])[-1]
        return Verdict(bug, "stale" if "stale:" in error else "broken", error)
    last = json.loads(lines[-1])
    caught = last["checker"] in bug.expected
    where = f"{last['checker']} at seed {last['seed']}: {last['reason']}"
    return Verdict(bug, "caught" if caught else "broken", where)


_RUN_TESTS = """
import sys
from simulator import mutate
mutate.install(mutate.find(sys.argv[1]))
import pytest
# pytest rewrites the assertions of every distribution that contains a plugin for it. It would therefore load chaplain's
# modules itself, ahead of the finder that plants the bug.
options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not planted_texts", "--assert=plain"]
sys.exit(pytest.main([*sys.argv[2:], *options]))
"""
_TESTS_FAILED = 1
"""pytest's exit code if all tests were found and run, and one failed."""


def _judge_by_tests(layer: str, bug: Bug) -> Verdict:
    command = [sys.executable, "-c", _RUN_TESTS, f"{layer}/{bug.name}", *bug.tests]
    run = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603
    last = ((run.stdout + run.stderr).splitlines() or ["no word"])[-1]
    if run.returncode == 0:
        skipped = "skipped" in last and "passed" not in last
        return Verdict(bug, "skipped" if skipped else "survived", f"no test failed with it: {last}")
    if "stale:" in run.stderr:  # Python ends with the same code as failed tests
        return Verdict(bug, "stale", last)
    if run.returncode != _TESTS_FAILED:
        return Verdict(bug, "broken", last)
    return Verdict(bug, "caught", next((line for line in run.stdout.splitlines() if line.startswith("FAILED")), last))


def judge_all(layer: str, jobs: int = 1) -> Iterator[Verdict]:
    """Judge the bugs of a layer; verdicts come in the order of the list."""
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        yield from pool.map(lambda bug: judge(layer, bug), bugs(layer))


def main(layer: str, output: str, jobs: int) -> int:
    count = missed = 0
    for name in [layer] if layer else layers():
        for verdict in judge_all(name, jobs):
            count, missed = count + 1, missed + (verdict.status not in ("caught", "skipped"))
            _show(name, verdict, output)
    if missed:
        print(f"{missed} of {count} planted bugs were not caught", file=sys.stderr)
    return 1 if missed or not count else 0


def _show(layer: str, verdict: Verdict, output: str) -> None:
    """Print at once: the next bug may take minutes."""
    if output == "json":
        fields = {"layer": layer, "bug": verdict.bug.name, "status": verdict.status, "by": verdict.detail}
        print(json.dumps(fields), flush=True)
    else:
        print(f"{verdict.status:9} {layer}/{verdict.bug.name}: {verdict.detail}", flush=True)
