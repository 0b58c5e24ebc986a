"""Retrying with the id of an `Unknown` through both faces, against a real cluster of three nodes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from chaplain import AsyncClient, Client
from chaplain.client.aio.journal import AsyncJournal
from chaplain.client.types.journal import Receipt
from chaplain.client.types.receipts import ReceiptSequence
from chaplain.errors import Unknown, Unreachable
from tests.support.command_line import eventually, pids

pytestmark = pytest.mark.timeout(180)


@contextmanager
def standing(directory: Path) -> Iterator[None]:
    """All nodes stand still."""
    stopped = pids(directory)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def test_retries_with_one_id_write_once(directory: Path) -> None:
    """While the nodes stand, when they are back, after it was found not to be written, and from another process."""
    with Client.connect(directory, timeout=2) as client:
        journal = client.journal("retried")
        journal.write(b"before")
        with standing(directory):
            with pytest.raises(Unknown) as raised:
                journal.write(b"perhaps")
            request = raised.value.id
            assert request is not None
            with pytest.raises(Unknown) as again:
                journal.write(b"perhaps", id=request)
            assert again.value.id == request, "it is still on its way"
            eventually(lambda: _is_alone(client))
        eventually(lambda: _resolves(client, request))
        receipts = [journal.write(b"perhaps", id=request) for _ in range(3)]
        assert {receipt.offset for receipt in receipts} == {1}
    with Client.connect(directory) as other:
        assert other.journal("retried").write(b"perhaps", id=request) == receipts[0]
        assert [m.value for m in other.journal("retried").read()] == [b"before", b"perhaps"]


def test_retried_statement_is_executed_once(directory: Path) -> None:
    with Client.connect(directory, timeout=2) as client:
        sql = client.sql("retried-sql")
        sql.execute("create table t(a)")
        with standing(directory):
            with pytest.raises(Unknown) as raised:
                sql.execute("insert into t values (1)")
            request = raised.value.id
            assert request is not None
            eventually(lambda: _is_alone(client))
        eventually(lambda: _resolves(client, request))
        results = [sql.execute("insert into t values (1)", id=request) for _ in range(3)]
        assert {(result.id, result.changes) for result in results} == {(results[0].id, 1)}
        assert sql.query("select count(*) n from t") == [{"n": 1}]


def _is_alone(client: Client) -> bool:
    """It has given up every session, and what was sent on them is lost."""
    return not client._context.engine._stepper._core._connections.sessions


def _resolves(client: Client, request: tuple[int, int]) -> bool:
    with suppress(Unreachable):
        client.resolve(request)
        return True
    return False


def test_concurrent_retries_of_many_tasks_write_once(directory: Path) -> None:
    async def play() -> None:
        async with AsyncClient.connect(directory, timeout=2) as client:
            journal = client.journal("retried-async")
            await journal.write(b"before")
            with standing(directory):
                ends = await asyncio.gather(*[journal.write(b"%d" % n) for n in range(300)], return_exceptions=True)
                many = await asyncio.gather(journal.write_many([b"a", b"b"]), return_exceptions=True)
            requests = [end.id for end in ends if isinstance(end, Unknown)]
            assert isinstance(many[0], Unknown)
            assert len(requests) == 300
            for _ in range(2):
                retries = [_retry(journal, b"%d" % n, request) for n, request in enumerate(requests)]
                receipts = await asyncio.gather(*retries)
                both = await _retry_many(journal, [b"a", b"b"], many[0].id)
                assert len({receipt.offset for receipt in receipts}) == 300
                assert len(both) == 2
            values = [m.value async for m in journal.read()]
            assert sorted(values) == sorted([b"before", b"a", b"b", *[b"%d" % n for n in range(300)]])

    asyncio.run(play())


async def _retry(journal: AsyncJournal, value: bytes, request: tuple[int, int] | None) -> Receipt:
    while True:
        with suppress(Unknown):
            return await journal.write(value, id=request)


async def _retry_many(journal: AsyncJournal, items: list[bytes], request: tuple[int, int] | None) -> ReceiptSequence:
    while True:
        with suppress(Unknown):
            return await journal.write_many(items, id=request)


def test_requests_of_a_closed_connection_can_be_resolved(directory: Path) -> None:
    with Client.connect(directory) as client:
        one, many = client.journal("left").write(b"a"), client.journal("left").write_many([b"b", b"c"])
    with Client.connect(directory) as other:
        assert other.resolve(one.id) == one
        assert other.resolve((one.client_id, 3)) is None
        assert other.journal("left").write_many([b"b", b"c"], id=many[0].id) == many
