"""Sessions are bounded by what the process may have open, and what finds nothing left is done later."""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest

from chaplain.clock import Clock
from chaplain.core import Dial, Disconnected
from chaplain.graph.events import EventsRead, ReadEvents
from chaplain.link.settings import SESSIONS_MAX
from chaplain.link.zmq.sockets import Sockets
from chaplain.runtime import fd_limits
from chaplain.runtime.disk.syscalls import DataDirectory
from chaplain.runtime.disk.writer import DiskWriter
from chaplain.runtime.event_loop import BackgroundTasks, EventLoop
from chaplain.runtime.fd_limits import NoDescriptors
from chaplain.runtime.json_log import JsonLog
from chaplain.runtime.layers.graph import graph_tasks
from chaplain.runtime.worker_pool import WorkerPool
from tests.support.toy_core import ToyCore

PATIENCE_S = 20


@contextmanager
def none_left() -> Iterator[None]:
    """What is open stays open; nothing more is opened."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("allowed", "sessions"),
    [(resource.RLIM_INFINITY, SESSIONS_MAX), (1 << 20, SESSIONS_MAX), (1024, 288), (200, fd_limits.SESSIONS_MIN)],
)
def test_session_limit_follows_from_file_descriptors(monkeypatch, allowed, sessions):
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (allowed, allowed))
    assert fd_limits.sessions_for(strangers=192) == sessions


def test_descriptor_limit_is_raised_to_the_maximum():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 512), before[1]))
        fd_limits.raise_fd_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_failed_open_for_lack_of_descriptors_is_recognized(tmp_path: Path):
    read = fd_limits.retry_when_exhausted(lambda path: path.read_bytes())
    (tmp_path / "there").write_bytes(b"here")
    with none_left(), pytest.raises(NoDescriptors):
        read(tmp_path / "there")
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nowhere")
    assert read(tmp_path / "there") == b"here"


def answers(labour: WorkerPool[str], count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        assert select.select([labour.fd], [], [], PATIENCE_S)[0], "nothing came"
        found += labour.completed()
    return found


def test_work_without_a_descriptor_is_repeated_later():
    tries = iter((errno.EMFILE, errno.ENFILE, 0))

    @fd_limits.retry_when_exhausted
    def read(wanted: str) -> str:
        if code := next(tries):
            raise OSError(code, os.strerror(code))
        return wanted

    labour: WorkerPool[str] = WorkerPool(threads=1)
    try:
        labour.submit(lambda: read("read at last"))
        labour.submit(lambda: "checked meanwhile")
        assert answers(labour, 2) == ["checked meanwhile", "read at last"]
        assert labour.counts["worker_waits_for_descriptors"] == 2
    finally:
        labour.close()


def test_other_failures_still_stop_the_node():
    @fd_limits.retry_when_exhausted
    def read(_wanted: str) -> str:
        raise OSError(errno.EIO, "the disk is broken")

    labour: WorkerPool[str] = WorkerPool(threads=1)
    try:
        labour.submit(lambda: read(""))
        with pytest.raises(OSError, match="broken"):
            answers(labour, 1)
    finally:
        labour.close()


def test_node_without_descriptors_reads_later_and_reports_it(tmp_path: Path):
    (tmp_path / "segments").mkdir()
    tasks = BackgroundTasks(graph_tasks(tmp_path / "segments"))
    lines, clock = StringIO(), Clock()
    storage = DiskWriter(DataDirectory(str(tmp_path)))
    host = EventLoop(
        ToyCore(clock.now_ns()), Sockets(b"h" * 16), storage, JsonLog("toy", lines), clock=clock, background_tasks=tasks
    )
    [labour] = tasks.pools
    with none_left():
        tasks.run(ReadEvents(7, ()))
        until = threading.Event()
        while not labour.counts["worker_waits_for_descriptors"]:
            until.wait(0.01)
        host._run_once()
    assert select.select([labour.fd], [], [], PATIENCE_S)[0]
    assert labour.completed() == [EventsRead(7, ())]
    assert [json.loads(line)["event"] for line in lines.getvalue().splitlines()] == ["no descriptors left"]
    assert host.measures()[0]["worker_waits_for_descriptors"] >= 1
    host.close()


def test_dial_without_a_descriptor_is_repeated_later():
    sockets = Sockets(b"h" * 16)
    try:
        with none_left():
            sockets.perform(Dial(1, "tcp://127.0.0.1:1", b"name", b"proof"))
        [lost] = sockets.wait(0)
        assert isinstance(lost, Disconnected)
        assert "Too many open files" in lost.reason
    finally:
        sockets.close()
