"""`AsyncClient` over real sockets."""

from __future__ import annotations

import asyncio
import gc
from random import Random

import pytest

from chaplain import AsyncClient
from chaplain.client.aio.executor_calls import AsyncExecutorCalls
from chaplain.client.aio.listeners import AsyncPool
from chaplain.client.io.call_registry import CallRegistry
from chaplain.client.protocol.events import Failure, ListeningBegan, Raised, Yielded
from chaplain.client_service.messages import PoolItem
from chaplain.errors import Closed, Refused, Unreachable
from chaplain.link.auth.identity import Identity
from tests.support.client_threads import client_threads

LIMIT_S = 30


def run(work) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT_S))
    assert not client_threads()


def test_async_client_returns_the_answer_of_every_call(cluster) -> None:
    async def work() -> None:
        async with AsyncClient.connect(**cluster.how) as client:
            assert 0 < await client.ping() < 10
            assert await client.status() == {"state": "WRK"}
            assert (await client.members())[0].state == "alive"
            assert (await client.ask("version")).value == "1"
            assert await client.rotate_keys() == {"rotated": True}
            with pytest.raises(Refused, match="no such luck"):
                await client.fire("bad")

    run(work())


def test_thousand_concurrent_calls_are_answered(cluster) -> None:
    async def work() -> None:
        async with AsyncClient.connect(**cluster.how) as client:
            seen = await asyncio.gather(*(client.status() for _ in range(1000)))
            assert seen == [{"state": "WRK"}] * 1000

    run(work())


def test_acknowledged_event_and_member_events_arrive_in_order(cluster) -> None:
    async def work() -> None:
        async with AsyncClient.connect(**cluster.how) as client, client.events(timeout=60, members=True) as heard:
            seen = await client.fire("deployed", b"v2", acknowledge=True, timeout=2)
            assert (seen.acknowledged, seen.missing) == ((1,), (2,))
            assert [(await anext(heard)).kind, (await anext(heard)).kind] == ["join", "event"]

    run(work())


def test_async_listeners_receive_events_and_pool_messages(cluster) -> None:
    async def work() -> None:
        client = await AsyncClient.connect(**cluster.how)
        async with client:
            events = client.events(timeout=60)
            await client.fire("deployed", b"v2")
            event = await anext(events)
            assert (event.type, event.content) == ("deployed", b"v2")
            await events.close()
            pool = client.pool("chat")
            await pool.join()
            await pool.broadcast(b"one")
            await pool.broadcast(b"two")
            listener = pool.listen(timeout=60)
            assert [(await anext(listener)).value for _ in range(2)] == [b"one", b"two"]
            assert [message async for message in pool.listen(timeout=0.1)] == []
            await pool.leave()
            async with client.questions("load", timeout=60) as questions:
                await client.reply(await anext(questions), b"0.5")

    run(work())


def test_cancelled_call_leaves_no_registration(cluster) -> None:
    async def work() -> None:
        async with AsyncClient.connect(**cluster.how) as client:
            task = asyncio.create_task(client.ask("never"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert client._context.registry._sinks == {}
            assert await client.status() == {"state": "WRK"}

    run(work())


def test_close_ends_calls_and_listeners(cluster) -> None:
    async def work() -> None:
        async with AsyncClient.connect(**cluster.how) as client:
            listening = asyncio.create_task(anext(client.events()))
            asking = asyncio.create_task(client.ask("never"))
            await client.status()
            await client.close()
            with pytest.raises(Closed):
                await asking
            with pytest.raises(Closed):
                await listening
            with pytest.raises(Closed):
                await client.status()

    run(work())


def test_call_before_connecting_names_async_with(cluster) -> None:
    async def work() -> None:
        client = AsyncClient.connect(**cluster.how)
        with pytest.raises(Closed, match="async with"):
            await client.status()

    run(work())


def test_connect_failure_is_raised_on_entering(cluster) -> None:
    me = Identity.generate(Random(3))

    async def work() -> None:
        with pytest.raises(Unreachable, match="nobody answers"):
            await AsyncClient.connect(endpoints=["tcp://127.0.0.1:9"], identity=me, node_keys=[me.key], timeout=0.5)
        with pytest.raises(Refused):
            async with AsyncClient.connect(**(cluster.how | {"identity": me})):
                pass

    run(work())


def test_event_loop_that_ends_first_leaves_no_thread(cluster) -> None:
    kept: list[AsyncClient] = []

    async def work() -> None:
        kept.append(await AsyncClient.connect(**cluster.how))

    asyncio.run(work())
    with pytest.warns(ResourceWarning, match="not closed"):
        kept.clear()
    for thread in client_threads():
        thread.join(60)
    assert not client_threads()


def test_use_in_another_event_loop_raises_closed(cluster) -> None:
    home = asyncio.new_event_loop()
    client = home.run_until_complete(_connected(cluster))
    events = client.events()
    journal = client.journal("s")
    uses = (client.status, lambda: journal.write(b"1"), lambda: anext(journal.read()), lambda: anext(events))

    async def elsewhere(says: str) -> None:
        for use in (*uses, *uses):
            with pytest.raises(Closed, match=says):
                await asyncio.wait_for(use(), 10)

    asyncio.run(elsewhere("belongs to another event loop"))
    assert home.run_until_complete(client.status())["state"] == "WRK"
    home.close()
    asyncio.run(elsewhere("has ended"))
    asyncio.run(client.close())


async def _connected(cluster) -> AsyncClient:
    return await AsyncClient.connect(**cluster.how)


@pytest.mark.parametrize("ends", ["refused", "cancelled"])
def test_failed_start_is_repeated_and_its_error_raised_only_once(ends: str) -> None:
    async def work() -> None:
        asked: list[asyncio.Future[None]] = []

        class Line:
            registry = CallRegistry(lambda event: None)

            async def run(self, ask: object) -> None:
                asked.append(asyncio.get_running_loop().create_future())
                await asked[-1]

        executors = AsyncExecutorCalls(Line(), "s")
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(executors.check(), 0.01)
        assert len(asked) == 1
        asked[0].cancel() if ends == "cancelled" else asked[0].set_exception(Unreachable("it is down"))
        await asyncio.wait([executors._check])
        assert not executors.checked
        later = asyncio.create_task(executors.check())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asked[1].set_result(None)
        await later
        assert executors.checked

    run(work())


def test_pool_whose_join_failed_can_be_joined_later() -> None:
    async def work() -> None:
        wishes: list = []

        class Line:
            loop = asyncio.get_running_loop()
            timeout_s = 5.0
            registry = CallRegistry(wishes.append)

        pool = AsyncPool(Line(), "p")
        listener = pool.listen(timeout=5)
        Line.registry.deliver([Raised(wishes[0].request.call, Failure.REFUSED, "64 listeners are open already")])
        with pytest.raises(Refused):
            await anext(listener)
        again = pool.listen(timeout=5)
        call = wishes[1].request.call
        Line.registry.deliver(
            [ListeningBegan(call), Yielded(call, PoolItem(call, "p", 1, "alice", 0), b"hi", 0, False)]
        )
        assert (await anext(again)).value == b"hi"

    run(work())


def test_journals_that_are_no_longer_used_leave_nothing_in_the_client(cluster) -> None:
    async def work() -> None:
        async with AsyncClient.connect(**cluster.how) as client:
            used = client.journal("used")
            for number in range(100):
                client.journal(f"stream-{number}")
            gc.collect()  # a journal and its receipts' origin refer to each other
            assert client._context.single_writes("used") is used._single_writes
            assert len(client._context._single_writes) == 1

    run(work())
