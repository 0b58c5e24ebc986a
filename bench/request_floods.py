"""Measures how much a client that floods the nodes with requests slows down another client that writes.

For each kind of request that a client may send, and for each page that HTTP serves: the rate and the latency of an
honest writer (one write after the other, 100 bytes), alone and then beside a flood of that request. The flood is one
process at nice 10 with a session with each of three nodes and `--calls` calls open on each; its client has rights to
streams of its own and to one large stream, and to nothing else.

The rows `idle` and `burn` are controls: a process at nice 10 that does nothing, and one that only uses a processor. On
a machine with few processors the flood's own process takes time from the nodes; compare a row with `burn` to see the
part that is the nodes' own.

Goals for each row: the writer keeps at least half of its rate, no new regime begins, and no node grows by more than
64 MiB. Prints a table and a line of JSON; exits with 1 if a goal was missed, unless `--report`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from chaplain import AsyncClient, Client
from chaplain.client.api import consumer_calls
from chaplain.config import load_cluster
from chaplain.errors import ChaplainError
from chaplain.journal.messages.consumer import (
    COMMANDS_MAX,
    NONCE_BYTES,
    SLOTS_MAX,
    UNDELIVERED,
    Acknowledge,
    Command,
    Fetch,
    Join,
    Mode,
    Remove,
    Return,
)
from chaplain.proofs.tiles import TILE_HASHES, bundle_path
from support.journal_clusters import ChaplainCluster, until

MIB = 1 << 20
GROWTH_BYTES_MAX = 64 * MIB
RATE_PART_MIN = 0.5
HONEST, LARGE, OWN = "honest", "large", "flood"
VALUE = bytes(100)
SETTLE_S = 1.0
KEYED, QUEUE = "keyed", "queue"
KEYED_COUNT, KEYED_WORKERS, LEASE_MS = 64, 16, 3_600_000
HTTP_THREADS = 6
SILENT_PER_SECOND = 1500

Call = Callable[[AsyncClient, int], Awaitable[object]]


async def _pool(client: AsyncClient, number: int) -> None:
    pool = client.pool(f"{OWN}-{number % 16}")
    await pool.join()
    await pool.leave()


async def _read_old(client: AsyncClient, number: int) -> None:
    async with client.journal(LARGE).read(start=number % 100, stop=number % 100 + 1) as reader:
        async for _ in reader:
            pass


async def _read_all(client: AsyncClient, number: int) -> None:
    async with client.journal(LARGE).read(start=0) as reader:
        async for _ in reader.portions():
            pass


async def _listen(client: AsyncClient, number: int) -> None:
    async with client.events():
        await client.fire(OWN, VALUE)


async def _read_graph(client: AsyncClient, number: int) -> None:
    async for _ in client.graph(OWN).read():
        pass


async def _read_sequence(client: AsyncClient, number: int) -> None:
    async for _ in client.sequence(OWN).read(start=1, stop=50):
        pass


async def _lease(client: AsyncClient, number: int) -> None:
    async with client.journal(OWN).writer() as writer:
        await writer.write(VALUE)


async def _tell(client: AsyncClient, *commands: Command) -> None:
    await client._context.run(consumer_calls.tell(OWN, commands))


_TOKENS: dict[str, int] = {}


async def _token(client: AsyncClient, name: str) -> int:
    """The token of the consumer's first worker, which `prepare_consumers` added."""
    if name not in _TOKENS:
        _TOKENS[name] = (await client.consumer(OWN, name))["members"][0]["token"]
    return _TOKENS[name]


def _join_of(name: str, mode: Mode) -> Join:
    slots = {Mode.SINGLE: 1, Mode.KEYED: SLOTS_MAX, Mode.QUEUE: 0}[mode]
    return Join(name, os.urandom(NONCE_BYTES), mode, slots, LEASE_MS)


async def _join(client: AsyncClient, number: int) -> None:
    name = f"x{number % 64}"
    await _tell(client, _join_of(name, Mode.SINGLE), Remove(name))


async def _join_often(client: AsyncClient, number: int) -> None:
    name = f"y{number % 64}"
    await _tell(client, *[_join_of(name, Mode.KEYED), Remove(name)] * (COMMANDS_MAX // 2))


async def _acknowledge(client: AsyncClient, number: int) -> None:
    await _tell(client, Acknowledge(KEYED, await _token(client, KEYED), 1 << 32, number % 8))


async def _acknowledge_often(client: AsyncClient, number: int) -> None:
    command = Acknowledge(KEYED, await _token(client, KEYED), 1 << 32, number % 8)
    await _tell(client, *[command] * COMMANDS_MAX)


async def _fetch(client: AsyncClient, number: int) -> None:
    token, offset = await _token(client, QUEUE), number % 8
    again = Return(QUEUE, token, 0, UNDELIVERED, ((offset, offset),))
    await _tell(client, again, Fetch(QUEUE, token, 8))


async def _work(client: AsyncClient, number: int) -> None:
    async with client.journal(OWN).consume(f"w{number % 16}", mode="queue", timeout=5) as consumer:
        async for message in consumer:
            await message.ack()
            return


async def _transaction(client: AsyncClient, number: int) -> None:
    await client.sql(OWN).transaction(["INSERT INTO t VALUES (1)"] * 1000)


async def _write_much(client: AsyncClient, number: int) -> None:
    await client.journal(OWN).write_many([VALUE] * 5000)


CALLS: dict[str, Call] = {
    "ping": lambda client, number: client.ping(),
    "status": lambda client, number: client.status(),
    "members": lambda client, number: client.members(),
    "ask": lambda client, number: client.ask("members", timeout=2),
    "fire": lambda client, number: client.fire(OWN, VALUE),
    "fire and wait": lambda client, number: client.fire(OWN, VALUE, acknowledge=True, timeout=2),
    "listen to events": _listen,
    "join a pool": _pool,
    "broadcast": lambda client, number: client.pool(OWN).broadcast(VALUE),
    "broadcast 64 KiB": lambda client, number: client.pool(OWN).broadcast(bytes(1 << 16)),
    "streams": lambda client, number: client.streams(),
    "nodes": lambda client, number: client.nodes(),
    "clients (refused)": lambda client, number: client.clients(),
    "add a client (refused)": lambda client, number: client.add_client(f"x{number}", os.urandom(32)),
    "resolve": lambda client, number: client.resolve((1 + number % 64, 1)),
    "write": lambda client, number: client.journal(OWN).write(VALUE),
    "write 64 KiB": lambda client, number: client.journal(OWN).write(bytes(1 << 16)),
    "write 1 MiB": lambda client, number: client.journal(OWN).write(bytes(1 << 20)),
    "write 5,000": _write_much,
    "write (refused)": lambda client, number: client.journal(HONEST).write(VALUE),
    "lease and write": _lease,
    "read an old offset": _read_old,
    "read all": _read_all,
    "read (refused)": lambda client, number: client.journal(HONEST).to_arrow(0, 1),
    "append to a graph": lambda client, number: client.graph(OWN).append(VALUE),
    "read a graph": _read_graph,
    "publish": lambda client, number: client.sequence(OWN).publish(VALUE),
    "read a sequence": _read_sequence,
    "query": lambda client, number: client.sql(OWN).query("SELECT count(*) FROM t"),
    "query locally": lambda client, number: client.sql(OWN).query("SELECT count(*) FROM t", local=True),
    "execute": lambda client, number: client.sql(OWN).execute("INSERT INTO t VALUES (1)"),
    "execute 1,000": _transaction,
    "list consumers": lambda client, number: client.consumers(),
    "describe a consumer": lambda client, number: client.consumer(OWN, KEYED),
    "describe a queue": lambda client, number: client.consumer(OWN, QUEUE),
    "join a consumer": _join,
    "join a consumer, 128 times": _join_often,
    "acknowledge": _acknowledge,
    "acknowledge, 256 times": _acknowledge_often,
    "return and fetch": _fetch,
    "consume": _work,
    "prove": lambda client, number: client.prove(OWN, 0),
    "signed checkpoint": lambda client, number: client.checkpoint(),
    "tile": lambda client, number: client.tile(bundle_path(0, TILE_HASHES)),
    "part of a tile": lambda client, number: client.tile(bundle_path(0, 1 + number % (TILE_HASHES - 1))),
}
PAGES = ("/status", "/metrics", "/healthz", "/readyz", "/checkpoint", f"/{bundle_path(0, TILE_HASHES)}", "/nowhere")
OTHERS = ("idle", "burn", "connect", "silent connections")
KINDS = (*OTHERS[:2], *CALLS, *(f"GET {page}" for page in PAGES), *OTHERS[2:])


# The flood: a process of its own.


async def flood_calls(kind: str, cluster: str, identity: str, calls: int) -> None:
    call, counts = CALLS[kind], {"answered": 0, "refused": 0}

    async def again_and_again(client: AsyncClient, first: int) -> None:
        number = first
        while True:
            try:
                await call(client, number)
                counts["answered"] += 1
            except ChaplainError:
                counts["refused"] += 1
                await asyncio.sleep(0)
            number += calls

    async def at_node(node: int) -> None:
        while True:
            with contextlib.suppress(ChaplainError):
                async with AsyncClient.connect(cluster, identity=identity, node=node, timeout=5) as client:
                    await asyncio.gather(*(again_and_again(client, first) for first in range(calls)))
            await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(at_node(node.id)) for node in load_cluster(cluster).nodes]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps(counts), flush=True)
    for task in tasks:
        task.cancel()


def flood_otherwise(kind: str, cluster: str, identity: str) -> None:
    counts = {"answered": 0, "refused": 0}
    nodes = load_cluster(cluster).nodes

    def forever(step: Callable[[], object]) -> None:
        def run() -> None:
            while True:
                try:
                    step()
                    counts["answered"] += 1
                except (OSError, http.client.HTTPException, ChaplainError):
                    counts["refused"] += 1
                    time.sleep(0.01)

        threading.Thread(target=run, daemon=True).start()

    if kind == "burn":
        forever(lambda: sum(range(10_000)))
    elif kind.startswith("GET "):
        for node in nodes:
            for _ in range(HTTP_THREADS):
                forever(lambda address=node.http: _get(address, kind.removeprefix("GET ")))  # type: ignore[misc]
    elif kind == "connect":
        for node in nodes:
            for _ in range(2):
                forever(lambda node=node.id: Client.connect(cluster, identity=identity, node=node, timeout=5).close())  # type: ignore[misc]
    elif kind == "silent connections":
        held: list[socket.socket] = []
        forever(lambda: _connect_and_say_nothing([node.endpoint for node in nodes], held))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(counts), flush=True)
    os._exit(0)


def _get(address: str, page: str) -> None:
    connection = http.client.HTTPConnection(address, timeout=3)
    try:
        connection.request("GET", page)
        connection.getresponse().read()
    finally:
        connection.close()


def _connect_and_say_nothing(endpoints: list[str], held: list[socket.socket]) -> None:
    for endpoint in endpoints:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex((host, int(port)))
        held.append(one)
    while len(held) > 9_000:
        held.pop(0).close()
    time.sleep(1 / SILENT_PER_SECOND)


# The measurement.


class Flood:
    def __init__(self, kind: str, cluster: str, identity: str, calls: int) -> None:
        command = ["nice", "-n", "10", sys.executable, __file__, "--flood", kind, cluster, identity, str(calls)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", "the flood did not start"

    def end(self) -> dict[str, float]:
        """Stop the flood. Return the outcomes of its calls and its own CPU time."""
        cpu_s = _cpu_s(self._process.pid)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("end\n")
        self._process.stdin.flush()
        counts: dict[str, float] = json.loads(self._process.stdout.readline())
        self._process.kill()
        self._process.communicate()
        return {**counts, "cpu_s": cpu_s}


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def write_for(client: Client, seconds: float, pids: list[int]) -> dict[str, float]:
    """Write one message after the other. Return the rate, the latencies and the processor time of the nodes."""
    took: list[float] = []
    failed = 0
    cpu_s = sum(map(_cpu_s, pids))
    begin_s = time.perf_counter()
    while (now_s := time.perf_counter()) - begin_s < seconds:
        try:
            client.journal(HONEST).write(VALUE)
            took.append(time.perf_counter() - now_s)
        except ChaplainError:
            failed += 1
    took.sort()
    last = len(took) - 1
    return {
        "rate": len(took) / (time.perf_counter() - begin_s),
        "p50_ms": 1e3 * took[last // 2] if took else 0.0,
        "p99_ms": 1e3 * took[int(last * 0.99)] if took else 0.0,
        "failed": failed,
        "nodes_cpu": (sum(map(_cpu_s, pids)) - cpu_s) / (time.perf_counter() - begin_s),
    }


def measure(kind: str, cluster: ChaplainCluster, identity: str, options: argparse.Namespace) -> dict[str, Any]:
    with Client.connect(cluster.address, timeout=30) as client:
        client.journal(HONEST).write(VALUE)
        regime = client.status()["regime"]
        before = [rss_bytes(pid) for pid in cluster.pids]
        alone = write_for(client, options.seconds, cluster.pids)
        flood = Flood(kind, cluster.address, identity, options.calls)
        time.sleep(SETTLE_S)
        beside = write_for(client, options.seconds, cluster.pids)
        during = [rss_bytes(pid) for pid in cluster.pids]
        flooded = flood.end()
        time.sleep(SETTLE_S)
        after = [rss_bytes(pid) for pid in cluster.pids]
        regimes = client.status()["regime"] - regime
    cluster.check()
    grown = max(max(now, then) - first for first, now, then in zip(before, during, after, strict=True))
    ratio = beside["rate"] / alone["rate"]
    return {
        "request": kind,
        "alone": alone,
        "beside": beside,
        "ratio": ratio,
        "regimes": regimes,
        "grown_mib": grown / MIB,
        "kept_mib": max(then - first for first, then in zip(before, after, strict=True)) / MIB,
        "flood": flooded,
        "met": ratio >= RATE_PART_MIN and not regimes and grown <= GROWTH_BYTES_MAX,
    }


HEADING = (
    "| request | alone /s | beside /s | ratio | p99 alone ms | p99 beside ms | regimes | grown MiB | kept MiB "
    "| answered /s | refused /s | flood CPU | nodes CPU alone | nodes CPU beside | goals |\n" + "|---" * 15 + "|"
)


def row_of(found: dict[str, Any], seconds: float) -> str:
    alone, beside, flood = found["alone"], found["beside"], found["flood"]
    took_s = seconds + SETTLE_S
    return (
        f"| {found['request']} | {alone['rate']:.0f} | {beside['rate']:.0f} | {found['ratio']:.2f} "
        f"| {alone['p99_ms']:.1f} | {beside['p99_ms']:.1f} | {found['regimes']} | {found['grown_mib']:.0f} "
        f"| {found['kept_mib']:.0f} | {flood['answered'] / took_s:.0f} | {flood['refused'] / took_s:.0f} "
        f"| {100 * flood['cpu_s'] / took_s:.0f} % "
        f"| {100 * alone['nodes_cpu']:.0f} % | {100 * beside['nodes_cpu']:.0f} % "
        f"| {'met' if found['met'] else 'missed'} |"
    )


def prepare(cluster: ChaplainCluster, streams: int) -> str:
    """Fill the cluster and create the flood's client. Return the path of its identity file."""
    identity = str(cluster.directory / "flood.identity")
    command = [sys.executable, "-m", "chaplain.cli.main", "client", "add", "flood", "--write", f"{OWN}*"]
    command += ["--read", f"{OWN}*", "--read", LARGE, "--out", identity, "--cluster", cluster.address]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with Client.connect(cluster.address, timeout=60) as client:
        for name in (HONEST, OWN):
            client.journal(name).write(VALUE)
        with client.journal(LARGE).writer() as writer:
            for _ in range(400):
                writer.write(os.urandom(50_000))
        for first in range(0, streams, 200):
            writers = [client.journal(f"s{number:06}").writer() for number in range(first, min(first + 200, streams))]
            for one in writers:
                one.write(VALUE)
            for one in writers:
                one.close()
        for _ in range(0 if streams else TILE_HASHES):
            client.journal(OWN).write(VALUE)
        client.sql(OWN).execute("CREATE TABLE t (a INTEGER)")
        client.graph(OWN).append(VALUE)
        until(lambda: _publishes(client), "the sequence numbers events")
        client.sequence(OWN).publish_many([VALUE] * 100)
    with Client.connect(cluster.address, identity=identity, timeout=60) as client:
        prepare_consumers(client)
    return identity


def prepare_consumers(client: Client) -> None:
    """Create consumers with much state: many slots and workers, and a queue with many spans."""

    def tell(*commands: Command) -> None:
        client._context.run(consumer_calls.tell(OWN, commands))

    for number in range(KEYED_COUNT):
        name = KEYED if not number else f"{KEYED}{number}"
        tell(*(_join_of(name, Mode.KEYED) for _ in range(1 if not number else KEYED_WORKERS)))
    client.journal(OWN).write_many([VALUE] * 2048)
    tell(_join_of(QUEUE, Mode.QUEUE))
    token = client.consumer(OWN, QUEUE)["members"][0]["token"]
    for _ in range(2):
        tell(*[Fetch(QUEUE, token, 1)] * COMMANDS_MAX)


def _publishes(client: Client) -> bool:
    try:
        return client.sequence(OWN).publish(VALUE) > 0
    except ChaplainError:
        return False


def run(options: argparse.Namespace) -> int:
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="chaplain-bench-") as directory:
        cluster = ChaplainCluster(Path(directory) / "chaplain", database="sqlite")
        try:
            cluster.start()
            identity = prepare(cluster, options.streams)
            print(HEADING, flush=True)
            for kind in options.only or KINDS:
                found.append(measure(kind, cluster, identity, options))
                print(row_of(found[-1], options.seconds), flush=True)
        finally:
            cluster.stop()
    missed = [one["request"] for one in found if not one["met"]]
    print(json.dumps({"load": os.getloadavg(), "processors": os.cpu_count(), "missed": missed, "rows": found}))
    return 1 if missed and not options.report else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of writing alone, and of writing beside each flood")
    parser.add_argument("--quick", action="store_true", help="1 s of each instead")
    parser.add_argument("--calls", type=int, default=32, help="open on each of the flood's sessions")
    parser.add_argument("--streams", type=int, default=2000, help="in the journal")
    parser.add_argument("--only", nargs="+", choices=KINDS, metavar="REQUEST", help="only these requests")
    parser.add_argument("--report", action="store_true", help="exit with 0 though goals were missed")
    parser.add_argument("--flood", nargs=4, metavar=("REQUEST", "CLUSTER", "IDENTITY", "CALLS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.seconds = 1.0
    if options.flood is None:
        return run(options)
    kind, cluster, identity, calls = options.flood
    if kind in CALLS:
        asyncio.run(flood_calls(kind, cluster, identity, int(calls)))
    else:
        flood_otherwise(kind, cluster, identity)
    return 0


if __name__ == "__main__":
    sys.exit(main())
