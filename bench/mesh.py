"""How fast one node shouts to four others, beside zeromq-pyre doing the same in the same minutes.

Prints what is compared, a table, and one line of JSON. The machine may be busy with other things, so rounds of the two
take turns and the ratio of their medians is what counts. `bench/README.md` says more.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import logging
import multiprocessing as mp
import os
import random
import resource
import socket
import statistics
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
from chaplain.link.identity import Identity, new_instance
from chaplain.link.keyring import KeyRing
from chaplain.link.settings import LinkSettings
from chaplain.link.sockets import Sockets
from chaplain.mesh.events import JoinPool, Shout, Shouted
from chaplain.mesh.settings import MeshSettings
from chaplain.node.core import NodeCore, NodeInput, NodeSettings
from chaplain.runtime.assemble import SWITCH_INTERVAL_S
from chaplain.runtime.disk import Disk
from chaplain.runtime.host import Clock, Host
from chaplain.runtime.log import Log
from chaplain.runtime.storage import Storage

COMPARED = """\
Five processes on loopback, fully meshed: one shouts to a pool, four have joined it and check each number they hear.
chaplain  whole nodes, every command sealed (AES-256-GCM). A program in the node's process gives it Shout inputs and
          holds back while {queue_kib} KiB wait for any peer; the hearing program takes them where the desk would.
pyre      zeromq-pyre's shout() and recv(), nothing encrypted. It silently drops a peer whose queue is full, so the
          sender stays at most {window} messages ahead of the slowest receiver, which reports every {report} by WHISPER.
rate      messages that all four have / seconds from the first shout to the last arrival; median of the rounds
per CPU s the same messages / processor seconds of all five processes
lost      over all receivers and rounds; reported: of these, how many the receivers were told of
"""
HEARERS = 4
POOL = "bench"
QUEUE_BYTES = 1024 * 1024
BATCH = 128
"""Shouts in one wake-up of the sending node."""
WINDOW = 2000
REPORT_EVERY = 250
PATIENCE_S = 60.0
STALLED_S = 5.0
NUMBER_BYTES = 8


class Progress(NamedTuple):
    said: int
    """Messages shouted, or -1 while shouting."""
    heard: int
    reported: int
    """Losses that this process was told of since the round began."""
    first_s: float
    last_s: float
    cpu_s: float


class Round(NamedTuple):
    rate: float
    per_cpu_s: float
    sent: int
    lost: int
    reported: int


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def message(number: int, filler: bytes) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big") + filler


# chaplain.


class BenchNode(NodeCore):
    """A node with a program in its own process: it shouts when told to, and counts what it hears in the pool."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._mesh.send(self._hear, Shouted)
        self._joined = False
        self._filler = b""
        self._until_ns = 0
        self.begin(0, 0.0)

    def begin(self, size_bytes: int, seconds: float) -> None:
        self._said = self._heard_count = self._seen = self._next = 0
        self._first_s = self._last_s = time.monotonic()
        self._filler = bytes(max(0, size_bytes - NUMBER_BYTES))
        self._until_ns = self.now_ns + int(seconds * 1e9) if seconds else 0
        self._reported = self._told()

    def progress(self) -> Progress:
        said = -1 if self._until_ns else self._said
        return Progress(said, self._heard_count, self._told() - self._reported, self._first_s, self._last_s, cpu_s())

    def _told(self) -> int:
        return self.mesh.counts["gapped_incoming"]

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
            for number in range(self._said, self._said + BATCH):
                effects += super().step(now_ns, Shout(POOL, message(number, self._filler)))
            self._said += BATCH
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
        LinkSettings("bench", endpoints[index]),
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
        host = Host(node, sockets, Storage(Disk(folder)), Log(str(index), nowhere), clock=clock)
        threading.Thread(target=serve_node, args=(host, node, control), daemon=True).start()
        if profile:
            import cProfile  # noqa: PLC0415  only when asked for

            cProfile.runctx("host.run()", {}, {"host": host}, f"{profile}.{index}")
        else:
            host.run()
        host.close()


def serve_node(host: Host, node: BenchNode, control: Connection) -> None:
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
    """Where pyre looks for others: it would take the first real network card otherwise."""
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

    def _begin(self, size_bytes: int, seconds: float) -> None:
        self._said = self._heard = 0
        self._acks = dict.fromkeys(self._node.peers(), 0) if seconds else {}
        self._filler = bytes(max(0, size_bytes - NUMBER_BYTES))
        self._first_s = self._last_s = time.monotonic()
        self._until_s = self._first_s + seconds if seconds else 0.0

    def _progress(self) -> Progress:
        return Progress(-1 if self._until_s else self._said, self._heard, 0, self._first_s, self._last_s, cpu_s())

    def run(self, control: Connection) -> None:
        """One thread: orders, what came in, and as many shouts as the window allows."""
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


# Both.


class Cluster:
    """Five processes that obey the same few words."""

    def __init__(self, run: Callable[[int, list[int], Connection, str], None], profile: str = "") -> None:
        context = mp.get_context("spawn")
        ports = free_ports(HEARERS + 1)
        self._controls: list[Connection] = []
        self._processes = []
        for index in range(HEARERS + 1):
            ours, theirs = context.Pipe()
            process = context.Process(target=run, args=(index, ports, theirs, profile), daemon=True)
            process.start()
            self._controls.append(ours)
            self._processes.append(process)
        self._until(lambda: all(peers == HEARERS for peers in self._ask("peers")), "the nodes do not find each other")

    def _ask(self, *order: object) -> list[Any]:
        for control in self._controls:
            control.send(order)
        return [control.recv() for control in self._controls]

    def _until(self, done: Callable[[], bool], complaint: str) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not done():
            if time.monotonic() > give_up_s:
                raise SystemExit(complaint)
            time.sleep(0.05)

    def round(self, size_bytes: int, seconds: float) -> Round:
        """The first process shouts for so long; ends when all have heard it, or nothing comes any more."""
        for control in self._controls[1:]:
            control.send(("begin", size_bytes, 0.0))
            control.recv()
        before = sum(each.cpu_s for each in self._ask("progress"))
        self._controls[0].send(("begin", size_bytes, seconds))
        self._controls[0].recv()
        time.sleep(seconds)
        sender, hearers = self._settle()
        used_s = sum(each.cpu_s for each in (sender, *hearers)) - before
        whole = min(each.heard for each in hearers)
        took_s = max(each.last_s for each in hearers) - sender.first_s
        lost = sum(sender.said - each.heard for each in hearers)
        reported = sum(each.reported for each in hearers)
        return Round(whole / took_s, whole / used_s, sender.said, lost, reported)

    def _settle(self) -> tuple[Progress, list[Progress]]:
        heard, since_s = -1, time.monotonic()
        while True:
            sender, *hearers = self._ask("progress")
            if sender.said >= 0 and all(each.heard + each.reported >= sender.said for each in hearers):
                return sender, hearers
            now = sum(each.heard for each in hearers)
            if now != heard:
                heard, since_s = now, time.monotonic()
            elif sender.said >= 0 and time.monotonic() - since_s > STALLED_S:
                return sender, hearers
            time.sleep(0.05)

    def stop(self) -> None:
        for control in self._controls:
            control.send(("stop",))
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def summary(rounds: list[Round]) -> dict[str, float]:
    return {
        "rate": round(statistics.median(each.rate for each in rounds)),
        "per_cpu_s": round(statistics.median(each.per_cpu_s for each in rounds)),
        "sent": sum(each.sent for each in rounds),
        "lost": sum(each.lost for each in rounds),
        "reported": sum(each.reported for each in rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of shouting in each round")
    parser.add_argument("--rounds", type=int, default=3, help="of each system and size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024], help="bytes of a message")
    parser.add_argument("--alone", action="store_true", help="without pyre")
    parser.add_argument("--profile", default="", help="write each node's profile to this path, with its number")
    options = parser.parse_args()
    print(COMPARED.format(queue_kib=QUEUE_BYTES // 1024, window=WINDOW, report=REPORT_EVERY))
    systems = {"chaplain": Cluster(run_node, options.profile)}
    if not options.alone:
        systems["pyre"] = Cluster(run_pyre)
    results: dict[str, Any] = {"load": [round(each, 1) for each in os.getloadavg()], "sizes": {}}
    print(f"{'bytes':>6} {'system':<9} {'rate':>9} {'per CPU s':>10} {'sent':>9} {'lost':>6} {'reported':>8}  rounds")
    for size_bytes in options.sizes:
        rounds: dict[str, list[Round]] = {name: [] for name in systems}
        for _ in range(options.rounds):
            for name, cluster in systems.items():
                rounds[name].append(cluster.round(size_bytes, options.seconds))
        found = {name: summary(each) for name, each in rounds.items()}
        results["sizes"][str(size_bytes)] = found
        for name, each in found.items():
            rates = " ".join(f"{one.rate:.0f}" for one in rounds[name])
            print(
                f"{size_bytes:>6} {name:<9} {each['rate']:>9,} {each['per_cpu_s']:>10,} {each['sent']:>9,} "
                f"{each['lost']:>6} {each['reported']:>8}  {rates}"
            )
        if len(found) == 2:
            for key in ("rate", "per_cpu_s"):
                found["chaplain"][f"{key}_ratio"] = round(found["chaplain"][key] / max(1, found["pyre"][key]), 1)
            ours = found["chaplain"]
            print(f"{size_bytes:>6} ratio     {ours['rate_ratio']:>8}x {ours['per_cpu_s_ratio']:>9}x")
    for cluster in systems.values():
        cluster.stop()
    results["load_after"] = [round(each, 1) for each in os.getloadavg()]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
