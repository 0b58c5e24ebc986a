"""The clients of `journal.py`, each in a separate process: `serve` executes the commands "round" and "stop".

A way of writing is a function of (size, seconds). It writes until the time is over, waits for the last acknowledgement,
and returns the number of acknowledged messages, or the latencies of single writes.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import os
import select
import socket
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

STREAM = "bench"
WRITES_IN_FLIGHT = 4000
MANY = 100
MANIES_IN_FLIGHT = 400
MANIES_BYTES = 40_000_000
"""Values in flight with `write_many`: the client refuses more than 64 MiB."""
NATS_IN_FLIGHT = 4096
NATS_BURST = 256
NATS_BATCHES_IN_FLIGHT = 40
"""The server refuses more than 50 open batches of a stream."""
NATS_PY_IN_FLIGHT = 1000
PUTS_IN_FLIGHT = 1000
TRANSACTIONS_IN_FLIGHT = 64
BATCHES_SINCE = (2, 12)
"""The first version of the NATS server with atomic batches."""
PATIENCE_S = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Round(NamedTuple):
    messages: int
    seconds: float
    cpu_s: float
    """CPU seconds of all processes: three nodes and the client."""
    p50_ms: float = 0.0


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def measure(pids: list[int], write: Callable[[], int | list[float]]) -> Round:
    before = sum(map(cpu_of, pids)) + time.process_time()
    began_s = time.monotonic()
    outcome = write()
    seconds = time.monotonic() - began_s
    used_s = sum(map(cpu_of, pids)) + time.process_time() - before
    if isinstance(outcome, list):
        return Round(len(outcome), seconds, used_s, statistics.median(outcome) * 1e3)
    return Round(outcome, seconds, used_s)


def serve(system: str, address: str, pids: list[int], control: Connection, profile: str) -> None:
    profiler = cProfile.Profile() if profile else None
    client = CLIENTS[system](address)
    while (order := control.recv())[0] != "stop":
        _, way, size_bytes, seconds = order
        write = getattr(client, way)
        if profiler is not None:
            profiler.enable()
        control.send(measure(pids, partial(write, size_bytes, seconds)))
        if profiler is not None:
            profiler.disable()
            profiler.dump_stats(f"{profile}.client")
    client.close()


async def keep_writing(write: Callable[[], Awaitable[object]], in_flight: int, seconds: float) -> int:
    """Run `in_flight` tasks that write until the time is over. Return the number of acknowledged writes."""
    end_s = time.monotonic() + seconds
    count = 0

    async def one() -> None:
        nonlocal count
        while time.monotonic() < end_s:
            await write()
            count += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(one())
    return count


class ChaplainClient:
    def __init__(self, address: str) -> None:
        from chaplain import Client  # noqa: PLC0415

        self._address = address
        self._client = Client.connect(address, timeout=30)

    def writer(self, size_bytes: int, seconds: float) -> int:
        value = bytes(size_bytes)
        end_s = time.monotonic() + seconds
        with self._client.journal(STREAM).writer() as writer:
            write = writer.write
            while time.monotonic() < end_s:
                for _ in range(1000):
                    write(value)
        return writer.count

    def one(self, size_bytes: int, seconds: float) -> list[float]:
        value, journal, times = bytes(size_bytes), self._client.journal(STREAM), []
        end_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < end_s:
            journal.write(value)
            times.append(time.monotonic() - began_s)
        return times

    def single(self, size_bytes: int, seconds: float) -> int:
        """`AsyncClient.write`, one call a message."""
        return asyncio.run(self._async(bytes(size_bytes), seconds, WRITES_IN_FLIGHT))

    def many(self, size_bytes: int, seconds: float) -> int:
        in_flight = min(MANIES_IN_FLIGHT, MANIES_BYTES // (MANY * size_bytes))
        return asyncio.run(self._async([bytes(size_bytes)] * MANY, seconds, in_flight)) * MANY

    async def _async(self, value: Any, seconds: float, in_flight: int) -> int:
        from chaplain import AsyncClient  # noqa: PLC0415

        async with AsyncClient.connect(self._address, timeout=30) as client:
            journal = client.journal(STREAM)
            write = journal.write if isinstance(value, bytes) else journal.write_many
            return await keep_writing(lambda: write(value), in_flight, seconds)

    def close(self) -> None:
        self._client.close()


class NatsClient:
    """Speaks the NATS protocol over a plain socket to the stream's leader, to measure NATS without a client library."""

    def __init__(self, address: str) -> None:
        self._ports = [int(port) for port in address.split(",")]
        self._batches = 0
        """Batches that were sent, for their names."""
        self._connect(self._ports[0])
        leader = self._make_stream()
        self._socket.close()
        self._connect(self._ports[int(leader.removeprefix("n"))])

    def _connect(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(PATIENCE_S)
        self._inbox = f"_INBOX.{os.urandom(8).hex()}"
        options = '{"verbose":false,"headers":true}'
        self._socket.sendall(f"CONNECT {options}\r\nSUB {self._inbox} 1\r\nPING\r\n".encode())
        hello = self._until(b"PONG\r\n").partition(b"\r\n")[0].removeprefix(b"INFO ")
        self._has_batches = tuple(map(int, json.loads(hello)["version"].split(".")[:2])) >= BATCHES_SINCE

    def _until(self, sign: bytes) -> bytes:
        heard = b""
        while sign not in heard:
            heard += self._socket.recv(65536)
        return heard

    def _make_stream(self) -> str:
        """Create the stream and return the name of its leader."""
        stream = {"name": STREAM, "subjects": [STREAM], "num_replicas": 3, "storage": "file"}
        wanted = json.dumps(stream | {"allow_atomic": True} if self._has_batches else stream)
        ask = f"PUB $JS.API.STREAM.CREATE.{STREAM} {self._inbox} {len(wanted)}\r\n{wanted}\r\n"
        answer = json.loads(self._answer_to(ask.encode()).partition(b"\r\n")[2].strip())
        if "error" in answer:
            raise SystemExit(f"NATS: {answer['error']}")
        return str(answer["cluster"]["leader"])

    def _answer_to(self, ask: bytes) -> bytes:
        """Ask until there is an answer: a cluster without a leader answers nothing."""
        for _ in range(int(PATIENCE_S)):
            self._socket.sendall(ask)
            if select.select([self._socket], [], [], 1)[0]:
                return self._until(b"}\r\n")
        raise SystemExit(f"NATS: no answer for {PATIENCE_S:g} s")

    def _publication(self, size_bytes: int) -> bytes:
        return b"PUB %b %b %d\r\n%b\r\n" % (STREAM.encode(), self._inbox.encode(), size_bytes, bytes(size_bytes))

    def _acknowledged(self) -> int:
        try:
            heard = self._socket.recv(1 << 20)
        except TimeoutError:
            raise SystemExit(
                f"NATS: nothing was acknowledged for {PATIENCE_S:g} s, and what is missing never is"
            ) from None
        if b'"error"' in heard or b"-ERR" in heard:
            raise SystemExit(f"NATS: {heard[:500]!r}")
        if b"PING\r\n" in heard:
            self._socket.sendall(b"PONG\r\n")
        return heard.count(b'{"stream"')

    def writer(self, size_bytes: int, seconds: float) -> int:
        burst = self._publication(size_bytes) * NATS_BURST
        sent = count = 0
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            while sent - count <= NATS_IN_FLIGHT - NATS_BURST:
                self._socket.sendall(burst)
                sent += NATS_BURST
            count += self._acknowledged()
        while count < sent:
            count += self._acknowledged()
        return count

    def many(self, size_bytes: int, seconds: float) -> int:
        """Atomic batches of `MANY` messages, each with one acknowledgement."""
        if not self._has_batches:
            raise SystemExit("NATS: atomic batches need a server of version 2.12 or later")
        sent = count = 0
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            while sent - count < NATS_BATCHES_IN_FLIGHT:
                sent += 1
                self._socket.sendall(self._batch(size_bytes, f"{self._inbox[-16:]}{self._batches + sent}"))
            count += self._acknowledged()
        while count < sent:
            count += self._acknowledged()
        self._batches += sent
        return count * MANY

    def _batch(self, size_bytes: int, name: str) -> bytes:
        pieces: list[bytes] = []
        value = bytes(size_bytes)
        for number in range(1, MANY + 1):
            last = number == MANY
            commit = "Nats-Batch-Commit: 1\r\n" if last else ""
            heads = f"NATS/1.0\r\nNats-Batch-Id: {name}\r\nNats-Batch-Sequence: {number}\r\n{commit}\r\n".encode()
            to = f"HPUB {STREAM} {self._inbox + ' ' if last else ''}{len(heads)} {len(heads) + size_bytes}\r\n"
            pieces += (to.encode(), heads, value, b"\r\n")
        return b"".join(pieces)

    def one(self, size_bytes: int, seconds: float) -> list[float]:
        publication, times = self._publication(size_bytes), []
        end_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < end_s:
            self._socket.sendall(publication)
            while not self._acknowledged():
                pass
            times.append(time.monotonic() - began_s)
        return times

    def library(self, size_bytes: int, seconds: float) -> int:
        """nats-py, one call a message, many in flight."""
        return asyncio.run(self._library(bytes(size_bytes), seconds))

    async def _library(self, value: bytes, seconds: float) -> int:
        import nats  # noqa: PLC0415

        client = await nats.connect([f"nats://127.0.0.1:{port}" for port in self._ports])
        stream = client.jetstream()
        count = await keep_writing(lambda: stream.publish(STREAM, value, timeout=30), NATS_PY_IN_FLIGHT, seconds)
        await client.close()
        return count

    def close(self) -> None:
        self._socket.close()


def _field(number: int, value: bytes) -> bytes:
    """A length-delimited field of a protocol buffer."""
    size, prefix = len(value), bytes([number << 3 | 2])
    while size > 0x7F:
        prefix += bytes([size & 0x7F | 0x80])
        size >>= 7
    return prefix + bytes([size]) + value


class EtcdClient:
    """Calls etcd's gRPC service with hand-encoded requests. Each request has another key, like messages of a log."""

    def __init__(self, address: str) -> None:
        import grpc  # noqa: PLC0415

        self._grpc = grpc
        self._port = address.split(",", maxsplit=1)[0]
        self._key = 0

    def _put(self, value: bytes) -> bytes:
        self._key += 1
        return _field(1, b"%d" % self._key) + _field(2, value)

    def _transaction(self, value: bytes) -> bytes:
        return b"".join(_field(2, _field(2, self._put(value))) for _ in range(MANY))

    async def _write(self, method: str, make: Callable[[], bytes], in_flight: int, seconds: float) -> int:
        async with self._grpc.aio.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            call = channel.unary_unary(f"/etcdserverpb.KV/{method}")
            return await keep_writing(lambda: call(make()), in_flight, seconds)

    def writer(self, size_bytes: int, seconds: float) -> int:
        return asyncio.run(self._write("Put", lambda: self._put(bytes(size_bytes)), PUTS_IN_FLIGHT, seconds))

    def many(self, size_bytes: int, seconds: float) -> int:
        value = bytes(size_bytes)
        wait = self._write("Txn", lambda: self._transaction(value), TRANSACTIONS_IN_FLIGHT, seconds)
        return asyncio.run(wait) * MANY

    def one(self, size_bytes: int, seconds: float) -> list[float]:
        times = []
        with self._grpc.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            call = channel.unary_unary("/etcdserverpb.KV/Put")
            end_s = time.monotonic() + seconds
            while (began_s := time.monotonic()) < end_s:
                call(self._put(bytes(size_bytes)))
                times.append(time.monotonic() - began_s)
        return times

    def close(self) -> None:
        pass


CLIENTS: dict[str, Callable[[str], Any]] = {"chaplain": ChaplainClient, "nats": NatsClient, "etcd": EtcdClient}
