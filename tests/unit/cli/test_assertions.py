"""chaplain refuses to run where Python drops assertions."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from chaplain.errors import ASSERTIONS_OFF


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120, check=False
    )


@pytest.mark.parametrize("level", ["1", "2"])
def test_command_line_refuses_to_start_without_assertions(level: str) -> None:
    done = run("-m", "chaplain.cli.main", "node", "run", "nowhere", PYTHONOPTIMIZE=level)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"chaplain: {ASSERTIONS_OFF}\n"


def test_library_cannot_be_used_without_assertions() -> None:
    done = run("-O", "-c", "from chaplain import Client")
    assert done.returncode == 1
    assert done.stderr.endswith(f"ImportError: {ASSERTIONS_OFF}\n")
