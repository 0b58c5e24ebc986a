"""The programs that `mesh.py` runs in separate processes: a chaplain node and a zeromq-pyre node.

Each either broadcasts or receives. Both execute the same commands of their parent: "peers", "begin", "progress",
"stop".
"""

from __future__ import annotations

import ipaddress
import logging
import os
import random
import resource
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import zmq
from pyre import Pyre, zbeacon

from chaplain.core import Drained, HostEffect
from chaplain.gossip.settings import GossipSettings
from chaplain.link.auth.identity import Identity, new_instance
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.settings import LinkSettings
from chaplain.link.zmq.sockets import Sockets
from chaplain.mesh.events import JoinPool, Shout, Shouted
from chaplain.mesh.settings import MeshSettings
from chaplain.node.core import NodeCore, NodeInput
from chaplain.node.settings import NodeSettings
from chaplain.runtime.disk.syscalls import DataDirectory
from chaplain.runtime.disk.writer import DiskWriter
from chaplain.runtime.event_loop import Clock, EventLoop
from chaplain.runtime.json_log import JsonLog
from chaplain.runtime.layers.node import SWITCH_INTERVAL_S

POOL = "bench"
QUEUE_BYTES = 1024 * 1024
BUDGET_BYTES = QUEUE_BYTES * 5 // 4
"""The bound of the link's send queue. Broadcasts beyond it are dropped and reported."""
BATCH = 128
"""Broadcasts in one iteration of the sending node."""
FLOOD_BATCH = 12_000
"""Broadcasts in one iteration of a flood: more than the send queue can contain."""
WINDOW = 2000
REPORT_EVERY = 250
PATIENCE_S = 60.0
NUMBER_BYTES = 8


class Progress(NamedTuple):
    said: int
    """Messages broadcast, or -1 while the broadcast runs."""
    heard: int
    reported: int
    """Commands of other nodes that were reported as lost since the round began."""
    dropped: int
    """Own commands that were reported as not sent."""
    first_s: float
    last_s: float
    cpu_s: float


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def message(number: int, filler: bytes) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big") + filler


# chaplain.


class BenchNode(NodeCore):
    """A node that broadcasts on command and counts the messages that it receives in the pool."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._mesh.route(self._hear, Shouted)
        self._joined = False
        self._filler = b""
        self._until_ns = 0
        self.begin(0, 0.0)

    def begin(self, size_bytes: int, seconds: float, flood: bool = False) -> None:
        self._said = self._heard_count = self._seen = self._next = 0
        self._first_s = self._last_s = time.monotonic()
        self._filler = bytes(max(0, size_bytes - NUMBER_BYTES))
        self._until_ns = self.now_ns + int(seconds * 1e9) if seconds else 0
        self._batch = FLOOD_BATCH if flood else BATCH
        self._before = self._told()

    def progress(self) -> Progress:
        said = -1 if self._until_ns else self._said
        reported, dropped = (now - before for now, before in zip(self._told(), self._before, strict=True))
        return Progress(said, self._heard_count, reported, dropped, self._first_s, self._last_s, cpu_s())

    def _told(self) -> tuple[int, int]:
        return self.mesh.counts["gapped_incoming"], self.mesh.counts["gapped_outgoing"]

    def _hear(self, event: Shouted) -> None:
        number = int.from_bytes(event.content[:NUMBER_BYTES], "big")
        assert number >= self._next, "heard twice or out of order"
        self._next = number + 1
        self._heard_count += 1

    def _may_shout(self) -> bool:
        return bool(self._until_ns) and self.link.longest_queue_bytes < QUEUE_BYTES

    def deadline(self) -> int | None:
        return 0 if self._may_shout() else super().deadline()

    def step(self, now_ns: int, event: NodeInput) -> list[HostEffect]:
        effects = super().step(now_ns, event) if self._joined else super().step(now_ns, JoinPool(POOL))
        self._joined = True
        if not isinstance(event, Drained):
            return effects
        if self._heard_count != self._seen:
            self._seen, self._last_s = self._heard_count, time.monotonic()
        if now_ns >= self._until_ns:
            self._until_ns = 0
        if self._may_shout():
            for number in range(self._said, self._said + self._batch):
                effects += super().step(now_ns, Shout(POOL, message(number, self._filler)))
            self._said += self._batch
            effects += super().step(now_ns, event)
        return effects


def run_node(index: int, ports: list[int], control: Connection, profile: str) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    identities = [Identity.generate(random.Random(number)) for number in range(len(ports))]
    endpoints = [f"tcp://127.0.0.1:{port}" for port in ports]
    chance = random.SystemRandom()
    instance = new_instance(chance)
    sockets = Sockets(instance, endpoints[index])
    clock = Clock()
    settings = NodeSettings(
        LinkSettings("bench", endpoints[index], queue_bytes_max=BUDGET_BYTES),
        MeshSettings(cluster="bench"),
        GossipSettings(),
        neighbours=tuple(endpoints[:index]),
        node_ids={identity.identifier: number for number, identity in enumerate(identities)},
    )
    ring = KeyRing(b"k" * 32)
    node = BenchNode(
        settings, identities[index], ring, clients={}, rng=chance, instance=instance, now_ns=clock.now_ns()
    )
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        host = EventLoop(node, sockets, DiskWriter(DataDirectory(folder)), JsonLog(str(index), nowhere), clock=clock)
        threading.Thread(target=serve_node, args=(host, node, control), daemon=True).start()
        if profile:
            import cProfile  # noqa: PLC0415  only when asked for

            cProfile.runctx("host.run()", {}, {"host": host}, f"{profile}.{index}")
        else:
            host.run()
        host.close()


def serve_node(host: EventLoop, node: BenchNode, control: Connection) -> None:
    answers: dict[str, Callable[..., object]] = {
        "peers": lambda: len(node.mesh.members(POOL)),
        "begin": node.begin,
        "progress": node.progress,
    }
    while (order := control.recv())[0] != "stop":
        control.send(host.ask(lambda: answers[order[0]](*order[1:]), PATIENCE_S))
    host.stop()


# pyre.


def beacon_on_loopback(beacon: Any) -> None:
    """Make pyre's beacon use the loopback interface instead of the first network card."""
    beacon.address = ipaddress.IPv4Address("127.0.0.1")
    beacon.network_address = ipaddress.IPv4Address("127.0.0.0")
    beacon.broadcast_address = ipaddress.IPv4Address("127.255.255.255")
    beacon.interface_name = "lo"


class PyreProgram:
    def __init__(self) -> None:
        zbeacon.ZBeacon._prepare_socket = beacon_on_loopback
        logging.disable(logging.CRITICAL)
        self._node = Pyre()
        self._node.join(POOL)
        self._node.start()
        self._acks: dict[uuid.UUID, int] = {}
        self._stop = False
        self._until_s = 0.0
        self._filler = b""
        self._begin(0, 0.0)

    def _begin(self, size_bytes: int, seconds: float, _flood: bool = False) -> None:
        self._said = self._heard = 0
        self._acks = dict.fromkeys(self._node.peers(), 0) if seconds else {}
        self._filler = bytes(max(0, size_bytes - NUMBER_BYTES))
        self._first_s = self._last_s = time.monotonic()
        self._until_s = self._first_s + seconds if seconds else 0.0

    def _progress(self) -> Progress:
        said = -1 if self._until_s else self._said
        return Progress(said, self._heard, 0, 0, self._first_s, self._last_s, cpu_s())

    def run(self, control: Connection) -> None:
        """Handle commands and received messages, and broadcast as much as the window allows, in one thread."""
        inbox = self._node.inbox
        poller = zmq.Poller()
        poller.register(inbox, zmq.POLLIN)
        poller.register(control.fileno(), zmq.POLLIN)
        while not self._stop:
            ready = dict(poller.poll(0 if self._may_shout() else 200))
            if control.fileno() in ready:
                self._obey(control)
            if inbox in ready:
                self._drain(inbox)
            if self._until_s and time.monotonic() >= self._until_s:
                self._until_s = 0.0
            if self._may_shout():
                for number in range(self._said, self._said + 50):
                    self._node.shout(POOL, message(number, self._filler))
                self._said += 50
        self._node.stop()

    def _may_shout(self) -> bool:
        return bool(self._until_s) and self._said - min(self._acks.values()) < WINDOW

    def _drain(self, inbox: zmq.Socket[bytes]) -> None:
        for _ in range(1000):
            try:
                parts = inbox.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if parts[0] == b"SHOUT":
                self._hear(parts)
            elif parts[0] == b"WHISPER":
                self._acks[uuid.UUID(bytes=parts[1])] = int(parts[3])

    def _hear(self, parts: list[bytes]) -> None:
        number = int.from_bytes(parts[4][:NUMBER_BYTES], "big")
        self._heard += 1
        self._last_s = time.monotonic()
        if number % REPORT_EVERY == 0:
            self._node.whisper(uuid.UUID(bytes=parts[1]), b"%d" % number)

    def _obey(self, control: Connection) -> None:
        word, *arguments = control.recv()
        if word == "stop":
            self._stop = True
        elif word == "peers":
            control.send(len(self._node.peers_by_group(POOL)))
        elif word == "begin":
            control.send(self._begin(*arguments))
        elif word == "progress":
            control.send(self._progress())


def run_pyre(index: int, ports: list[int], control: Connection, profile: str) -> None:
    PyreProgram().run(control)
