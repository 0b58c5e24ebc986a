"""SQL through both faces and the command line, against a real cluster of three nodes."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from chaplain import AsyncClient, Client
from chaplain.cli.main import main
from chaplain.config import load_cluster
from chaplain.errors import Missing, NotExecutor, Refused, StatementFailed, Unknown
from chaplain.executor.fingerprint import Tallies, fingerprint_of
from chaplain.link.auth.identity import Identity
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.cluster.local import bring_down, bring_up
from chaplain.runtime.databases.sqlite.metadata import SqliteStore
from chaplain.runtime.databases.sqlite.row_tracker import SqliteRowTracker
from tests.integration.journal.support.scenes import find_master, status, three
from tests.support.executor_scenes import STATEMENTS_BETWEEN, fingerprints, kill_executors
from tests.support.process_cluster import Cluster, Node, until

pytestmark = pytest.mark.timeout(300)
KILLS = 6
"""Three of each of two nodes; the campaign `executor-kills` has 50."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with three(tmp_path_factory.mktemp("sql") / "three") as cluster:
        yield cluster


def test_statements_results_and_queries_work_on_sqlite(cluster: Cluster) -> None:
    with Client.connect(cluster.directory) as client:
        sql = client.sql("main")
        sql.execute("create table t(a integer primary key, b text)")
        made = sql.execute("insert into t(b) values (?), (?) returning a", ["x", "y"])
        assert (made.ok, made.changes, [row["a"] for row in made.rows]) == (True, 2, [1, 2])
        with pytest.raises(StatementFailed, match="UNIQUE") as failed:
            sql.execute("insert into t(a) values (1)")
        assert failed.value.kind == "constraint"
        moved = sql.transaction([("update t set b = ? where a = ?", ["z", 1]), "delete from t where a = 2"])
        assert moved.changes == 2
        (row,) = sql.query("select a, b from t where a = :a", {"a": 1})
        assert (row, row["b"], row[1]) == ({"a": 1, "b": "z"}, "z", "z")
        assert [result.ok for result in sql.results(delete=False)] == [True, True, False, True]
        assert [result.ok for result in sql.results()] == [True, True, False, True]
        assert sql.results() == []
        kept = [sql.execute("insert into t(b) values (?)", [value]) for value in ("p", "q", "r")]
        assert sql.results(through=kept[1].id) == kept[:2]
        assert sql.results() == kept[2:]
        with pytest.raises(Refused, match="no such table"):
            sql.query("select * from absent")
        with pytest.raises(Missing, match="no database"):
            client.sql("empty").query("select 1")


def test_fresh_query_sees_writes_agreed_at_any_node(cluster: Cluster) -> None:
    with Client.connect(cluster.directory, node=1) as one, Client.connect(cluster.directory, node=2) as two:
        one.sql("fresh").execute("create table n(a)")
        for number in range(30):
            one.sql("fresh").execute("insert into n values (?)", [number])
            assert two.sql("fresh").query("select count(*) c from n")[0]["c"] == number + 1


def test_node_without_the_executor_role_refers_clients_to_another(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    number = find_master(cluster).number % 3 + 1  # one that is not the master
    here = ["--cluster", str(cluster.directory), "--stream", "roles", "--node", str(number)]
    with (
        Client.connect(cluster.directory, node=number % 3 + 1) as admin,
        Client.connect(cluster.directory, node=number) as pinned,
    ):
        admin.sql("roles").execute("create table t(a)")
        early = pinned.sql("roles")
        early.execute("delete from t")  # it has seen that statements are executed there
        admin.remove_node(number, "executor")
        try:
            until(lambda: _is_refused(pinned), "the node answers no query")
            for words in (["query", "select * from t"], ["results"]):
                with pytest.raises(SystemExit, match="1"):
                    main(["sql", *words, *here])
                assert "this node is no executor" in capsys.readouterr().err
            fresh = Client.connect(cluster.directory, node=number)
            with fresh, pytest.raises(NotExecutor, match="this node is no executor"):
                fresh.sql("roles").execute("insert into t values (0)")  # never written
            with pytest.raises(Unknown, match=r"this node is no executor.* is written") as unknown:
                early.execute("insert into t values (1)")
            told = admin.sql("roles").execute("insert into t values (1)", id=unknown.value.id)
            assert (told.changes, tuple(told.id)) == (1, unknown.value.id)
            for _ in range(5):  # whichever of the nodes it goes to first
                with Client.connect(cluster.directory) as anywhere:
                    assert anywhere.sql("roles").query("select a from t") == [{"a": 1}]
        finally:
            admin.add_node(number, "executor")
            until(lambda: not _is_refused(pinned), "the node has its role back")


def _is_refused(client: Client) -> bool:
    try:
        client.sql("roles").query("select * from t")
    except Refused:
        return True
    return False


def test_thousands_of_concurrent_statements_are_executed(cluster: Cluster) -> None:
    async def run() -> None:
        async with AsyncClient.connect(cluster.directory) as client:
            sql = client.sql("async")
            await sql.execute("create table t(a)")
            inserts = [sql.execute("insert into t values (?) returning a", [n]) for n in range(3000)]
            assert [result.rows[0]["a"] for result in await asyncio.gather(*inserts)] == list(range(3000))
            failing = [sql.execute("insert into absent values (1)") for _ in range(5)]
            failed = await asyncio.gather(*failing, return_exceptions=True)
            assert [type(one) for one in failed] == [StatementFailed] * 5
            async with sql.writer() as writer:
                for number in range(1000):
                    await writer.execute("insert into t values (?)", [number])
            assert [row["c"] for row in await sql.query("select count(*) c from t")] == [4000]
            assert len(await sql.results()) == 4006

    asyncio.run(run())


def test_sql_rights_are_enforced(cluster: Cluster) -> None:
    identity = Identity.generate(random.SystemRandom())
    with Client.connect(cluster.directory) as admin:
        admin.sql("mine").execute("create table t(a)")
        admin.add_client("reader", identity.key, write=["other"], read=["mine"])
    known = load_cluster(cluster.directory)
    where = {"endpoints": [one.endpoint for one in known.nodes], "node_keys": [one.key for one in known.nodes]}
    with Client.connect(**where, identity=identity, name=known.cluster) as reader:
        assert reader.sql("mine").query("select * from t") == []
        with pytest.raises(Refused, match="may not write"):
            reader.sql("mine").execute("insert into t values (1)")
        with pytest.raises(Refused, match="may not read"):
            reader.sql("main").query("select 1")
        assert reader.sql("mine").results() == []  # not the admin's


def test_sql_commands_work_from_the_shell(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--cluster", str(cluster.directory), "--output", "json", "--stream", "cli"]

    def run(*words: str) -> tuple[object, object]:
        with pytest.raises(SystemExit) as end:
            main(["sql", *words, *where])
        said = capsys.readouterr().out
        return end.value.code, json.loads(said) if said else None

    assert run("exec", "create table t(a, b)")[0] == 0
    code, result = run("exec", "insert into t values (?, ?)", "--param", "5", "--param", "five")
    assert code == 0
    assert isinstance(result, dict)
    assert (result["ok"], result["changes"], result["stream"]) == (True, 1, "cli")
    assert run("query", "select * from t") == (0, [{"a": 5, "b": "five"}])
    assert run("exec", "insert into absent values (1)") == (1, None)
    assert run("results") == run("results"), "only --delete deletes"
    code, results = run("results", "--delete")
    assert isinstance(results, list)
    assert [one["ok"] for one in results] == [True, True, False]
    assert run("results") == (0, [])
    lane, last = results[-1]["client_id"], results[-1]["client_message_id"]
    assert run("results", "--through", str(lane), str(last)) == (0, [])


def test_status_shows_fingerprints_at_one_position(cluster: Cluster) -> None:
    with Client.connect(cluster.directory) as client:
        client.sql("main").execute("create table if not exists s(a)")
    until(lambda: len(set(fingerprints(cluster))) == 1 and len(fingerprints(cluster)) == 3, "fingerprints are equal")


def test_executors_killed_repeatedly_apply_every_statement_once(tmp_path: Path) -> None:
    with three(tmp_path / "kills") as cluster:
        counts = kill_executors(cluster, kills=KILLS, seed=1)
    assert counts["kills"] == KILLS
    assert counts["statements acknowledged"] >= KILLS * STATEMENTS_BETWEEN, (
        "the scene waits for so many before each kill"
    )


def of_database(node: Node, stream: str) -> dict:
    return status(node).get("databases", {}).get(stream, {})


def tamper(node: Node, stream: str, sql: str, *, forge: bool = False) -> None:
    """Change rows behind an executor's back, and what is kept of them, too, if it is to be forged."""
    connection = apsw.Connection(str(node.folder / "databases" / f"{stream}.sqlite"))
    connection.execute(sql)
    if forge:
        store, tracker = SqliteStore(connection, stream), SqliteRowTracker(connection, Tallies())
        tracker.open()
        tallies, state = tracker.read_again(bool).values(), store.state
        position = (state.index, state.requests, state.whole)
        store.put_state(position, tallies, fingerprint_of(tracker._schema, tallies), state.budget, state.changes)
    connection.close()


@pytest.mark.parametrize("cleanly", [False, True])
def test_row_damaged_while_a_node_is_down_is_found_and_repaired(cluster: Cluster, cleanly: bool) -> None:
    """After an unclean end by itself; else when the executor stops because it differs from the others."""
    stream = f"rots-{cleanly}"
    victim = list(cluster)[-1]
    with Client.connect(cluster.directory, node=1, timeout=60) as client:
        sql = client.sql(stream)
        sql.execute("create table t(a integer primary key, b)")
        made = sql.execute("insert into t(b) values ('one'), ('two')")
        until(lambda: of_database(victim, stream).get("position") == made.index, "all have executed it")
        victim.stop() if cleanly else victim.kill()
        tamper(victim, stream, "update t set b = 'rotten' where a = 1")
        if not cleanly:  # which closed it
            (victim.folder / "databases" / f"{stream}.sqlite-wal").touch()
        victim.start()
        until(lambda: of_database(victim, stream).get("position") == made.index, "it is back")
        if cleanly:
            sql.execute("update t set b = 'three' where a = 1")
        until(lambda: "t: 2 rows" in of_database(victim, stream).get("damage", ""), "the damage is found and named")
        last = sql.execute("insert into t(b) values ('last')")
        until(lambda: of_database(victim, stream).get("position") == last.index, "it has caught up")
    with Client.connect(cluster.directory, node=victim.number, timeout=60) as client:
        rows = [row["b"] for row in client.sql(stream).query("select b from t")]
    assert rows == ["three" if cleanly else "one", "two", "last"]
    until(lambda: len(set(fingerprints(cluster))) == 1 and len(fingerprints(cluster)) == 3, "fingerprints are equal")


def test_executor_that_differs_stops_with_the_reason(cluster: Cluster) -> None:
    def state(node: Node) -> dict:
        return of_database(node, "differs")

    victim = list(cluster)[-1]
    with Client.connect(cluster.directory, node=1, timeout=60) as client:
        sql = client.sql("differs")
        sql.execute("create table t(a integer primary key, b)")
        made = sql.execute("insert into t(b) values ('one'), ('two')")
        until(lambda: state(victim).get("position") == made.index, "all have executed it")
        victim.kill()
        tamper(victim, "differs", "update t set b = 'another' where a = 1", forge=True)
        victim.start()
        until(lambda: state(victim).get("position") == made.index, "it is back")
        sql.execute("update t set b = 'three' where a = 2")
        until(lambda: state(victim).get("state") == "stopped", "the one that differs has stopped")
        assert f"node {victim.number} differs" in state(victim)["trouble"]
        assert [row["b"] for row in sql.query("select b from t")] == ["one", "three"]
    with (
        Client.connect(cluster.directory, node=victim.number, timeout=60) as client,
        pytest.raises(Refused, match="stopped"),
    ):
        client.sql("differs").query("select b from t")
    assert all(state(node)["state"] != "stopped" for node in cluster if node is not victim)


def test_cluster_without_databases_refuses_statements(tmp_path: Path) -> None:
    directory = tmp_path / "none"
    make_cluster(directory, 1, "none", None)
    bring_up(directory, lambda _: None)
    try:
        with Client.connect(directory, timeout=30) as client:
            for write in (lambda: client.sql("main").execute("create table t(a)"), client.sql("main").writer):
                with pytest.raises(NotExecutor, match="executes no statements: its database is set to none"):
                    write()
            with pytest.raises(Missing):
                list(client.journal("main").read())
            assert not (directory / "node-1" / "databases").exists()
    finally:
        bring_down(directory)
