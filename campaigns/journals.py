"""Campaigns on real journals: the scenes of `tests/integration/journal`, longer."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from campaigns.campaign import Campaign, Report
from campaigns.clusters import scene
from tests.integration.journal.support.catch_up import come_back
from tests.integration.journal.support.config_scenes import grow_and_shrink
from tests.integration.journal.support.memory import STUCK_KIB_MAX, flat, pour, stuck_follower, stuck_reader
from tests.integration.journal.support.scenes import batter, find_master, three, wait_until_same
from tests.support.process_cluster import Cluster

ROUNDS = 5
CONFIG_ROUNDS = 5
STALL_S_MAX = 1.0
STUCK_MIB = 512
MESSAGES = 5_000_000
CATCH_UP_MIB = 1024
RETURN_S_MAX = 60.0
FLAT = 1.1
"""Upper bound for the growth of a node's memory over the last nine tenths of the messages, as a factor."""


def kills() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        with three(directory / "three") as cluster:
            counts, gaps = batter(cluster, masters=4, anyone=4, everybody=1, pauses=1, seed=int(piece))
        blows = {"kills of the master": 4, "kills of anyone": 4, "kills of all": 1, "pauses of the master": 1}
        return Report({**blows, **counts, "lost or doubled": 0}, times_s={"blow to next acknowledged write": gaps})

    about = f"{ROUNDS} times under load: 4 kills of the master, 4 of anyone, 1 of all, 1 pause of the master for 5 s"
    return scene("journal-kills", about, [str(number) for number in range(ROUNDS)], play)


def config() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        with three(directory / "three") as cluster:
            counts, stages, longest_s = grow_and_shrink(cluster)
        assert longest_s <= STALL_S_MAX, f"nobody was answered for {longest_s:.2f} s"
        assert counts["refused"] == 0, f"{counts['refused']} writes were refused"
        done = {"stages": len(stages), **counts, "lost or doubled": 0}
        return Report(done, times_s={"longest time without an answer": [longest_s]})

    about = f"{CONFIG_ROUNDS} times under load: 3 to 5 serializers, one replaced, back to 3, roles given and taken"
    return scene("config-real", about, [str(number) for number in range(CONFIG_ROUNDS)], play)


def memory() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        with three(directory / "three") as cluster:
            if piece == "flat":
                return _flat(cluster)
            pour(cluster, 64, find_master(cluster))
            wait_until_same(cluster)
            stuck = stuck_follower if piece == "follower" else stuck_reader
            grown = stuck(cluster, STUCK_MIB)
        assert grown <= STUCK_KIB_MAX, f"a stuck {piece} cost {grown} KiB"
        return Report({f"KiB grown, stuck {piece}": grown, f"MiB written, stuck {piece}": STUCK_MIB})

    about = f"a stuck follower and a stuck reader while {STUCK_MIB} MiB are written; {MESSAGES:,} messages of 100 bytes"
    return scene("journal-memory", about, ["follower", "reader", "flat"], play)


def _flat(cluster: Cluster) -> Report:
    """Check that a node's memory stays flat.

    The first step fills the caches for members that lag behind; after it the memory must not grow. Messages in flight
    make single measurements vary, so the median of three steps counts.
    """
    seen = flat(cluster, MESSAGES)
    grown = max(median(now[node] for now in seen[-3:]) / median(now[node] for now in seen[:3]) for node in seen[0])
    assert grown <= FLAT, f"grown to {grown:.3f} of what it was: {seen}"
    return Report(
        {"messages": MESSAGES, "RSS KiB after a tenth": max(seen[0].values()), "RSS KiB": max(seen[-1].values())}
    )


def catch_up() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        with three(directory / "three") as cluster:
            found = come_back(cluster, CATCH_UP_MIB, by_checkpoint=piece == "checkpoint")
        assert found.back_s <= RETURN_S_MAX, f"it took {found.back_s:.1f} s"
        assert found.stall_s <= STALL_S_MAX, f"nobody was answered for {found.stall_s:.2f} s"
        times = {f"wiped to voting, by {piece}": [found.back_s], "longest time without an answer": [found.stall_s]}
        return Report({"MiB written": CATCH_UP_MIB, f"MiB of log, by {piece}": found.log_mib}, times_s=times)

    about = f"a wiped node comes back under load, with {CATCH_UP_MIB} MiB of log, and with a checkpoint instead"
    return scene("catch-up", about, ["log", "checkpoint"], play)


ON_REAL_JOURNALS = [kills(), config(), memory(), catch_up()]
