"""Streams as tables without Spark, and cursors that outlive their consumers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaplain import AsyncClient, Client
from chaplain.client.api.offset_file import Cursor
from chaplain.errors import Closed, ConfigError
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.cluster.local import bring_down, bring_up


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("tables") / "one"
    make_cluster(directory, 1, "none", None)
    bring_up(directory, lambda _: None)
    with Client.connect(directory) as client:
        client.journal("orders").write_many([(b"value %d" % n, b"k" if n % 2 else None) for n in range(50)])
        with client.journal("orders").writer() as writer:
            for number in range(50, 500):
                writer.write(b"value %d" % number)
    yield directory
    bring_down(directory)


def test_arrow_read_returns_exactly_the_messages_of_the_range(cluster: Path) -> None:
    with Client.connect(cluster) as client:
        table = client.journal("orders").to_arrow(start=30, stop=120)
    assert table.column("offset").to_pylist() == list(range(30, 120))
    assert table.column("value").to_pylist() == [b"value %d" % n for n in range(30, 120)]
    assert table.column("key").to_pylist()[:3] == [None, b"k", None]


def test_arrow_columns_can_be_chosen_and_agree_in_sync_async_and_pandas(cluster: Path) -> None:
    async def read() -> object:
        async with AsyncClient.connect(cluster) as client:
            return await client.journal("orders").to_arrow(columns=["value", "client_id"])

    with Client.connect(cluster) as client:
        table = client.journal("orders").to_arrow(columns=["value", "client_id"])
        assert table.column_names == ["value", "client_id"]
        assert table.num_rows == 500
        assert table == asyncio.run(read())
        frame = client.journal("orders").to_pandas(columns=["value", "client_id"])
        assert list(frame["value"]) == table.column("value").to_pylist()


def test_polars_and_duckdb_read_equal_rows(cluster: Path) -> None:
    import duckdb

    async def read() -> object:
        async with AsyncClient.connect(cluster) as client:
            return await client.journal("orders").to_polars(start=30, stop=120)

    with Client.connect(cluster) as client:
        table = client.journal("orders").to_arrow(start=30, stop=120)
        frame = client.journal("orders").to_polars(start=30, stop=120)
    assert frame["offset"].to_list() == list(range(30, 120))
    assert frame["value"].to_list() == table.column("value").to_pylist()
    assert frame["key"].to_list() == table.column("key").to_pylist()
    assert frame.equals(asyncio.run(read()))
    with duckdb.connect() as database:
        database.register("orders", table)
        counted = 'select count(*), min("offset"), max("offset"), count(key) from orders'
        assert database.sql(counted).fetchall() == [(90, 30, 119, 10)]
        assert database.sql('select value from orders where "offset" = 31').fetchall() == [(b"value 31",)]


def test_arrow_read_of_an_empty_range_is_an_empty_table(cluster: Path) -> None:
    with Client.connect(cluster) as client:
        table = client.journal("orders").to_arrow(start=500)
    assert (table.num_rows, "value" in table.column_names) == (0, True)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"limit": 499}, "more than 499 messages there: give stop="),
        ({"limit": 0}, "a number of rows from 1 on"),
        ({"columns": ["values"]}, "no column 'values'; there are: key, value"),
    ],
)
def test_arrow_tables_above_the_bound_are_refused_with_a_reason(
    cluster: Path, asked: dict[str, object], said: str
) -> None:
    with Client.connect(cluster) as client, pytest.raises(ValueError, match=said):
        client.journal("orders").to_arrow(**asked)  # type: ignore[arg-type]


def test_consumer_continues_at_its_committed_offset(cluster: Path, tmp_path: Path) -> None:
    seen = []
    for _ in range(3):
        with Client.connect(cluster) as client, client.journal("orders").cursor(tmp_path / "place") as cursor:
            for message in client.journal("orders").read(cursor.offset, cursor.offset + 10):
                seen.append(message.offset)
                if message.offset % 10 == 4:
                    cursor.commit(message.offset + 1)
    assert seen == [*range(10), *range(5, 15), *range(15, 25)]


def test_closed_or_collected_cursor_is_released(tmp_path: Path) -> None:
    file = tmp_path / "place"
    cursor = Cursor(file, "home", "orders")
    childs = os.dup(cursor._lock.fileno())  # as the child of a fork has it, and may live on
    cursor.close()
    with pytest.raises(Closed):
        cursor.commit(7)
    cursor = Cursor(file, "home", "orders")
    os.close(childs)
    with pytest.warns(ResourceWarning, match="unclosed file"):
        del cursor
    Cursor(file, "home", "orders").close()


def test_forked_child_neither_commits_nor_releases_the_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "place"
    cursor = Cursor(file, "home", "orders")
    kept = os.dup(cursor._lock.fileno())
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(Closed, match="before a fork"):
        cursor.commit(7)
    cursor.close()
    with pytest.raises(ConfigError, match="another consumer"):
        Cursor(file, "home", "orders")
    os.close(kept)


def test_cursor_belongs_to_one_consumer_and_never_goes_back(tmp_path: Path) -> None:
    file = tmp_path / "place"
    with Cursor(file, "home", "orders") as cursor:
        with pytest.raises(ConfigError, match="another consumer uses the cursor"):
            Cursor(file, "home", "orders")
        cursor.commit(5)
        with pytest.raises(ValueError, match="does not go back to 4"):
            cursor.commit(4)
    with pytest.raises(ConfigError, match="is of stream 'orders' of cluster 'home'"):
        Cursor(file, "home", "notes")
    file.write_text("{}")
    with pytest.raises(ConfigError, match="is no cursor"):
        Cursor(file, "home", "orders")
    file.write_text('{"cluster": "home", "stream": "orders", "offset": 5}')
    with Cursor(file, "home", "orders") as cursor:
        assert cursor.offset == 5
    with pytest.raises(ConfigError, match="in a folder that exists"):
        Cursor(tmp_path / "nowhere" / "place", "home", "orders")
