"""Campaigns on Spark drivers that write: the scenes of `tests/spark`, longer."""

from __future__ import annotations

from pathlib import Path

from campaigns.campaign import Campaign, Report
from campaigns.clusters import scene
from tests.integration.journal.support.scenes import three
from tests.spark.support.anywhere_scenes import connect, run, standalone
from tests.spark.support.sink_scenes import fill, kill_drivers, kill_writers

KILLS_A_PIECE = 5
PIECES = 4


def kills() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        with three(directory / "three") as cluster:
            fill(cluster.directory, 6000)
            counts = kill_drivers(cluster.directory, directory / "checkpoint", kills=KILLS_A_PIECE, seed=int(piece))
        return Report(counts)

    about = f"{KILLS_A_PIECE * PIECES} kills of a Spark driver in the middle of a batch that it writes"
    return scene("sink-kills", about, [str(number) for number in range(PIECES)], play)


def writers() -> Campaign:
    """Run the same scenes without Spark, many times, and sometimes kill a node."""

    def play(piece: str, directory: Path) -> Report:
        with three(directory / "three") as cluster:

            def node() -> None:
                victim = cluster[int(piece) % 3 + 1]
                victim.kill()
                victim.start()

            return Report(kill_writers(cluster.directory, directory / "progress", 25, int(piece), node))

    about = "100 kills of a writer of batches while it stages, commits or notes it, and 4 of a node"
    return scene("sink-writers", about, [str(number) for number in range(4)], play)


def anywhere() -> Campaign:
    """Check that a job reads and writes the same in every kind of Spark deployment."""

    def play(piece: str, directory: Path) -> Report:
        with three(directory / "three") as cluster:
            fill(cluster.directory)
            local = run("local", cluster.directory, "local", directory)
            start = standalone if piece == "standalone" else connect
            with start(directory) as where:
                found = run(where, cluster.directory, piece, directory)
        assert found == local, f"{piece} saw or wrote something else than local[2]"
        return Report({f"rows read and written alike, {piece}": found[0]})

    about = "one job on local[2], on a standalone master with two workers, and over Connect: identical output"
    return scene("spark-anywhere", about, ["standalone", "connect"], play)


ON_SINKS = [kills(), writers(), anywhere()]
