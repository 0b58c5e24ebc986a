"""The programs that `sequence.py` runs in separate processes: a chaplain node and a PySyncObj node that publish.

Both execute the same commands of their parent: "ready", "begin", "result", "stop". Every event is one call with one
callback, which receives the event's number; at most `window` calls are in flight. A window of 1 measures latency.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from pysyncobj import SyncObj, SyncObjConf, replicated

from chaplain.core import Drained, HostEffect
from chaplain.gossip.settings import GossipSettings
from chaplain.link.auth.identity import Identity, new_instance
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.settings import LinkSettings
from chaplain.link.zmq.sockets import Sockets
from chaplain.mesh.settings import MeshSettings
from chaplain.node.core import NodeCore, NodeInput
from chaplain.node.settings import NodeSettings
from chaplain.runtime.disk.syscalls import DataDirectory
from chaplain.runtime.disk.writer import DiskWriter
from chaplain.runtime.event_loop import Clock, EventLoop
from chaplain.runtime.json_log import JsonLog
from chaplain.runtime.layers.node import SWITCH_INTERVAL_S
from chaplain.sequence.core import SequenceCore
from chaplain.sequence.events import Publish, Published, Unpublished
from chaplain.sequence.messages.peer import SequenceState
from chaplain.sequence.service import LayerEffect, SequenceLayer
from chaplain.sequence.settings import SequenceSettings
from chaplain.wire.parcel import Layer

PATIENCE_S = 60.0
STREAM = "bench"
BURST = 1000
"""The most calls in one iteration of the loop, so that publishing does not block the node's other work."""


class Result(NamedTuple):
    acked: int
    seconds: float
    """From the first call to the last callback."""
    cpu_s: float
    latencies_s: list[float]
    """The latency of each call, if the window is 1."""
    done: bool


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Load:
    """Makes calls for some time, with at most `window` calls in flight, and counts callbacks."""

    def __init__(self) -> None:
        self._round = 0
        self.begin(0, 0.0, 1)

    def begin(self, size_bytes: int, seconds: float, window: int) -> None:
        self._round += 1
        current = self._round

        def numbered(number: int) -> None:
            if current == self._round:  # a late callback belongs to an earlier round
                self._numbered(number)

        self._callback = numbered
        self._value = bytes(size_bytes)
        self._window = window
        self.sent = self.acked = 0
        self._cpu_s = cpu_s()
        self._first_s = self._last_s = self._called_s = time.perf_counter()
        self._until_s = self._first_s + seconds if seconds else 0.0
        self._latencies_s: list[float] = []

    @property
    def calls(self) -> bool:
        return self._until_s > 0

    def room(self) -> int:
        """Return how many calls may be made now."""
        if self._until_s and time.perf_counter() >= self._until_s:
            self._until_s = 0.0
        return min(BURST, self._window - (self.sent - self.acked)) if self._until_s else 0

    def call(self, publish: Callable[[bytes, Callable[[int], None]], None]) -> None:
        self.sent += 1
        if self._window == 1:
            self._called_s = time.perf_counter()
        publish(self._value, self._callback)

    def _numbered(self, number: int) -> None:
        assert number > 0
        self.acked += 1
        if self._window == 1:
            self._latencies_s.append(time.perf_counter() - self._called_s)

    def failed(self) -> None:
        self.sent -= 1

    def touch(self) -> None:
        self._last_s = time.perf_counter()

    def result(self) -> Result:
        done = not self._until_s and self.acked == self.sent
        return Result(self.acked, self._last_s - self._first_s, cpu_s() - self._cpu_s, self._latencies_s, done)


# chaplain.


class BenchLayer(SequenceLayer):
    """A sequence layer whose publisher runs in the same process."""

    def __init__(self, core: SequenceCore) -> None:
        super().__init__(core)
        self._calls: list[tuple[bytes, Callable[[int], None]]] = []
        self._open: dict[int, list[Callable[[int], None]]] = {}
        self._token = 0
        self.load = Load()

    def publish(self, value: bytes, callback: Callable[[int], None]) -> None:
        self._calls.append((value, callback))

    def taken(self) -> Publish | None:
        """Return all calls since the last time as one input."""
        if not self._calls:
            return None
        values, callbacks = zip(*self._calls, strict=True)
        self._calls = []
        self._token -= 1
        self._open[self._token] = list(callbacks)
        return Publish(self._token, STREAM, "bench", values)

    def _ended(self, effect: Published | Unpublished, out: list[LayerEffect]) -> None:
        if effect.token > 0:
            super()._ended(effect, out)
        elif isinstance(effect, Published):
            for number, callback in enumerate(self._open.pop(effect.token), effect.first):
                callback(number)
        else:
            for _ in self._open.pop(effect.token):
                self.load.failed()  # overload may put a node in ERR: the call is repeated, as for PySyncObj


class BenchNode(NodeCore):
    def __init__(self, layer: BenchLayer, *args: Any, **options: Any) -> None:
        super().__init__(*args, uppers={Layer.SEQUENCE: layer}, **options)
        self._receivers[Publish] = self._uppers[Layer.SEQUENCE]
        self.layer = layer
        self.load = layer.load
        self._seen = 0

    def deadline(self) -> int | None:
        return 0 if self.load.calls and self.load.room() else super().deadline()

    def step(self, now_ns: int, event: NodeInput) -> list[HostEffect]:
        load = self.load
        if not isinstance(event, Drained):
            return super().step(now_ns, event)
        effects = super().step(now_ns, event)
        if load.acked != self._seen:
            self._seen = load.acked
            load.touch()
        for _ in range(load.room()):
            load.call(self.layer.publish)
        taken = self.layer.taken()
        if taken is not None:
            effects += super().step(now_ns, taken)  # type: ignore[arg-type]
            effects += super().step(now_ns, event)
        return effects

    def working(self) -> bool:
        context = self.layer.core.context
        return context.state is SequenceState.WRK and len(context.log.members) == len(context.settings.listed) + 1


def make_node(index: int, endpoints: list[str], chance: random.Random, now_ns: int) -> BenchNode:
    identities = [Identity.generate(random.Random(number)) for number in range(len(endpoints))]
    own = identities[index].identifier
    listed = tuple(identity.identifier for identity in identities if identity.identifier != own)
    core = SequenceCore(SequenceSettings(own, listed=listed), chance, now_ns)
    settings = NodeSettings(
        LinkSettings("bench", endpoints[index]),
        MeshSettings(cluster="bench"),
        GossipSettings(),
        neighbours=tuple(endpoints[:index]),
    )
    ring = KeyRing(b"k" * 32)
    options = {"clients": {}, "rng": chance, "instance": new_instance(chance), "now_ns": now_ns}
    return BenchNode(BenchLayer(core), settings, identities[index], ring, **options)


def run_node(index: int, ports: list[int], control: Connection, profile: str) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    endpoints = [f"tcp://127.0.0.1:{port}" for port in ports]
    clock = Clock()
    node = make_node(index, endpoints, random.SystemRandom(), clock.now_ns())
    sockets = Sockets(node.link.instance, endpoints[index])
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        host = EventLoop(node, sockets, DiskWriter(DataDirectory(folder)), JsonLog(str(index), nowhere), clock=clock)
        threading.Thread(target=serve_node, args=(host, node, control), daemon=True).start()
        gc.freeze()  # as `run_node` does
        if profile:
            import cProfile  # noqa: PLC0415  only when asked for

            cProfile.runctx("host.run()", {}, {"host": host}, f"{profile}.{index}")
        else:
            host.run()
        host.close()


def serve_node(host: EventLoop, node: BenchNode, control: Connection) -> None:
    answers: dict[str, Callable[..., object]] = {
        "ready": node.working,
        "begin": node.load.begin,
        "result": node.load.result,
    }
    while (order := control.recv())[0] != "stop":
        control.send(host.ask(lambda: answers[order[0]](*order[1:]), PATIENCE_S))
    host.stop()


# PySyncObj.


class Numbering(SyncObj):  # type: ignore[misc]
    """Numbers values in memory."""

    def __init__(self, own: str, others: list[str], **options: Any) -> None:
        self.count = 0
        # Long time-outs, so that a slow machine does not look like a failed node.
        patient = {"raftMinTimeout": 3.0, "raftMaxTimeout": 4.0, "connectionTimeout": 10.0}
        conf = SyncObjConf(autoTick=False, commandsQueueSize=1_000_000, **patient, **options)
        super().__init__(own, others, conf)

    @replicated  # type: ignore[untyped-decorator]
    def append(self, value: bytes) -> int:
        self.count += 1
        return self.count


def run_pysyncobj(index: int, ports: list[int], control: Connection, profile: str, **options: Any) -> None:
    """Handle commands, calls and ticks in one thread.

    PySyncObj's own thread would tick every 50 ms, or compete with this one for the GIL.
    """
    addresses = [f"127.0.0.1:{port}" for port in ports]
    numbering = Numbering(addresses[index], addresses[:index] + addresses[index + 1 :], **options)
    load = Load()
    seen = 0
    gc.freeze()

    def publish(value: bytes, callback: Callable[[int], None]) -> None:
        def settled(number: int | None, failure: int) -> None:
            if number is None or failure:
                load.failed()  # its leader changed, or its queue was full: the call is repeated and not counted
            else:
                callback(number)

        numbering.append(value, callback=settled)

    while True:
        if control.poll():
            word, *arguments = control.recv()
            if word == "stop":
                break
            answers = {"ready": numbering.isReady, "begin": load.begin, "result": load.result}
            control.send(answers[word](*arguments))
        for _ in range(load.room()):
            load.call(publish)
        numbering.doTick(0.0 if load.room() else 0.002)
        if load.acked != seen:
            seen = load.acked
            load.touch()
    numbering.destroy()


def run_pysyncobj_batched(index: int, ports: list[int], control: Connection, profile: str) -> None:
    run_pysyncobj(index, ports, control, profile, appendEntriesUseBatch=True)


def run_pysyncobj_quick(index: int, ports: list[int], control: Connection, profile: str) -> None:
    """Run PySyncObj with a batch interval of 10 ms instead of 100 ms."""
    run_pysyncobj(index, ports, control, profile, appendEntriesUseBatch=True, appendEntriesPeriod=0.01)


def run_pysyncobj_single(index: int, ports: list[int], control: Connection, profile: str) -> None:
    run_pysyncobj(index, ports, control, profile, appendEntriesUseBatch=False)
