"""Worker processes find the same as one process, and none outlives its verification."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import pytest

from chaplain.errors import ChaplainError, Inaccessible
from chaplain.segment.files import list_segments
from chaplain.verification import process_pool
from chaplain.verification.plan import VerifyRequest
from chaplain.verification.process_pool import VerifyProgress, verify_in_processes
from chaplain.verification.verify import verify_here
from tests.spark.support.damage import flipped_payload
from tests.spark.support.forgery import wrong_signature
from tests.spark.support.scene import Named, Scene

Report = Callable[[VerifyProgress], None]


def pool(scene: Scene, report: Report = lambda progress: None, workers: int = 2) -> Any:
    request = VerifyRequest(str(scene.segments), signatures=scene.signatures)
    return verify_in_processes(request, workers, report, small_cost=0)[0]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that a test starts."""
    processes: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def start(*given: Any, **more: Any) -> subprocess.Popen[bytes]:
        processes.append(real(*given, **more))
        return processes[-1]

    monkeypatch.setattr(process_pool.subprocess, "Popen", start)
    return processes


def whole(scene: Scene) -> Named:
    scene.write()
    scene.signatures = True
    return set()


@pytest.mark.parametrize("case", [whole, flipped_payload, wrong_signature], ids=lambda case: case.__name__)
def test_workers_report_the_same_breaks_as_one_process(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], case: Callable[[Scene], Named]
) -> None:
    scene = Scene(tmp_path, 1)
    expected = case(scene)
    steps: list[VerifyProgress] = []
    found = pool(scene, steps.append)
    assert found == verify_here(VerifyRequest(str(scene.segments), signatures=scene.signatures))[0]
    assert {(one.stream, one.offset, one.kind) for one in found.breaks} == expected
    assert len(started) == 2
    assert [process.returncode for process in started] == [0, 0]
    assert (steps[0].done, steps[-1].done, steps[-1].rows) == (0, steps[0].total, found.rows)


def test_small_log_is_verified_without_workers(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    scene = Scene(tmp_path, 1)
    scene.write()
    found, _ = verify_in_processes(VerifyRequest(str(scene.segments)))
    assert found == verify_here(VerifyRequest(str(scene.segments)))[0]
    assert not started


def test_interrupted_verification_leaves_no_process(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    scene = Scene(tmp_path, 1)
    scene.write()

    def interrupt(progress: VerifyProgress) -> None:
        if progress.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool(scene, interrupt)
    assert len(started) == 2
    assert all(process.returncode is not None for process in started)


def test_workers_do_not_receive_the_interrupt_of_the_terminal(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    scene = Scene(tmp_path, 1)
    scene.write()
    groups: set[int] = set()
    pool(scene, lambda progress: groups.update(os.getpgid(one.pid) for one in started if one.returncode is None))
    assert groups == {process.pid for process in started}
    assert os.getpgrp() not in groups


def test_error_of_a_worker_ends_the_verification_with_the_same_error(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    scene = Scene(tmp_path, 1)
    scene.write()
    gone = list_segments(scene.segments)[1].path

    def lose(progress: VerifyProgress) -> None:
        if not progress.done:
            gone.unlink()

    with pytest.raises(Inaccessible, match=f"^cannot read {gone}: No such file or directory$"):
        pool(scene, lose)
    assert all(process.returncode is not None for process in started)


def test_killed_worker_is_reported(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    scene = Scene(tmp_path, 1)
    scene.write()

    def kill(progress: VerifyProgress) -> None:
        for process in started if progress.done else ():
            process.send_signal(signal.SIGKILL)

    with pytest.raises(ChaplainError, match=r"a worker process ended with signal 9: .* use fewer workers"):
        pool(scene, kill)


def test_worker_ends_if_its_parent_is_gone() -> None:
    ours, theirs = Pipe()
    command = [sys.executable, "-m", "chaplain.verification.worker", str(theirs.fileno())]
    with theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as worker:
        ours.close()
        assert worker.wait(60) == 0


def test_script_without_a_guard_and_from_standard_input_is_verified(tmp_path: Path) -> None:
    """`multiprocessing` would import such a main module again, or fail because there is none."""
    scene = Scene(tmp_path, 1)
    scene.write()
    script = (
        "from chaplain.verification.plan import VerifyRequest\n"
        "from chaplain.verification.process_pool import verify_in_processes\n"
        f"print(verify_in_processes(VerifyRequest({str(scene.segments)!r}), 2, small_cost=0)[0].told())\n"
    )
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith("node 1 proven: ")
    assert not done.stderr
