"""The engine in a program's own loop: no thread, turns for whoever submits, and ends that leave nobody waiting."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from chaplain import AsyncClient
from chaplain.client.io.asyncio_engine import LoopEngine
from chaplain.client.io.call_registry import CallRegistry, Completion
from chaplain.client.protocol.events import Cancelled
from chaplain.client_service.messages import Cancel, GetStatus, ListenEvents
from chaplain.errors import Closed
from chaplain.link.zmq.sockets import Sockets
from tests.support.client_threads import client_threads

LIMIT_S = 60


def run(work) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT_S))


def hold(until: Callable[[], bool]) -> None:
    """Keep the loop from everything else for so long."""
    end_s = time.monotonic() + LIMIT_S
    while not until():
        assert time.monotonic() < end_s, "it did not come about in time"
        time.sleep(0.005)


def requests_of(cluster, kind: type) -> int:
    return sum(isinstance(request, kind) for node in cluster.nodes for request in node.requests)


def test_asyncio_engine_uses_no_thread(cluster) -> None:
    async def work() -> None:
        before = set(threading.enumerate())
        async with AsyncClient.connect(**cluster.how) as client:
            assert await client.status() == {"state": "WRK"}
            assert set(threading.enumerate()) == before

    run(work())


def test_listener_collected_in_another_thread_is_cancelled(cluster) -> None:
    async def work() -> None:
        async with AsyncClient.connect(**cluster.how) as client:
            listeners = [client.events()]
            await client.status()
            assert requests_of(cluster, ListenEvents) == 1
            await asyncio.to_thread(listeners.clear)
            while not requests_of(cluster, Cancel):  # the loop has nothing else to do: it must have been woken
                await asyncio.sleep(0.005)

    run(work())


def test_answer_that_arrived_while_the_loop_was_blocked_is_in_time(cluster) -> None:
    async def work() -> None:
        async with AsyncClient.connect(**cluster.how, timeout=0.5) as client:
            asking = asyncio.create_task(client.status())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            late_s = time.monotonic() + 1.0
            hold(lambda: requests_of(cluster, GetStatus) == 1 and time.monotonic() > late_s)
            assert await asking == {"state": "WRK"}
            assert await client.status() == {"state": "WRK"}, "the session was kept"

    run(work())


class Broken:
    def step(self, now_ns: int, event: object) -> list[object]:
        raise self.error

    def deadline(self) -> int | None:
        return None

    def __init__(self, error: BaseException) -> None:
        self.error = error


async def start(core: Broken) -> tuple[LoopEngine, CallRegistry]:
    engine = LoopEngine(core, Sockets(bytes(16)))  # type: ignore[arg-type]
    return engine, CallRegistry(engine.submit)


def test_core_defect_ends_every_wait() -> None:
    async def work() -> None:
        engine, registry = await start(Broken(ZeroDivisionError()))
        engine.start(registry)
        future = asyncio.get_running_loop().create_future()
        registry.submit_call(Cancelled, Completion(future))
        with pytest.raises(Closed, match="ZeroDivisionError"):
            await future
        assert not engine.running
        with pytest.raises(Closed, match="connect again"):
            registry.submit_call(Cancelled, Completion(future))
        await engine.closed

    run(work())


def test_keyboard_interrupt_ends_every_wait_and_propagates() -> None:
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    engine, registry = loop.run_until_complete(start(Broken(KeyboardInterrupt())))
    registry.submit_call(Cancelled, Completion(future))
    engine.start(registry)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(engine.closed)
    with pytest.raises(Closed):
        loop.run_until_complete(future)
    loop.run_until_complete(engine.closed)
    loop.close()


def test_stopped_or_ended_event_loop_is_reported(cluster) -> None:
    loop = asyncio.new_event_loop()
    kept = [loop.run_until_complete(_connect(cluster)) for _ in range(3)]
    with pytest.warns(ResourceWarning, match="not closed"):
        del kept[0]  # while the loop stands still
    loop.close()
    asyncio.run(kept[0].close())
    assert not kept.pop(0)._context.engine.running
    client = kept.pop()
    with pytest.raises(Closed, match="the loop that this client belongs to has ended"):
        asyncio.run(client.status())
    del client  # after its end; the error that was caught knew it, too
    with pytest.warns(ResourceWarning, match="not closed"):
        gc.collect()
    _no_thread_is_left()


async def _connect(cluster) -> AsyncClient:
    return await AsyncClient.connect(**cluster.how)


def _no_thread_is_left() -> None:
    for thread in client_threads():
        thread.join(LIMIT_S)
        assert not thread.is_alive()


_CHILD = """
import asyncio, os, sys, threading
from chaplain import AsyncClient
from chaplain.errors import Closed
how = dict(endpoints={endpoints!r}, identity={identity!r}, node_keys={keys!r})

async def again():
    async with AsyncClient.connect(**how) as fresh:
        os.write(1, (await fresh.status())["state"].encode())

async def work():
    client = await AsyncClient.connect(**how)
    pid = os.fork()
    if pid == 0:
        try:
            await client.status()
        except Closed as error:
            os.write(1, str(error).encode())
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    os.write(1, (await client.status())["state"].encode())
    return client

kept = asyncio.run(work())
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
other = asyncio.run_coroutine_threadsafe(work(), loop).result(30)
asyncio.run(again())
"""


def test_fork_and_exit_without_close_are_clean(cluster, tmp_path) -> None:
    """At exit one client's loop has ended, and the other's runs in a thread."""
    identity = tmp_path / "identity"
    identity.write_text(cluster.identity.text())
    how = cluster.how
    program = _CHILD.format(endpoints=how["endpoints"], identity=str(identity), keys=how["node_keys"])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("connect again in this one") == 2
    assert done.stdout.endswith("WRKWRK")
