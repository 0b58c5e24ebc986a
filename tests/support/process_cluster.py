"""Real clusters for tests: nodes as processes of their own, watched through their logs, `/status` and `/metrics`.

What a node saw is read from the time stamps of its own log, so that a busy machine delays the test and not the measure.
Every process is ended by its own number when the `with` block is left, however it is left.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from chaplain.config import NODE_FILE, ClusterFile, load_cluster
from chaplain.errors import ConfigError
from chaplain.runtime.cluster.create import NodeSplit, make_cluster
from chaplain.runtime.cluster.probe import get_status, is_ready

PATIENCE_S = 60.0
POLL_S = 0.1
"""Between looks at what is waited for: each costs processor time, of the node that is asked, too."""
WATCH_S = 0.02
"""Between looks at what must hold throughout."""
MOMENT_S = 0.002
"""Between looks at the clock, where something is to happen at a random moment."""
SILENCE_S = 5.0
"""T, where a test does not set another: the default of `gossip.silence_seconds`."""
PORTS = range(30_000, 32_700, 20)
"""Each the first of twenty: between those that `cluster up` chooses and those that the kernel gives away."""
PROGRAM = (sys.executable, "-m", "chaplain.cli.main")
MEASURED = "CHAPLAIN_TESTS_MEASURE"
"""Set where nothing else runs beside the cluster, so that how long something takes says something about it."""
SLOW_MACHINE_S = 30.0


def promised(limit_s: float) -> float:
    """How long something may take. The product's promise is for a machine of its own, and campaigns hold it to that; in
    the suite other tests run beside, and what is asked is that it comes about.
    """
    return limit_s if os.environ.get(MEASURED) else limit_s + SLOW_MACHINE_S


def until(holds: Callable[[], bool], what: str, limit_s: float = PATIENCE_S, poll_s: float = POLL_S) -> None:
    """Wait for a condition; the limit is patience with the machine, not a promise of the product."""
    end_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end_s, f"waited {limit_s:g} s in vain: {what}"
        time.sleep(poll_s)


def throughout(seconds: float, holds: Callable[[], bool], what: str) -> None:
    """A condition that must hold for so long, looked at again and again."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        assert holds(), what
        time.sleep(WATCH_S)


METRICS_AGE_S = 1.1
"""A node renders its metrics at most once a second."""


class Change(NamedTuple):
    """A line of a node's log: what it came to think of a member."""

    at_s: float
    peer: int
    state: str
    was: str


class Node:
    """One process at a time, and what it leaves behind."""

    def __init__(self, number: int, folder: Path, http: str, prefix: Sequence[str]) -> None:
        self.number = number
        self.folder = folder
        self.http = http
        self._prefix = tuple(prefix)
        self.process: subprocess.Popen[bytes] | None = None
        self.inside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        """Where to ask it from: another network namespace, perhaps."""

    def __repr__(self) -> str:
        return f"node {self.number}"

    # Its process.

    def start(self) -> None:
        assert self.process is None, f"{self} runs"
        command = [*self._prefix, *PROGRAM, "node", "run", "--config", str(self.folder / NODE_FILE)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def signal(self, number: signal.Signals) -> float:
        """Send it; when, as the logs count time."""
        assert self.process is not None, f"{self} does not run"
        now_s = time.time()
        self.process.send_signal(number)
        return now_s

    def kill(self) -> float:
        return self._end(signal.SIGKILL)

    def stop(self) -> float:
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> float:
        now_s = self.signal(number)
        assert self.process is not None
        try:
            self.process.wait(PATIENCE_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.process = None
        return now_s

    def check(self) -> None:
        """A node that ended by itself is a failure wherever it happens."""
        code = None if self.process is None else self.process.poll()
        assert code is None, f"{self} ended with {code}: {self.text()[-2000:]}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def memory_kib(self, name: str = "VmRSS") -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
        raise AssertionError(f"{self} has no {name}")

    # What it says.

    def ready(self) -> bool:
        self.check()
        with self.inside():
            return self.process is not None and is_ready(self.http)

    def members(self) -> dict[int, str]:
        """Its own view: state by node id. Empty while it gives no answer."""
        with self.inside():
            status = get_status(self.http) or {}
        listed = status.get("member_list", [])
        assert isinstance(listed, list)
        return {member["id"]: member["state"] for member in listed}

    def metrics(self) -> dict[str, float]:
        """Counters and gauges by name, without `chaplain_` and `_total`."""
        pages: list[str] = []
        until(lambda: self._page(pages), f"{self} tells its metrics")
        lines = pages[0].splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("chaplain_")]
        return {name.removeprefix("chaplain_").removesuffix("_total"): float(value) for name, value in pairs}

    def _page(self, pages: list[str]) -> bool:
        """Whether it told them now; a node whose loop has no time for two seconds says so instead."""
        self.check()
        address = f"http://{self.http}/metrics"
        with contextlib.suppress(OSError), self.inside(), urllib.request.urlopen(address, timeout=10) as answer:
            pages.append(answer.read().decode())
        return bool(pages)

    def count(self, name: str) -> int:
        time.sleep(METRICS_AGE_S)  # so that whatever happened before the call is in the page
        return int(self.metrics().get(name, 0))

    def text(self) -> str:
        log = self.folder / "log"
        return log.read_text(errors="replace") if log.exists() else ""

    def lines(self, event: str, since_s: float = 0.0) -> list[dict]:
        """Its log's lines of one event, each with `at_s`."""
        found = []
        for line in self.text().splitlines(keepends=True):
            if f'"event": "{event}"' in line and line.endswith("\n"):
                parsed = json.loads(line)
                parsed["at_s"] = datetime.datetime.fromisoformat(parsed["time"]).timestamp()
                if parsed["at_s"] >= since_s - 0.001:  # the log's stamps are cut to milliseconds
                    found.append(parsed)
        return found

    def changes(self, since_s: float = 0.0) -> list[Change]:
        found = [line for line in self.lines("member", since_s) if line["peer"].isdigit()]
        return [Change(line["at_s"], int(line["peer"]), line["state"], line["was"]) for line in found]

    def when(self, peer: int, state: str, since_s: float) -> float | None:
        """When it first came to think this of a peer, since then."""
        return next(
            (c.at_s for c in self.changes(since_s) if (c.peer, c.state) == (peer, state) and c.was != state), None
        )


class Cluster:
    """Nodes 1 to n. Made, started and ended by `running`."""

    def __init__(self, directory: Path, prefixes: Mapping[int, Sequence[str]] | None = None) -> None:
        self.directory = directory
        self.file: ClusterFile = load_cluster(directory)
        self.nodes = {
            node.id: Node(node.id, directory / f"node-{node.id}", node.http, (prefixes or {}).get(node.id, ()))
            for node in self.file.nodes
        }

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def others(self, *numbers: int) -> list[Node]:
        return [node for node in self if node.number not in numbers]

    def endpoint(self, number: int) -> str:
        return next(node.endpoint for node in self.file.nodes if node.id == number)

    def start(self) -> None:
        for node in self:
            node.start()

    def wait_until_whole(self) -> None:
        """Every node serves and holds every node for alive."""
        everyone = dict.fromkeys(self.nodes, "alive")
        until(lambda: all(node.ready() for node in self), "every node serves")
        until(lambda: all(node.members() == everyone for node in self), "every node holds every node for alive")

    def ever_left(self, since_s: float = 0.0, *, but: Sequence[int] = ()) -> list[tuple[int, Change]]:
        """Who was held for gone, by whom, other than those."""
        return [
            (node.number, change)
            for node in self
            for change in node.changes(since_s)
            if change.state == "left" and change.peer not in but
        ]

    def end(self) -> None:
        """By force: nothing that a test made may outlive it."""
        for node in self:
            if node.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    node.process.kill()
                node.process.wait()
                node.process = None


@contextlib.contextmanager
def founded(
    directory: Path,
    count: int,
    *,
    one_door: bool = False,
    settings: str = "",
    prefixes: Mapping[int, Sequence[str]] | None = None,
    change: Callable[[Path], None] | None = None,
    split: NodeSplit = NodeSplit(),  # noqa: B008 frozen
) -> Iterator[Cluster]:
    """A cluster that is not started yet. With `one_door` every node knows but node 1, and that one nobody.

    `settings` goes behind each node's file, so it must begin with a table, such as `[gossip]`.
    """
    with found(directory, count, split):
        _adjust(directory, count, one_door, settings)
        if change is not None:
            change(directory)
        cluster = Cluster(directory, prefixes)
        try:
            yield cluster
        finally:
            cluster.end()


def _adjust(directory: Path, count: int, one_door: bool, settings: str) -> None:
    for number in range(1, count + 1):
        file = directory / f"node-{number}" / NODE_FILE
        lines = file.read_text().splitlines()
        if one_door:
            door = [] if number == 1 else [load_cluster(directory).nodes[0].endpoint]
            lines = [f"neighbours = {json.dumps(door)}" if line.startswith("neighbours") else line for line in lines]
        file.write_text("\n".join(lines) + f"\n{settings}\n")


@contextlib.contextmanager
def found(directory: Path, count: int, split: NodeSplit = NodeSplit()) -> Iterator[None]:  # noqa: B008 frozen
    """Make a cluster on ports that no other test takes meanwhile: a port found free may be gone at the next restart."""
    folder = Path(tempfile.gettempdir()) / "chaplain-test-ports"
    folder.mkdir(exist_ok=True)
    for base in random.SystemRandom().sample(PORTS, len(PORTS)):
        with (folder / str(base)).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                make_cluster(directory, count, "sqlite", base, split)
            except (BlockingIOError, ConfigError):
                continue
            yield
            return
    raise AssertionError("no block of free ports was found")


@contextlib.contextmanager
def running(directory: Path, count: int, **how: object) -> Iterator[Cluster]:
    """A cluster whose nodes have all met."""
    with founded(directory, count, **how) as cluster:  # type: ignore[arg-type]
        cluster.start()
        cluster.wait_until_whole()
        yield cluster


@contextlib.contextmanager
def process(*arguments: str, wait_for: str = "ready") -> Iterator[subprocess.Popen[str]]:
    """A helper of ours, as `python -m …`; it says so when it is ready."""
    started = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        if wait_for:
            line = started.stdout.readline().strip()
            assert line == wait_for, f"{arguments} said {line!r}"
        yield started
    finally:
        started.kill()
        started.communicate()


def shell(*arguments: str | Path, prefix: Sequence[str] = (), code: int = 0, **environment: str) -> str:
    """The command line, as a shell runs it; what it printed."""
    done = subprocess.run(
        [*prefix, *PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == code, f"{arguments}: {done.returncode}, {done.stderr}{done.stdout}"
    return done.stdout if code == 0 else done.stderr
