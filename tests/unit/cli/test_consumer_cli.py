"""`chaplain consumer` as a person types it, against a real cluster, and the cursor of a stream with retention."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaplain import Client
from tests.unit.cli.test_journal_cli import chaplain, failure


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("clusters") / "c"
    assert chaplain("cluster", "up", "--nodes", "1", "--dir", directory).returncode == 0
    with Client.connect(directory) as client:
        for stream in ("orders", "audit"):
            client.journal(stream).write_many([b"one", b"two", b"three"])
            with client.journal(stream).consume("billing", timeout=10) as consumer:
                next(iter(consumer)).ack()
        with client.journal("orders").consume("mail", mode="queue", timeout=10) as consumer:
            next(iter(consumer)).ack()
    yield directory
    assert chaplain("cluster", "down", "--cluster", directory).returncode == 0


def found(*arguments: str | Path) -> object:
    done = chaplain(*arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_consumers_are_listed_with_their_lag(cluster: Path) -> None:
    listed = found("consumer", "list", "--cluster", cluster)
    assert isinstance(listed, list)
    assert [(one["stream"], one["name"], one["position"], one["lag"]) for one in listed] == [
        ("audit", "billing", 1, 2),
        ("orders", "billing", 1, 2),
        ("orders", "mail", 1, 2),
    ]
    assert "billing" in chaplain("consumer", "list", "--stream", "audit", "--cluster", cluster).stdout


def test_consumer_is_shown_by_its_name_and_by_its_stream_if_needed(cluster: Path) -> None:
    shown = found("consumer", "show", "mail", "--cluster", cluster)
    assert isinstance(shown, dict)
    assert (shown["mode"], shown["owner"], shown["members"]) == ("queue", "default", [])
    assert "--stream" in failure("consumer", "show", "billing", "--cluster", cluster, code=2)
    table = chaplain("consumer", "show", "billing", "--stream", "orders", "--cluster", cluster)
    assert "single" in table.stdout
    assert "nobody" in failure("consumer", "show", "nobody", "--cluster", cluster)


def test_consumer_is_reset_and_removed_only_with_yes(cluster: Path) -> None:
    where = ("--stream", "orders", "--cluster", cluster)
    assert chaplain("consumer", "reset", "billing", "--to", "3", *where).returncode == 1
    done = chaplain("consumer", "reset", "billing", "--to", "3", "--yes", *where)
    assert json.loads(done.stdout)["lag"] == 0, done.stderr
    assert "--to" in failure("consumer", "reset", "billing", "--to", "yesterday", "--yes", *where, code=2)
    assert chaplain("consumer", "reset", "billing", "--to", "2001-01-01T00:00:00Z", "--yes", *where).returncode == 0
    assert chaplain("consumer", "remove", "billing", "--yes", *where).returncode == 0
    assert "billing" in failure("consumer", "show", "billing", *where)


def test_new_cursor_begins_at_the_first_retained_message(cluster: Path, tmp_path: Path) -> None:
    with Client.connect(cluster) as client:
        journal = client.journal("trimmed")
        journal.write_many([b"x" * 1000] * 10)
        with journal.cursor(tmp_path / "whole") as cursor:
            assert cursor.offset == 0
            cursor.commit(4)
        with journal.cursor(tmp_path / "whole") as cursor:
            assert cursor.offset == 4
        with journal.cursor(tmp_path / "fresh") as cursor:
            (record,) = [one for one in client.streams() if one.stream == "trimmed"]
            assert cursor.offset == record.first_offset
