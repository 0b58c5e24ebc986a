"""The pool of clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, cast

import pytest

from chaplain.client.aio import AsyncClient
from chaplain.errors import Closed, Unreachable
from chaplain.gateway.clients import ClientPool
from chaplain.gateway.problems import Problem

IDLE_S = 60.0


class Connection:
    """Counts how often it was made and closed."""

    def __init__(self, log: list[str], identity: str, error: Exception | None = None) -> None:
        self._log = log
        self._identity = identity
        self._error = error

    def __await__(self) -> Generator[Any, None, Connection]:
        async def connected() -> Connection:
            await asyncio.sleep(0)
            self._log.append(f"open {self._identity}")
            if self._error is not None:
                raise self._error
            return self

        return connected().__await__()

    async def close(self) -> None:
        self._log.append(f"close {self._identity}")


def run(scenario: Callable[[ClientPool, list[str]], Awaitable[None]], errors: list[Exception] | None = None) -> None:
    async def main() -> None:
        log: list[str] = []
        waiting = errors or []
        pool = ClientPool(
            lambda identity: cast("AsyncClient", Connection(log, identity, waiting.pop(0) if waiting else None)),
            2,
            IDLE_S,
        )
        await scenario(pool, log)
        await pool.close()
        assert len(pool) == 0

    asyncio.run(main())


def test_requests_of_one_identity_share_a_client() -> None:
    async def scenario(pool: ClientPool, log: list[str]) -> None:
        async def use() -> object:
            async with pool.lend("a") as client:
                return client

        clients = await asyncio.gather(*(use() for _ in range(5)))
        assert len({id(client) for client in clients}) == 1
        assert log == ["open a"]

    run(scenario)


def test_idle_client_is_closed_and_a_used_one_is_not() -> None:
    async def scenario(pool: ClientPool, log: list[str]) -> None:
        async with pool.lend("a"):
            async with pool.lend("b"):
                pass
            pool.sweep(asyncio.get_running_loop().time() + IDLE_S)
            assert len(pool) == 1
            await asyncio.sleep(0.01)
            assert log == ["open a", "open b", "close b"]

    run(scenario)


def test_client_idle_for_longest_makes_room_and_used_ones_refuse_another() -> None:
    async def scenario(pool: ClientPool, log: list[str]) -> None:
        for identity in ("a", "b", "c"):
            async with pool.lend(identity):
                pass
            await asyncio.sleep(0.002)
        assert sorted(log) == ["close a", "open a", "open b", "open c"]
        async with pool.lend("b"), pool.lend("c"):
            with pytest.raises(Problem, match="2 identities are connected"):
                async with pool.lend("d"):
                    pass

    run(scenario)


def test_failed_connection_is_tried_again_by_the_next_request() -> None:
    async def scenario(pool: ClientPool, log: list[str]) -> None:
        with pytest.raises(Unreachable):
            async with pool.lend("a"):
                pass
        async with pool.lend("a"):
            pass
        assert log == ["open a", "open a"]

    run(scenario, [Unreachable("none")])


def test_closed_client_is_replaced() -> None:
    async def scenario(pool: ClientPool, log: list[str]) -> None:
        with pytest.raises(Closed):
            async with pool.lend("a"):
                raise Closed("it ended")
        async with pool.lend("a"):
            pass
        assert log.count("open a") == 2

    run(scenario)
