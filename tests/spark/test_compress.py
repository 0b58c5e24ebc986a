"""`compress` on a real cluster: less on disk, and nothing that can no longer be had: by checkpoint, copy and tail."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from chaplain import Client
from chaplain.cli.main import main
from chaplain.errors import Dropped
from chaplain.pipeline import verify
from tests.integration.journal.support.catch_up import wipe
from tests.integration.journal.support.scenes import Load, status, three, wait_until_same
from tests.spark.support.row_change_scenes import execute, one_fingerprint
from tests.support.process_cluster import Cluster, Node, until

pytestmark = pytest.mark.timeout(400)

SMALL = "[journal]\nsegment_bytes = 327680\n"
STREAM = "bulk"
VALUE = bytes(40_000)
ROWS, THROUGH = 40, 30
STATEMENTS = 2_000


def fill(cluster: Cluster) -> None:
    """Statements, then rows."""
    execute(cluster, STATEMENTS, seed=2)
    with Client.connect(cluster.directory, timeout=60) as client:
        for _ in range(ROWS):
            client.journal(STREAM).write(VALUE)
    wait_until_same(cluster)


def size_of(node: Node) -> int:
    size_bytes = 0
    for file in (node.folder / "segments").glob("journal-*.segment"):
        with suppress(FileNotFoundError):  # it goes while we look
            size_bytes += file.stat().st_size
    return size_bytes


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[object, str, str]:
    """A command's exit code, output and complaint."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", *map(str, words)])
    return ended.value.code, *capsys.readouterr()


def fold_at(folder: Path) -> tuple[object, ...]:
    return "fold", "--path", folder / "databases/rows/main", "--stream", "main", "--fingerprint"


def lose_and_return(cluster: Cluster, victim: Node) -> None:
    """Its disk is wiped, and it has a vote again while others write."""
    load = Load(cluster, writers=2)
    victim.kill()
    wipe(victim)
    load.await_progress()
    victim.start()
    until(lambda: bool(victim.lines("starting again")), "it took a checkpoint from the others")
    until(lambda: status(victim).get("standing") == "sound", "it has a vote again")
    load.await_progress()
    for writer in load.writers:
        writer.end()
    wait_until_same(cluster)


def test_new_node_catches_up_after_compress_and_fold_equals_the_executors(spark, tmp_path, capsys) -> None:
    directory = tmp_path / "three"
    with three(directory, SMALL) as cluster:
        fill(cluster)
        before = {node.number: size_of(node) for node in cluster}
        words = ("--cluster", directory, "--stream", STREAM, "--through", THROUGH, "--node", 2, "--output", "json")
        code, out, err = run(capsys, "compress", *words)
        assert code == 0, err
        freed = json.loads(out)
        assert [(one["node"], one["done"]) for one in freed] == [(1, True), (2, True), (3, True)]
        assert all(one["bytes"] > 0 for one in freed)
        until(lambda: all(size_of(node) < before[node.number] for node in cluster), "disk use falls")
        assert verify(spark, cluster=str(directory)).count() == 0

        victim = cluster[3]
        lose_and_return(cluster, victim)
        with Client.connect(directory, node=victim.number, timeout=60) as client:
            client.sql("main").execute("insert into stock values ('the tail', 1)")
            (row,) = client.sql("main").query("select count(*) as n from orders")
            assert row["n"] > STATEMENTS / 4
            with pytest.raises(Dropped, match="the first one kept is"):
                list(client.journal(STREAM).read(start=0))
            put_back = [message.offset for message in client.journal(STREAM).read()]
        with Client.connect(directory, node=1, timeout=60) as client:
            offsets = [message.offset for message in client.journal(STREAM).read()]
            assert offsets == list(range(offsets[0], ROWS))
            assert 0 < offsets[0] <= THROUGH + 1, "more went than was released, or nothing"
        assert put_back == list(range(THROUGH + 1, ROWS)), "what was not released, and others keep, is here again"
        assert verify(spark, cluster=str(directory), signatures=True).count() == 0

        assert run(capsys, *fold_at(cluster[1].folder))[:2] == (0, f"{one_fingerprint(cluster)}\n")
        code, _, err = run(capsys, *fold_at(victim.folder))
        assert (code, "begin with offset" in err) == (1, True), "changes from the middle on add up to nothing"


def test_missing_folder_of_row_changes_is_reported(tmp_path: Path, capsys) -> None:
    code, _, err = run(capsys, *fold_at(tmp_path / "absent"))
    assert (code, "there are no segments" in err) == (1, True)
