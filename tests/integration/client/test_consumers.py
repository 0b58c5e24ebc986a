"""Named consumers with real processes: workers and nodes are killed and stopped while messages are processed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chaplain import Client, LeaseLost, Misused, Refused
from tests.integration.client.consumer_scenes import KINDS, Workers, check_order, strike, wait_until_done, write
from tests.support.process_cluster import Cluster, running, until

MESSAGES = 3000
KEYS = 50
PAUSE_S = 1.0
"""A worker is stopped for up to twice this time, which is its lease."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("consumers") / "three", 3) as made:
        yield made


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client.connect(cluster.directory, timeout=60) as made:
        yield made


def strike_with_all_kinds(cluster: Cluster, workers: Workers, rng: random.Random) -> None:
    for kind in rng.sample(KINDS, len(KINDS)):
        strike(cluster, workers, kind, rng, PAUSE_S)


@pytest.mark.parametrize("mode", ["single", "keyed", "queue"])
def test_every_message_is_processed_although_workers_and_nodes_are_killed(
    cluster: Cluster, tmp_path: Path, mode: str
) -> None:
    stream = f"killed-{mode}"
    write(cluster.directory, stream, MESSAGES // 2, KEYS)
    with Workers(cluster.directory, tmp_path / "notes", stream, mode, 3) as workers:
        strike_with_all_kinds(cluster, workers, random.Random(mode))
        write(cluster.directory, stream, MESSAGES // 2, KEYS)
        wait_until_done(cluster.directory, stream, workers, MESSAGES)
        notes = workers.notes()
    check_order(notes, MESSAGES, in_order=mode != "queue")


def test_statements_are_executed_once_for_each_message(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    client.sql("main").execute("create table done (place integer)")
    write(cluster.directory, "sql", 300, KEYS)
    with Workers(cluster.directory, tmp_path / "notes", "sql", "sql", 2) as workers:
        strike_with_all_kinds(cluster, workers, random.Random(1))
        wait_until_done(cluster.directory, "sql", workers, 300)
    (row,) = client.sql("main").query("select count(*) as all_rows, count(distinct place) as places from done")
    assert (row["all_rows"], row["places"]) == (300, 300)


def test_standby_takes_over_and_the_former_holder_cannot_acknowledge(cluster: Cluster, client: Client) -> None:
    write(cluster.directory, "taken", 10, 1)
    journal = client.journal("taken")
    holder = journal.consume("taken", lease=1, timeout=60)
    first = next(iter(holder))
    holder._ticker.close()  # as if the process was stopped
    with journal.consume("taken", lease=1, timeout=60) as standby:
        again = next(iter(standby))
        assert (again.offset, standby.token > holder.token) == (first.offset, True)
        with pytest.raises(LeaseLost):
            first.execute("create table never (a)")
        again.ack()
        standby.commit()
    assert client.consumers("taken")[0].position == 1


def test_position_reaches_the_end_although_the_last_worker_had_nothing_to_process(
    cluster: Cluster, client: Client
) -> None:
    client.sql("main").execute("create table ended (place integer)")
    write(cluster.directory, "ended", 5, 5)
    journal = client.journal("ended")
    killed = journal.consume("ended", mode="keyed", lease=1, timeout=60)
    for message in killed:
        killed._ticker.close()  # as if the process was killed before it looked at the state again
        message.execute("insert into ended (place) values (?)", [message.offset], database="main")
        if message.offset == 4:
            break
    with journal.consume("ended", mode="keyed", lease=1, timeout=0.1) as successor:
        until(lambda: list(successor) == [] and client.consumers("ended")[0].lag == 0, "the position is at the end")
    (row,) = client.sql("main").query("select count(*) as found from ended")
    assert row["found"] == 5


def test_message_that_fails_again_and_again_is_written_to_the_dead_letter_stream(client: Client) -> None:
    client.journal("jobs").write_many([(b"good", b"k"), (b"bad", b"k")])
    seen = []
    with client.journal("jobs").consume(
        "jobs", mode="queue", max_deliveries=2, dead_letter="dead", timeout=60
    ) as consumer:
        for message in consumer:
            seen.append((message.value, message.deliveries))
            if message.value != b"bad":
                message.ack()
            else:
                message.nack()
                if message.deliveries == 2:
                    client.journal("jobs").write(b"last")
            if message.value == b"last":
                break
    assert sorted(seen) == [(b"bad", 1), (b"bad", 2), (b"good", 1), (b"last", 1)]
    (dead,) = client.journal("dead").read()
    assert (dead.value, dead.key, dead.headers["chaplain-dead-offset"]) == (b"bad", b"k", b"1")
    assert client.consumers("jobs")[0].lag == 0


def test_returned_message_is_delivered_again_before_what_follows_it(client: Client) -> None:
    client.journal("again").write_many([b"a", b"b", b"c"])
    seen = []
    with client.journal("again").consume("again", timeout=2) as consumer:
        for message in consumer:
            seen.append(message.value)
            if seen == [b"a", b"b"]:
                message.nack(delay=0.2)
            else:
                message.ack()
    assert seen == [b"a", b"b", b"b", b"c"]


def test_consumer_starts_where_it_is_asked_to_and_continues_where_it_was(client: Client) -> None:
    journal = client.journal("starts")
    journal.write_many([b"0", b"1"])
    since = datetime.now(UTC)
    until(lambda: datetime.now(UTC) > since, "time passes")
    journal.write_many([b"2", b"3"])

    def values(name: str, **how: object) -> list[bytes]:
        with journal.consume(name, timeout=1, **how) as consumer:  # type: ignore[arg-type]
            found = []
            for message in consumer:
                found.append(message.value)
                message.ack()
        return found

    assert values("earliest") == [b"0", b"1", b"2", b"3"]
    assert values("offset", start=3) == [b"3"]
    assert values("time", start=since) == [b"2", b"3"]
    assert values("latest", start="latest") == []
    journal.write(b"4")
    assert [values(name) for name in ("earliest", "latest")] == [[b"4"], [b"4"]]
    client.reset_consumer("starts", "earliest", 4)
    assert values("earliest") == [b"4"]
    client.remove_consumer("starts", "earliest")
    assert {one.name for one in client.consumers("starts")} == {"offset", "time", "latest"}
    with pytest.raises(Refused, match="mode 'single'"):
        next(iter(journal.consume("latest", mode="queue")))
    with pytest.raises(Misused):
        journal.consume("latest", max_deliveries=3)


def test_idle_consumers_write_nothing_to_the_journal(cluster: Cluster, client: Client) -> None:
    client.journal("idle").write(b"x", key=b"k")
    with client.journal("idle").consume("one", lease=1) as one, client.journal("idle").consume("one", lease=1) as two:
        next(iter(one)).ack()
        one.commit()
        before = client.journal("marks").write(b"before").index
        looked = time.monotonic() + 3  # several times the lease: whoever renews it by time would have written
        until(lambda: time.monotonic() > looked, "leases pass")
        after = client.journal("marks").write(b"after").index
        assert two.token
    assert after - before <= 2
