"""The client on systems that lack what Linux has, and without optional packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chaplain.cli.main import main
from chaplain.errors import ConfigError
from chaplain.link.zmq import poller
from chaplain.runtime.cluster.create import make_cluster
from chaplain.testing import Cluster

BARREN = """
import os, select, sys

absent = ("fcntl", "resource", "termios", "pwd", "pyarrow", "apsw", "prometheus_client", "rich", "click", "pandas")

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def audit(event, arguments):
    if event in ("open", "os.listdir") and str(arguments[0]).startswith("/proc"):
        raise RuntimeError(f"{arguments[0]} was opened")

sys.meta_path.insert(0, Absent())
sys.addaudithook(audit)
del select.epoll, os.eventfd
"""
PROGRAM = """
import chaplain
from chaplain import Client
with Client.connect(sys.argv[1]) as client:
    journal = client.journal(sys.argv[2])
    with journal.writer() as writer:
        for number in range(1000):
            writer.write(b"%d" % number)
    assert [message.value for message in journal.read()] == [b"%d" % number for number in range(1000)]
    client.sql(sys.argv[2]).execute("create table t (a)")
    with journal.consume("c", timeout=10) as consumer:
        next(consumer).ack()
    for act in (journal.to_arrow, lambda: client.journal("a", codec="arrow"), lambda: journal.cursor("cursor")):
        try:
            act()
        except chaplain.ConfigError as error:
            print(error)
"""


def test_client_works_without_epoll_fcntl_proc_and_optional_packages(
    chaplain_cluster: Cluster, chaplain_stream: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", BARREN + PROGRAM, str(chaplain_cluster.directory), chaplain_stream]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    missing = "pyarrow is not installed: pip install 'chaplain[tables]'\n"
    assert ran.stdout == 2 * missing + "this system cannot lock files: store the offset yourself, or use consume()\n"


def test_nodes_say_where_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(ConfigError, match="nodes run on Linux, not on darwin"):
        make_cluster(tmp_path / "c", 1, "none", None)
    assert not (tmp_path / "c").exists()
    with pytest.raises(SystemExit):
        main(["node", "run", "--config", str(tmp_path / "node.toml")])
    assert capsys.readouterr().err == (
        "chaplain: nodes run on Linux, not on darwin: here, connect to nodes on other machines\n"
    )


def test_async_client_says_that_a_system_without_a_pollable_descriptor_lacks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("selectors.DefaultSelector", poller.selectors.SelectSelector)
    poll = poller.PortablePoll()
    try:
        with pytest.raises(ConfigError, match="AsyncClient needs epoll or kqueue"):
            poll.fileno()
    finally:
        poll.close()
    poll.wake()


def test_portable_poll_wakes_and_calls_handlers_like_the_other() -> None:
    poll = poller.PortablePoll()
    try:
        poll.wake()
        poll.run(10)
        poll.run(0)
        for _ in range(1_000_000):
            poll.wake()
        poll.run(10)
    finally:
        poll.close()
