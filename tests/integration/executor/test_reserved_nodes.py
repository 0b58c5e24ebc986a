"""Three real nodes, one of them reserved for alice: bob writes elsewhere, and alice hears at once what would fail."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaplain import Client
from chaplain.cli.main import main
from chaplain.config import NODE_FILE, load_cluster
from chaplain.errors import StatementFailed
from chaplain.link.auth.identity import Identity
from tests.integration.journal.support.scenes import status, three
from tests.support.executor_scenes import fingerprints
from tests.support.process_cluster import Cluster, Node, until

pytestmark = pytest.mark.timeout(300)
STREAM = "main"


def reserve(directory: Path) -> None:
    file = directory / "node-3" / NODE_FILE
    file.write_text(file.read_text() + '\n[journal]\nreserved = ["alice"]\n')


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with three(tmp_path / "three", change=reserve) as made:
        yield made


def connect(cluster: Cluster, identity: Identity) -> Client:
    known = load_cluster(cluster.directory)
    ends = {"endpoints": [one.endpoint for one in known.nodes], "node_keys": [one.key for one in known.nodes]}
    return Client.connect(**ends, identity=identity, name=known.cluster, timeout=90)


def head(node: Node) -> int:
    return int(status(node).get("streams", {}).get(STREAM, {}).get("head", 0))


def is_at_rest(node: Node) -> bool:
    """Its database has done everything, and so can try something out."""
    found = status(node).get("databases", {}).get(STREAM, {})
    return (found.get("state"), found.get("behind")) == ("idle", 0)


def tries_out(client: Client, node: Node) -> bool:
    """Whether the client has come to this node: it begins with whichever greets it first."""
    client.sql(STREAM).execute("delete from t")
    return node.count("executor_dry_runs_passed") > 0


def refuses_early(client: Client, other: Node, node: Node) -> bool:
    """Whether a statement that fails was not even ordered: on a slow machine its client may be elsewhere."""
    until(lambda: is_at_rest(node) and head(node) == head(other), "everything is executed")
    before = head(node)
    with pytest.raises(StatementFailed, match="UNIQUE") as failed:
        client.sql(STREAM).execute("insert into t values (2, 'one')")
    assert failed.value.kind == "constraint"
    if failed.value.result is not None:
        return False
    assert "found by node 3" in str(failed.value)
    assert head(node) == head(other) == before, "nothing was ordered"
    return True


def test_reserved_node_serves_only_its_client_and_performs_dry_runs(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _, third = cluster
    alice, bob = (Identity.generate(random.SystemRandom()) for _ in range(2))
    with Client.connect(cluster.directory, timeout=90) as admin:
        admin.add_client("alice", alice.key)
        admin.add_client("bob", bob.key)

    with connect(cluster, bob) as client:
        client.sql(STREAM).execute("create table t(a integer primary key, b text unique)")

    with connect(cluster, alice) as client:
        sql = client.sql(STREAM)
        until(lambda: tries_out(client, third), "alice's statements go to her node")
        sql.execute("insert into t values (1, 'one')")
        until(lambda: refuses_early(client, first, third), "what would fail is refused at once", limit_s=180)
        assert sql.execute("insert into t values (2, 'two')").changes == 1
        assert [row["b"] for row in sql.query("select b from t order by a")] == ["one", "two"]
        until(lambda: third.count("executor_dry_runs_refused") >= 1, "metrics, which are up to a second old, say so")
        assert first.count("executor_dry_runs_passed") == 0
        until(lambda: len(fingerprints(cluster)) == 3 and len({*fingerprints(cluster)}) == 1, "all are equal")

        with pytest.raises(SystemExit):
            main(["cluster", "status", "--cluster", str(cluster.directory)])
        shown = capsys.readouterr().out
        assert "reserved" in shown
        assert "alice" in shown

        third.kill()
        assert sql.execute("insert into t values (3, 'three')").changes == 1
        with pytest.raises(StatementFailed, match="UNIQUE") as failed:
            sql.execute("insert into t values (4, 'three')")
        assert failed.value.result is not None, "executed, and failed, as everywhere else"
