"""Journals with a codec at a real node: everything that writes and everything that reads."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import msgspec
import pytest

from chaplain import AsyncClient, Client, Misused, Undecodable
from chaplain.testing import Cluster


class Order(msgspec.Struct):
    item: str
    count: int = 1


def test_values_are_typed_in_everything_that_writes_and_reads(
    chaplain_cluster: Cluster, chaplain_client: Client, chaplain_stream: str
) -> None:
    orders = chaplain_client.journal(chaplain_stream, codec=Order)
    orders.write(Order("a"), key=b"k")
    orders.write_many([Order("b"), (Order("c"), b"k"), (Order("d"), None, {"h": b"1"})])
    with orders.writer() as writer:
        writer.write(Order("e", 2))
    with pytest.raises(Misused, match="of type Order"):
        orders.write({"item": "f"})  # type: ignore[arg-type]
    with pytest.raises(Misused, match="list of messages"):
        orders.write_many(Order("f"))  # type: ignore[arg-type]
    found = list(orders.read())
    assert [one.value for one in found] == [*map(Order, "abcd"), Order("e", 2)]
    assert [one.key for one in found] == [b"k", None, b"k", None, None]
    for mode in ("single", "queue"):
        with orders.consume(mode, mode=mode, timeout=1) as consumer:
            for expected in found:
                consumed = next(consumer)
                assert (consumed.value, consumed.raw) == (expected.value, expected.raw)
                consumed.ack()
    command = [sys.executable, "-m", "chaplain", "journal", "read", chaplain_stream, "--cluster"]
    shown = subprocess.check_output([*command, str(chaplain_cluster.directory)], text=True, timeout=120)
    assert json.loads(json.loads(shown.splitlines()[-1])["value"]) == {"item": "e", "count": 2}
    assert "codec=json of Order" in repr(orders)


def test_undecodable_message_does_not_end_a_reader_or_a_consumer(chaplain_client: Client, chaplain_stream: str) -> None:
    chaplain_client.journal(chaplain_stream).write_many([b'{"item":"a"}', b"\xff", b'{"item":"b"}'])
    orders = chaplain_client.journal(chaplain_stream, codec=Order)
    first, second, third = orders.read()
    assert (first.value, second.raw, third.value) == (Order("a"), b"\xff", Order("b"))
    with pytest.raises(Undecodable):
        _ = second.value
    dead = f"{chaplain_stream}-dead"
    with orders.consume("c", mode="queue", max_deliveries=1, dead_letter=dead, timeout=5) as consumer:
        for consumed in consumer:
            try:
                _ = consumed.value
                consumed.ack()
            except Undecodable:
                consumed.nack()
            if chaplain_client.consumer(chaplain_stream, "c")["next_offset"] and _is_written(chaplain_client, dead):
                break
    assert [one.raw for one in chaplain_client.journal(dead).read()] == [b"\xff"]


def _is_written(client: Client, stream: str) -> bool:
    return any(one.stream == stream for one in client.streams())


def test_async_journal_has_the_same_codecs(chaplain_cluster: Cluster, chaplain_stream: str) -> None:
    async def act() -> list[object]:
        async with AsyncClient.connect(chaplain_cluster.directory) as client:
            values = client.journal(chaplain_stream, codec="json")
            await values.write({"a": 1})
            await values.write_many([2, [3]])
            async with values.writer() as writer:
                await writer.write(None)
            async with values.consume("c", timeout=5) as consumer:
                consumed = await anext(consumer)
                assert consumed.value == {"a": 1}
            return [one.value async for one in values.read()]

    assert asyncio.run(act()) == [{"a": 1}, 2, [3], None]
