"""The Python client, word for word as users know it. Run in a folder with a cluster `c`."""

from __future__ import annotations

import asyncio

from chaplain import AsyncClient, Client
from chaplain.config import load_cluster

RECEIPT = ("stream", "offset", "regime", "index", "timestamp", "hash")
MESSAGE = ("offset", "key", "value", "headers", "timestamp", "client_id")
ANSWER = ("value", "votes", "members", "decided", "voters", "missing")


def has(thing: object, names: tuple[str, ...]) -> None:
    assert not [name for name in names if not hasattr(thing, name)], thing


def journal(c: Client) -> None:
    receipt = c.journal("py").write(b"...", key=b"k", headers={"a": b"1"})
    has(receipt, RECEIPT)
    assert [one.offset for one in c.journal("py").write_many([b"1", b"2"])] == [1, 2]
    with c.journal("py").writer() as w:
        for number in range(3):
            w.write(b"%d" % number, key=None)
        w.flush()
    found = list(c.journal("py").read(start=0, stop=6, follow=True))  # as soon as the node that is read has them
    assert [message.offset for message in found] == [*range(6)]
    assert list(c.journal("py").read(start=0)) == found
    has(found[0], MESSAGE)
    assert (found[0].key, found[0].value, found[0].headers) == (b"k", b"...", {"a": b"1"})
    assert len(list(c.journal("py").read(start=2, stop=4))) == 2
    assert next(iter(c.journal("py").read(start=5, follow=True))).offset == 5


def the_rest(c: Client) -> None:
    c.sql("main").execute("create table if not exists p(a integer)")
    c.sql("main").execute("insert into p values (?)", [1])
    assert c.sql("main").query("select * from p") == [{"a": 1}]
    c.sql("main").results()
    c.pool("py").join()
    c.pool("py").broadcast(b"hi")
    list(c.pool("py").listen(timeout=1))
    c.fire("deployed", b"v2")
    event = c.graph("py").append(b"...")
    assert event.id in [one.id for one in c.graph("py").read()]
    number = c.sequence("py").publish(b"...")
    assert number in [one.number for one in c.sequence("py").read()]
    assert len(c.members()) == 3
    has(c.ask("version"), ANSWER)


async def awaited() -> None:
    async with AsyncClient.connect("c", node=1) as c:
        receipts = await asyncio.gather(*(c.journal("many").write(b"%d" % number) for number in range(200)))
        assert sorted(receipt.offset for receipt in receipts) == [*range(200)]
        assert len([message async for message in c.journal("many").read(start=0, stop=200, follow=True)]) == 200
        assert await c.sql("main").query("select * from p") == [{"a": 1}]
        assert (await c.graph("py").append(b"...")).id in [one.id async for one in c.graph("py").read()]
        await c.sequence("py").publish(b"...")
        await c.fire("deployed", b"v2")
        await c.members()


if __name__ == "__main__":
    with Client.connect("c") as client:
        journal(client)
    with Client.connect(
        "c/cluster.toml", node=1
    ) as client:  # graphs and sequences of one node, to read what was written
        the_rest(client)
    endpoints = [node.endpoint for node in load_cluster("c").nodes]
    with Client.connect(endpoints=endpoints, identity="c/client.identity") as client:
        client.members()
    asyncio.run(awaited())
    print("done")
