"""A real cluster of three nodes, started and stopped by the command line, and what tests ask of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from chaplain.runtime.cluster.local import pid_of


def chaplain(*arguments: str | Path) -> None:
    program = "from chaplain.cli.main import main; main()"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def eventually(holds: Callable[[], bool], limit_s: float = 60) -> None:
    end_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end_s, "it did not come about in time"
        time.sleep(0.02)


def pids(directory: Path) -> list[int]:
    found = [pid_of(directory / f"node-{number}") for number in (1, 2, 3)]
    return [pid for pid in found if pid is not None]
