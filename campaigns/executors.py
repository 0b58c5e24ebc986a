"""Campaigns on executors: real nodes that are killed, and row changes that Spark folds to fingerprints."""

from __future__ import annotations

from pathlib import Path

from campaigns.campaign import Campaign, Report
from campaigns.clusters import scene
from tests.integration.journal.support.scenes import three
from tests.spark.support.row_change_scenes import execute, one_fingerprint
from tests.support.executor_scenes import kill_executors
from tests.support.postgres_scenes import kill_nodes_and_servers

ROUNDS = 5
KILLS = 10
POSTGRES_ROUNDS = 2
POSTGRES_KILLS = 5
FOLDED = 100_000


def kills() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        with three(directory / "three") as cluster:
            counts = kill_executors(cluster, kills=KILLS, seed=int(piece))
        return Report({**counts, "lost, doubled or different": 0})

    about = f"{ROUNDS} times {KILLS} kills at random moments while statements are executed; each applied once, alike"
    return scene("executor-kills", about, [str(number) for number in range(ROUNDS)], play)


def postgres_kills() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        counts = kill_nodes_and_servers(directory / "three", kills=POSTGRES_KILLS, seed=int(piece))
        return Report({**counts, "lost, doubled or different": 0})

    what = "kills of nodes with PostgreSQL, one of them with its server; each statement applied once, alike"
    about = f"{POSTGRES_ROUNDS} times {POSTGRES_KILLS} {what}"
    return scene("executor-postgres-kills", about, [str(number) for number in range(POSTGRES_ROUNDS)], play)


def fold() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        from chaplain.pipeline import local_session
        from chaplain.pipeline.landing.row_changes import fingerprint_at

        with three(directory / "three") as cluster:
            execute(cluster, FOLDED, seed=int(piece))
            executed = one_fingerprint(cluster)
            spark = local_session("local[2]")
            try:
                folded = {fingerprint_at(spark, node.folder / "databases/rows/main", "main").hex() for node in cluster}
            finally:
                spark.stop()
        assert folded == {executed}, f"Spark has {folded}, executors have {executed}"
        return Report({"statements": FOLDED, "nodes whose row changes add up to the fingerprint": 3})

    about = f"{FOLDED:,} statements on three nodes; Spark folds each node's row changes to the executors' fingerprint"
    return scene("executor-fold", about, ["1"], play)


OF_EXECUTORS = [kills(), postgres_kills(), fold()]
