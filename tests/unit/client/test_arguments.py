"""Whatever a caller gets wrong is said at the call, as an error of ours, and nothing is sent: of both faces alike."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaplain import AsyncClient, ChaplainError, Client, Misused
from chaplain.client.api import journal_calls
from chaplain.client.types import validation

KEY = bytes(32)
MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "ask, a number": (lambda client: client.ask(5), "a question has 1 to 255 visible"),
    "ask, timeout of text": (lambda client: client.ask("x", timeout="3"), "a timeout is a number of seconds"),
    "ask, timeout no number": (lambda client: client.ask("x", timeout=math.nan), "a timeout is a number of seconds"),
    "ask, text": (lambda client: client.ask("x", content="y"), "bytes are wanted, not str: encode text"),
    "fire, text": (lambda client: client.fire("x", "y"), "bytes are wanted, not str: encode text"),
    "fire, target of text": (lambda client: client.fire("x", target="1"), "a target is a node's id"),
    "fire, timeout": (lambda client: client.fire("x", acknowledge=True, timeout=-1), "a timeout is a number"),
    "events, negative": (lambda client: client.events(timeout=-1), "a timeout is a number of seconds from 0"),
    "events, text": (lambda client: client.events(timeout="1"), "a timeout is a number of seconds from 0"),
    "questions, no number": (lambda client: client.questions("x", math.nan), "a timeout is a number of seconds from 0"),
    "reply, no question": (lambda client: client.reply(5, b""), "a question that came from `questions` is wanted"),
    "pool, a list": (lambda client: client.pool(["a"]), "a pool's name has 1 to 255 visible"),
    "pool, text": (lambda client: client.pool("p").broadcast("y"), "bytes are wanted, not str: encode text"),
    "pool, timeout": (lambda client: client.pool("p").listen("1"), "a timeout is a number of seconds from 0"),
    "journal, none": (lambda client: client.journal(None), "a stream's name has 1 to 255 visible"),
    "journal, ours": (lambda client: client.journal("_config"), "the cluster's own"),
    "write, text": (lambda client: client.journal("s").write("text"), "bytes are wanted, not str: encode text"),
    "write, none": (lambda client: client.journal("s").write(None), "bytes are wanted, not NoneType"),
    "write, a key of text": (lambda client: client.journal("s").write(b"", "k"), "bytes are wanted, not str"),
    "write, headers": (lambda client: client.journal("s").write(b"", None, [1]), "headers are a dictionary"),
    "write, header names": (lambda client: client.journal("s").write(b"", None, {"": b""}), "names of 1 to"),
    "write, a long one": (lambda client: client.journal("s").write(bytes(5 << 20)), "write them in parts"),
    "write, id": (lambda client: client.journal("s").write(b"", id=5), "a request's id is two numbers"),
    "write_many, text": (
        lambda client: client.journal("s").write_many("text"),
        "a list of messages is wanted, not str",
    ),
    "write_many, bytes": (lambda client: client.journal("s").write_many(b"ab"), "a list of messages is wanted, not b"),
    "write_many, a number": (lambda client: client.journal("s").write_many(5), "a list of messages is wanted, not int"),
    "write_many, nothing": (lambda client: client.journal("s").write_many([]), "at least one message"),
    "write_many, long items": (lambda client: client.journal("s").write_many([(b"", None, {}, 4)]), "with its key"),
    "write_many, empty items": (lambda client: client.journal("s").write_many([()]), "with its key"),
    "writer, a number": (lambda client: client.journal("s").writer().write(5), "bytes are wanted, not int"),
    "writer, receipts": (lambda client: client.journal("s").writer().take_receipts(), "keeps no receipts"),
    "read, an odd start": (lambda client: client.journal("s").read("first"), "'earliest', or None"),
    "read, a start of text": (lambda client: client.journal("s").read("5"), "'earliest', or None"),
    "read, a part": (lambda client: client.journal("s").read(1.5), "offsets count from 0, not 1.5"),
    "read, below": (lambda client: client.journal("s").read(0, -1), "offsets count from 0, not -1"),
    "read, a stop of text": (lambda client: client.journal("s").read(0, "5"), "offsets count from 0, not '5'"),
    "read, timeout": (lambda client: client.journal("s").read(timeout="1"), "a timeout is a number of seconds from 0"),
    "to_arrow, columns": (lambda client: client.journal("s").to_arrow(columns="offset"), "a list of columns is wanted"),
    "to_arrow, a limit of text": (
        lambda client: client.journal("s").to_arrow(limit="5"),
        "a limit is a number of rows",
    ),
    "cursor, a number": (lambda client: client.journal("s").cursor(5), "a path is wanted, not int"),
    "resolve, text": (lambda client: client.resolve("x"), "a request's id is two numbers"),
    "sequence, none": (lambda client: client.sequence(None), "a stream's name has 1 to 255 visible"),
    "publish, text": (lambda client: client.sequence("s").publish("x"), "bytes are wanted, not str: encode text"),
    "publish_many, text": (
        lambda client: client.sequence("s").publish_many("x"),
        "a list of events is wanted, not str",
    ),
    "publish_many, a number": (
        lambda client: client.sequence("s").publish_many(1),
        "a list of events is wanted, not i",
    ),
    "sequence, a start of text": (lambda client: client.sequence("s").read("1"), "numbers begin at 1, not '1'"),
    "sequence, a stop of text": (lambda client: client.sequence("s").read(1, "2"), "numbers begin at 1, not '2'"),
    "sequence, timeout": (
        lambda client: client.sequence("s").read(timeout=-1),
        "a timeout is a number of seconds from",
    ),
    "graph, a number": (lambda client: client.graph(5), "a stream's name has 1 to 255 visible"),
    "append, text": (lambda client: client.graph("s").append("x"), "bytes are wanted, not str: encode text"),
    "append, a long one": (lambda client: client.graph("s").append(bytes(9 << 20)), "an event of a graph holds at"),
    "graph, timeout": (lambda client: client.graph("s").read(timeout="1"), "a timeout is a number of seconds from 0"),
    "sql, a list": (lambda client: client.sql(["s"]), "a stream's name has 1 to 255 visible"),
    "execute, bytes": (lambda client: client.sql().execute(b"select 1"), "a statement is a str, not bytes"),
    "execute, a surrogate": (lambda client: client.sql().execute("select '\ud800'"), "a statement is .*UTF-8"),
    "execute, one parameter": (lambda client: client.sql().execute("select ?", 1), "a list or a mapping"),
    "execute, an odd one": (lambda client: client.sql().execute("select ?", [1j]), "not complex"),
    "execute, a large one": (lambda client: client.sql().execute("select ?", [1 << 63]), "64 bits"),
    "transaction, text": (lambda client: client.sql().transaction("select 1"), "a list of statements is wanted, not s"),
    "transaction, numbers": (lambda client: client.sql().transaction([5]), "with its parameters"),
    "transaction, long items": (lambda client: client.sql().transaction([("a", [], 1)]), "with its parameters"),
    "transaction, nothing": (lambda client: client.sql().transaction([]), "at least one statement"),
    "query, a number": (lambda client: client.sql().query(5), "a statement is a str, not int"),
    "results, a number": (lambda client: client.sql().results(5), "a request's id is two numbers"),
    "results, one number": (lambda client: client.sql().results((1,)), "a request's id is two numbers"),
    "add_client, a name": (lambda client: client.add_client(5, KEY), "a client's name has"),
    "add_client, a key": (lambda client: client.add_client("a", 5), "a key is its text or its bytes, not int"),
    "add_client, an odd key": (lambda client: client.add_client("a", "é"), "a client's key"),
    "add_client, text": (lambda client: client.add_client("a", KEY, "orders"), "a list of patterns is wanted, not str"),
    "add_client, secret": (lambda client: client.add_client("a", KEY, secret="s" * 32), "bytes are wanted, not str"),
    "add_node, a number of text": (lambda client: client.add_node("1", "ingest"), "a node's id is a number from 1"),
    "add_node, a role": (lambda client: client.add_node(1, ["ingest"]), "executor, ingest or config"),
    "add_node, an address": (lambda client: client.add_node(1, "ingest", 5), "tcp://address:port"),
    "add_node, a disk": (lambda client: client.add_node(1, "ingest", disk="zz"), "a disk id is text of hexadecimal"),
    "add_node, no disk": (lambda client: client.add_node(1, "ingest", disk=5), "a disk id is text of hexadecimal"),
    "remove_node, a role": (lambda client: client.remove_node(1, {}), "executor or as ingest"),
    "remove_node, a part": (lambda client: client.remove_node(1.5, "ingest"), "a node's id is a number from 1"),
    "new_serializers, a number": (lambda client: client.new_serializers(4), "a list of nodes is wanted, not int"),
    "new_serializers, text": (lambda client: client.new_serializers(["1"]), "a node's id is a number from 1"),
    "snapshot, text": (lambda client: client.snapshot("5"), "a message has a number"),
}
CONNECTIONS: dict[str, tuple[dict[str, object], str]] = {
    "timeout of text": ({"timeout": "3"}, "a timeout is a number of seconds above 0"),
    "negative timeout": ({"timeout": -1}, "a timeout is a number of seconds above 0"),
    "timeout no number": ({"timeout": math.nan}, "a timeout is a number of seconds above 0"),
    "endless timeout": ({"timeout": math.inf}, "a timeout is a number of seconds above 0"),
    "no timeout": ({"timeout": None}, "a timeout is a number of seconds above 0"),
    "cluster": ({"cluster": 5}, "a path is wanted, not int"),
    "endpoints": ({"endpoints": 5}, "a list of endpoints is wanted, not int"),
    "an endpoint": ({"endpoints": [5]}, "tcp://address:port"),
    "identity": ({"identity": 5}, "a path is wanted, not int"),
    "node_keys": ({"node_keys": 5}, "a list of keys is wanted, not int"),
    "node_keys of text": ({"node_keys": "abc"}, "a list of keys is wanted, not str"),
    "a node's key": ({"node_keys": [5]}, "a key is its text or its bytes, not int"),
    "name": ({"name": 5}, "a cluster's name"),
    "node of text": ({"node": "1"}, "a node's id is a number from 1"),
}


@pytest.mark.parametrize(("given", "says"), CONNECTIONS.values(), ids=CONNECTIONS)
@pytest.mark.parametrize("face", [Client, AsyncClient])
def test_wrong_connect_arguments_raise_at_the_call(cluster, face, given, says) -> None:
    with pytest.raises(ChaplainError, match=says):
        face.connect(**(cluster.how | given))


def test_wrong_arguments_raise_before_anything_is_sent(cluster) -> None:
    with Client.connect(**cluster.how) as client:
        client.clients = list  # type: ignore[method-assign]
        for what, (mistake, says) in MISTAKES.items():
            with pytest.raises(ChaplainError, match=says) as caught:
                mistake(client)
            assert isinstance(caught.value, ValueError) or what == "add_node, an address", what
    assert all(not node.requests for node in cluster.nodes)


def test_wrong_arguments_raise_equally_in_the_async_client(cluster) -> None:
    async def make(mistake: Callable[[Any], Any], client: AsyncClient) -> None:
        result = mistake(client)
        if inspect.isawaitable(result):
            await result

    async def main() -> None:
        async with AsyncClient.connect(**cluster.how) as client:
            for mistake, says in MISTAKES.values():
                with pytest.raises(ChaplainError, match=says):
                    await make(mistake, client)

    asyncio.run(main())
    assert all(not node.requests for node in cluster.nodes)


def test_cursor_accepts_only_offsets(cluster, tmp_path: Path) -> None:
    with Client.connect(**cluster.how) as client, closing(client.journal("s").cursor(tmp_path / "cursor")) as cursor:
        for wrong in ("5", 1.5, None, -1):
            with pytest.raises(Misused, match="offset"):
                cursor.commit(wrong)  # type: ignore[arg-type]
        cursor.commit(np.int64(5))  # type: ignore[arg-type]
        assert cursor.offset == 5


def test_misused_is_a_value_error_and_a_type_error() -> None:
    assert issubclass(Misused, ValueError)
    assert issubclass(Misused, TypeError)


def test_numpy_integers_are_accepted_as_numbers() -> None:
    assert type(validation.number("a place", np.int64(3))) is int
    assert validation.wait_s(np.float64(0.5)) == 0.5
    assert validation.wait_s(0) == 0
    assert validation.wait_s(None) is None
    journal_calls.read("s", np.int64(3), np.int64(5), follow=False)  # type: ignore[arg-type]
