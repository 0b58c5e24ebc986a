"""Ctrl-C in the middle, and readers that have seen enough: what was promised stays, and nothing is left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.product.product_shell import Shell
from tests.support.process_cluster import promised

pytestmark = pytest.mark.timeout(400)
PATIENCE_S = 60.0
ANSWER_S = 10.0
LISTENERS = (
    "journal read --stream orders --follow",
    "graph read --stream notes --follow",
    "sequence read --stream ticks --follow",
    "pool listen --pool chat",
    "event listen",
)
WAITS = """
import signal, sys, threading, time
from chaplain import Client

def waits(thread):
    # For something to come, and not for an answer.
    code = sys._current_frames()[thread.ident].f_code
    return code.co_name == "wait_for" and "/chaplain/client/" in code.co_filename

def interrupt():
    end = time.monotonic() + 60
    while not waits(threading.main_thread()) and time.monotonic() < end:
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
with Client.connect("c") as client:
    for wait in (client.events(), client.journal("orders").read(start=3, follow=True)):
        threading.Thread(target=interrupt).start()
        try:
            next(wait)
        except KeyboardInterrupt:
            print("heard")
"""


@contextmanager
def started(shell: Shell, line: str) -> Iterator[subprocess.Popen[bytes]]:
    """As from a terminal: Ctrl-C goes to all that the line starts. Whatever happens, none of it stays."""
    # A shell starts background jobs deaf to Ctrl-C, and a test run may be one.
    hearing = ["env", "--default-signal=INT", "bash", "-c", f"exec chaplain {line}"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(hearing, cwd=shell.folder, env=shell.environment, start_new_session=True, **pipes)
    try:
        yield process
    finally:
        for pid in running_with(process):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def running_with(process: subprocess.Popen[bytes]) -> dict[int, bytes]:
    """The processes of its session, with their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(session) == process.pid and state not in "ZX":
            found[int(folder.name)] = words
    return found


def interrupt(process: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - began < promised(ANSWER_S)
    assert process.returncode == 1
    assert b"chaplain: interrupted" in said.splitlines(), said
    assert b"Traceback" not in said
    until(lambda: not running_with(process))


def test_interrupted_commands_end_cleanly(live: Shell) -> None:
    live.worked("chaplain journal write --stream orders --lines - <<< $'a\\nb\\nc'")
    with started(live, LISTENERS[0]) as reader:
        assert [json.loads(reader.stdout.readline())["value"] for _ in "abc"] == ["a", "b", "c"]
        interrupt(reader)
    with started(live, "journal write --stream late --lines -") as writer:
        writer.stdin.write(b"acknowledged\n" * 3)
        writer.stdin.flush()
        until(lambda: "late" in json.loads(live.worked("chaplain cluster status --output json"))["streams"])
        interrupt(writer)
    [first] = live.worked("chaplain journal read --stream late --to 1").splitlines()
    assert json.loads(first)["value"] == "acknowledged"
    with started(live, "pipeline land --stream orders --tables tables") as landing:
        until(
            lambda: any(b"/java\0" in words and b"pyspark-shell" in words for words in running_with(landing).values())
        )
        interrupt(landing)
    assert not list(live.folder.rglob("*.parquet"))
    no_wait_is_deaf_to_signals(live)


def no_wait_is_deaf_to_signals(live: Shell) -> None:
    """One that another thread got wakes nobody up; neither does one that comes just before the wait."""
    (live.folder / "waits.py").write_text(WAITS)
    assert live.worked("python waits.py").split() == ["heard", "heard"]


def test_commands_whose_reader_closes_the_pipe_end_with_code_zero(live: Shell) -> None:
    """Without a word, and before there is anything more to say."""
    live.worked("chaplain journal write first --stream orders && chaplain graph append first --stream notes")
    for line in LISTENERS:
        with started(live, line) as listener:
            if "--follow" in line and "sequence" not in line:
                assert json.loads(listener.stdout.readline())["value"] == "first"
            listener.stdout.close()
            began = time.monotonic()
            assert (listener.wait(PATIENCE_S), listener.stderr.read()) == (0, b""), line
            assert time.monotonic() - began < promised(ANSWER_S), line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_stops_its_nodes(tmp_path: Path, number: signal.Signals) -> None:
    shell = Shell(tmp_path)
    with started(shell, "demo --no-spark --out out") as demo:
        until(lambda: len(list(tmp_path.glob("out/cluster/node-*/pid"))) == 3)
        assert len(shell.processes()) == 3
        if number == signal.SIGINT:
            interrupt(demo)
        else:
            demo.terminate()
            demo.communicate(timeout=PATIENCE_S)
            assert demo.returncode == 128 + signal.SIGTERM
    assert shell.processes() == []
