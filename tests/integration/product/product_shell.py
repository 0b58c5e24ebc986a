"""A shell as a newcomer has it: bash, a folder of one's own, `chaplain` on the path, and nothing else known."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from chaplain.runtime.cluster.create import PORTS_VARIABLE
from tests.support.process_cluster import promised

BIN = Path(sys.executable).parent
LIMIT_S = 60.0
"""After that a command hangs."""
ANSWER_S = 10.0
"""A person who did something wrong is answered by then."""


@dataclass(frozen=True)
class Done:
    line: str
    code: int
    out: str
    err: str
    seconds: float


@dataclass(frozen=True)
class Wrong:
    """Something that people do, and what they are told."""

    line: str
    said: str
    code: int = 1


class Shell:
    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        ports = os.environ.get(PORTS_VARIABLE, "")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CHAPLAIN_", "PYTEST_"))}
        kept |= {PORTS_VARIABLE: ports} if ports else {}  # two processes of tests never look for ports in one place
        path = f"{BIN}:{kept.get('PATH', '')}"
        self.environment = {**kept, "PATH": path, "HOME": str(folder), "COLUMNS": "120", **environment}

    def run(self, line: str, limit_s: float = LIMIT_S) -> Done:
        began = time.monotonic()
        process = subprocess.Popen(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=limit_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # with whatever the line started and waits for
            process.communicate()
            raise
        return Done(line, process.returncode, out, err, time.monotonic() - began)

    def worked(self, line: str, limit_s: float = LIMIT_S) -> str:
        done = self.run(line, limit_s)
        assert done.code == 0, f"{line}\n{done.out}{done.err}"
        return done.out

    def processes(self) -> list[str]:
        """What runs with this folder in its command line: nodes, and whatever was left behind."""
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = file.read_bytes()
            except OSError:
                continue
            if os.fsencode(self.folder) in words:
                found.append(file.parent.name)
        return sorted(found)

    def check(self, wrong: list[Wrong], together: int = 1) -> None:
        """Do all of this: each must be told in one sentence, in time, and leave nothing behind."""
        before = self.processes()
        with ThreadPoolExecutor(together) as pool:
            done = list(pool.map(lambda one: self.run(one.line), wrong))
        found = [complaint for one, end in zip(wrong, done, strict=True) for complaint in judge(one, end)]
        if self.processes() != before:
            found.append(f"processes: before {before}, after {self.processes()}")
        assert not found, "\n".join(found)


def judge(wrong: Wrong, done: Done) -> list[str]:
    text = done.err.strip()
    found = []
    if done.code != wrong.code:
        found.append(f"ended with {done.code}, not {wrong.code}")
    if not text.startswith("chaplain: ") or "Traceback" in text or len(text.splitlines()) != 1:
        found.append("not one sentence")
    if done.seconds > promised(ANSWER_S):
        found.append(f"took {done.seconds:.1f} s")
    if not re.search(wrong.said, text):
        found.append(f"does not say {wrong.said!r}")
    return [f"{wrong.line}: {complaint}: {done.out[-300:]}{text[-900:]}" for complaint in found]
