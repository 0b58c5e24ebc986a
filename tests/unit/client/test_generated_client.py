"""The blocking client is generated from the asyncio one: the files are up to date, and users get the same methods."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from chaplain.client import aio

TOOL = Path(__file__).parents[3] / "tools" / "blocking_client.py"
MODULES = sorted(path.stem for path in Path(aio.__file__).parent.glob("*.py") if path.stem != "__init__")


def test_generated_files_are_those_that_the_tool_writes() -> None:
    done = subprocess.run([sys.executable, TOOL, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def public_methods(kind: type) -> dict[str, str]:
    """The signatures of the methods that programs call, with the names of the blocking client."""
    methods = inspect.getmembers(kind, inspect.isroutine)
    return {
        name: re.sub(r"\bAsync(?=[A-Z])", "", str(inspect.signature(method)))
        for name, method in methods
        if not name.startswith("_")
    }


@pytest.mark.parametrize("module", MODULES)
def test_both_clients_have_the_same_public_signatures(module: str) -> None:
    blocking, source = (import_module(f"chaplain.client.{side}.{module}") for side in ("sync", "aio"))
    for name, kind in vars(source).items():
        own = isinstance(kind, type) and kind.__module__ == source.__name__
        if own and name != "AsyncClientContext":  # not for programs: it names the parts of its engine
            assert public_methods(kind) == public_methods(getattr(blocking, name.removeprefix("Async")))
