"""Conditional writes with real nodes: what clients are told, and whether it is linearizable while nodes are killed."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator

import pytest

from chaplain import AsyncClient, Client, Conflict, Misused
from tests.integration.client.condition_scenes import Competition, check, compete
from tests.support.process_cluster import PROGRAM, Cluster, running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("conditions") / "three", 3) as made:
        yield made


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client.connect(cluster.directory, timeout=60) as made:
        yield made


def test_competing_writes_are_linearizable_while_nodes_are_killed(cluster: Cluster) -> None:
    records = compete(cluster, Competition(operations=400, per_stream=100, clients=4), seed=1, kill_s=1.0)
    counts = check(cluster.directory, records)
    assert counts["written"] > 50
    assert counts["conflicts"] > 20


def test_conflict_names_the_offset_that_violates_the_condition(client: Client) -> None:
    journal = client.journal("offsets")
    assert journal.write(b"a", expect_offset=0).offset == 0
    with pytest.raises(Conflict) as failed:
        journal.write_many([b"b", b"c"], expect_offset=0)
    assert (failed.value.kind, failed.value.offset) == ("conflict", 1)
    assert [receipt.offset for receipt in journal.write_many([b"b", b"c"], expect_offset=1)] == [1, 2]
    assert journal.write(b"d", key=b"k", headers={"h": b"v"}, expect_key_version=2).offset == 3
    with pytest.raises(Conflict) as failed:
        journal.write(b"e", key=b"k", expect_key_version=2)
    assert failed.value.offset == 3
    with pytest.raises(Conflict) as failed:
        journal.write(b"e", key=b"older", expect_key_version=-1)
    assert (failed.value.kind, failed.value.offset) == ("outside_window", 3)
    assert journal.write(b"f", fence=("leader", 7)).offset == 4
    with pytest.raises(Conflict) as failed:
        journal.write(b"g", fence=("leader", 6))
    assert failed.value.kind == "stale_token"
    assert [message.value for message in journal.read()] == [b"a", b"b", b"c", b"d", b"f"]


def test_write_conflicts_with_later_writes_that_share_a_tag(client: Client) -> None:
    journal = client.journal("tags")
    first = journal.write(b"a", tags=["red", "blue"], expect_tags={"red": -1, "green": -1})
    assert journal.write_many([b"b", b"c"], tags=["green"], expect_tags={"blue": first.offset})[0].offset == 1
    with pytest.raises(Conflict) as failed:
        journal.write(b"d", tags=["red"], expect_tags={"red": 0, "green": 1})
    assert failed.value.offset == 2
    assert journal.write(b"d", tags=["red"], expect_tags={"red": 0, "green": 2}).offset == 3
    assert [message.headers.get("chaplain-tags") for message in journal.read()] == [b"red,blue", b"green", None, b"red"]


def test_writes_that_follow_a_conflict_are_written(client: Client) -> None:
    journal = client.journal("follow")
    lanes = set()
    for number in range(20):
        with pytest.raises(Conflict):
            journal.write(b"never", expect_offset=1000)
        lanes.add(journal.write(b"%d" % number).client_id)
    assert len(lanes) == 1, "a conflict does not end the lane"
    assert [message.value for message in journal.read()] == [b"%d" % number for number in range(20)]


def test_of_concurrent_writes_with_one_offset_exactly_one_is_written(cluster: Cluster) -> None:
    async def race() -> list[object]:
        async with AsyncClient.connect(cluster.directory, timeout=60) as client:
            journal = client.journal("race")
            writes = [journal.write(b"%d" % number, expect_offset=0) for number in range(20)]
            return await asyncio.gather(*writes, return_exceptions=True)

    found = asyncio.run(race())
    assert sum(not isinstance(one, Conflict) for one in found) == 1
    assert {one.offset for one in found if isinstance(one, Conflict)} == {1}


def test_wrong_conditions_are_refused_before_anything_is_sent(client: Client) -> None:
    journal = client.journal("wrong")
    for wrong in (
        {"expect_offset": -1},
        {"expect_key_version": 1},
        {"fence": "leader"},
        {"fence": ("leader", -1)},
        {"tags": "red"},
        {"tags": ["red", "red"]},
        {"expect_tags": {"a,b": 1}},
        {"headers": {"chaplain-conditions": b""}, "expect_offset": 0},
    ):
        with pytest.raises(Misused):
            journal.write(b"x", **wrong)  # type: ignore[arg-type]
    with pytest.raises(Misused):
        journal.write_many([b"x"], expect_key_versions={b"k": -2})


def test_command_line_writes_under_a_condition(cluster: Cluster) -> None:
    command = [*PROGRAM, "journal", "write", "a", "--expect-offset", "0", "--stream", "cli"]
    command += ["--cluster", str(cluster.directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout)["offset"] == 0
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert refused.returncode != 0
    assert "offset 1" in refused.stderr


def test_log_with_refused_writes_is_verified_without_a_break(cluster: Cluster, client: Client) -> None:
    journal = client.journal("verified")
    for number in range(3):
        journal.write(b"written", expect_offset=number)
        with pytest.raises(Conflict):
            journal.write(b"refused", expect_offset=number)
    command = [*PROGRAM, "verify", "--cluster", str(cluster.directory), "--signatures"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
