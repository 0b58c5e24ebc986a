"""Machines made of network namespaces: one for each node, and one that holds the bridge between them.

Nothing of it is visible outside: addresses, links and packet filters live in the namespaces and go with them. Needs
root, `ip` and `nft`; `missing()` says what is not there and how to get it.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from chaplain.config import CLUSTER_FILE, NODE_FILE
from tests.support.process_cluster import Cluster, founded

HOW = "`apt-get install iproute2 nftables`, and run as root"
PORT = 7400
_CLONE_NEWNET = 0x40000000
_numbers = itertools.count(1)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


@cache
def missing() -> str:
    """Why there can be no namespaces here; empty if there can."""
    if os.geteuid() != 0:
        return f"network namespaces need root: {HOW}"
    for tool in ("ip", "nft"):
        if shutil.which(tool) is None:
            return f"{tool} is missing: {HOW}"
    try:
        with Wires(1) as wires:
            wires.cut([1], [1])
    except (AssertionError, OSError) as error:
        return f"network namespaces do not work here ({error}): {HOW}"
    return ""


class Wires:
    """So many machines on one bridge."""

    def __init__(self, count: int) -> None:
        made = f"chaplain-{os.getpid()}-{next(_numbers)}"
        self._hub = f"{made}-hub"
        self._names = {number: f"{made}-{number}" for number in range(1, count + 1)}

    def __enter__(self) -> Wires:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _build(self) -> None:
        run("ip", "netns", "add", self._hub)
        run("ip", "-n", self._hub, "link", "add", "hub", "type", "bridge")
        run("ip", "-n", self._hub, "link", "set", "hub", "up")
        for number, name in self._names.items():
            port = f"port{number}"
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "add", "wire", "type", "veth", "peer", "name", port, "netns", self._hub)
            run("ip", "-n", self._hub, "link", "set", port, "master", "hub", "up")
            run("ip", "-n", name, "address", "add", f"{self.address(number)}/24", "dev", "wire")
            run("ip", "-n", name, "link", "set", "wire", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for name in (*self._names.values(), self._hub):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=30, check=False)

    def address(self, number: int) -> str:
        return f"10.213.77.{number}"

    def prefix(self, number: int) -> tuple[str, ...]:
        """What to put before a command that shall run there."""
        return ("ip", "netns", "exec", self._names[number])

    # Cutting.

    def cut(self, senders: Sequence[int], receivers: Sequence[int]) -> None:
        """From now on nothing from these senders reaches these receivers."""
        sources = ", ".join(self.address(sender) for sender in senders)
        for receiver in receivers:
            rules = f"""
                table inet chaplain {{
                    chain incoming {{
                        type filter hook input priority 0; policy accept;
                        ip saddr {{ {sources} }} drop
                    }}
                }}"""
            run(*self.prefix(receiver), "nft", rules)

    def split(self, one: Sequence[int], other: Sequence[int]) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        for number in self._names:
            run(*self.prefix(number), "nft", "flush ruleset")

    @contextlib.contextmanager
    def inside(self, number: int) -> Iterator[None]:
        """This thread, and the sockets and threads it makes meanwhile, are on that machine."""
        libc = ctypes.CDLL(None, use_errno=True)
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        away = os.open(f"/run/netns/{self._names[number]}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            assert libc.setns(away, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(home, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        finally:
            os.close(home)
            os.close(away)


@contextlib.contextmanager
def wired(directory: Path, count: int, settings: str = "") -> Iterator[tuple[Cluster, Wires]]:
    """A started cluster with one node on each machine, all met."""
    with Wires(count) as wires:

        def move(made: Path) -> None:
            """From ports of this machine to addresses of those."""
            texts = [made / CLUSTER_FILE, *(made / f"node-{number}" / NODE_FILE for number in range(1, count + 1))]
            for number, endpoint in enumerate(_endpoints(made), 1):
                for text in texts:
                    there = f"tcp://{wires.address(number)}:{PORT}"
                    text.write_text(text.read_text().replace(endpoint, there))

        prefixes = {number: wires.prefix(number) for number in range(1, count + 1)}
        with founded(directory, count, one_door=True, settings=settings, prefixes=prefixes, change=move) as cluster:
            for node in cluster:
                node.inside = lambda number=node.number: wires.inside(number)
            cluster.start()
            cluster.wait_until_whole()
            yield cluster, wires


def _endpoints(directory: Path) -> list[str]:
    return [node.endpoint for node in Cluster(directory).file.nodes]
