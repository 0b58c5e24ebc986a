"""Campaigns on real clusters: scenes of `tests/integration/cluster`, longer, repeated, and with default settings."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from campaigns.campaign import Campaign, Report
from tests.integration.cluster import membership_scenes, partition_scenes
from tests.integration.cluster.attack_scenes import ATTACKS, strangers_change_nothing
from tests.integration.cluster.rogue_scenes import impostor_is_refused, liar_evicts_nobody
from tests.integration.cluster.traffic_scenes import keys_rotate_under_traffic, receiver_restarts
from tests.support import network_namespaces as namespaces
from tests.support.process_cluster import SILENCE_S, founded, running

NODES = 5
PARTITION_S = 60.0


def scene(name: str, about: str, pieces: list[str], play: Callable[[str, Path], Report]) -> Campaign:
    """Return a campaign that plays a scene. A failed assertion is a finding, with its location."""

    def run(piece: str) -> Report:
        with tempfile.TemporaryDirectory(prefix="chaplain-prove-") as directory:
            try:
                return play(piece, Path(directory))
            except (AssertionError, OSError):
                return Report({"broken": 1}, [f"{name} {piece}: {traceback.format_exc()}"])

    return Campaign(name, about, lambda quick: pieces[:1] if quick else pieces, run)


def membership(clusters: int) -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        """Kill, restart and pause every node in turn."""
        with founded(directory / "five", NODES, one_door=True) as cluster:
            cluster.start()
            cluster.wait_until_whole()
            times: dict[str, list[float]] = {"all met": [membership_scenes.all_meet(cluster)]}
            for victim in cluster.nodes:
                lost = membership_scenes.one_dies(cluster, victim)
                back = membership_scenes.it_comes_back(cluster, victim)
                trusted = membership_scenes.one_stands_still(cluster, victim)
                for what, took in (
                    ("dead is left", lost),
                    ("restarted is back", back),
                    ("resumed is alive", [trusted]),
                ):
                    times.setdefault(what, []).extend(took)
            assert times["all met"][0] <= membership_scenes.MEET_S, times
        return Report({"kills": NODES, "pauses": NODES, "removed wrongly": 0}, times_s=times)

    about = f"{clusters} clusters of {NODES}, T = {SILENCE_S:g} s: each node killed, restarted, paused for 1.5T"
    return scene("cluster-membership", about, [str(number) for number in range(clusters)], play)


def partitions() -> Campaign:
    splits = [f"{one}{one % NODES + 1}" for one in range(1, NODES + 1)]

    def play(piece: str, directory: Path) -> Report:
        if reason := namespaces.missing():
            return Report({"left out": 1}, [reason])
        one = tuple(int(digit) for digit in piece)
        other = tuple(number for number in range(1, NODES + 1) if number not in one)
        with namespaces.wired(directory / "five", NODES) as (cluster, wires):
            suspected = partition_scenes.one_way_cut(cluster, wires, one[0], other[0], seconds=4 * SILENCE_S + 2)
            suspected += partition_scenes.one_way_cut(cluster, wires, other[1], one[1], seconds=4 * SILENCE_S + 2)
            healed_s = partition_scenes.halves_meet_again(
                cluster, wires, (one, other), silence_s=SILENCE_S, seconds=PARTITION_S
            )
        done = {"partitions": 1, "one-way cuts": 2, "suspicions under one-way cuts": suspected, "removed wrongly": 0}
        return Report(done, times_s={"one view after the heal": [healed_s]})

    about = (
        f"{len(splits)} partitions 2|3 of {NODES} nodes for {PARTITION_S:g} s, and two one-way cuts for 4T before each"
    )
    return scene("cluster-partition", about, splits, play)


def traffic(rounds: int) -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        with running(directory / "four", 4) as cluster:
            sent = keys_rotate_under_traffic(cluster, restarted=4, rotations=10)
        with running(directory / "two", 2) as cluster:
            result = receiver_restarts(cluster, restarts=15)
        done = {f"receiver: {name}": count for name, count in result.items()}
        return Report({"rotations": 10, "rotation: broadcasts": sent, "rotation: lost": 0, **done})

    about = f"{rounds} times: 10 rotations under traffic, 15 kills of a receiver under traffic"
    return scene("cluster-traffic", about, [str(number) for number in range(rounds)], play)


def attacks(rounds: int) -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        with running(directory / "two", 2) as cluster:
            result = strangers_change_nothing(cluster, list(ATTACKS))
        with running(directory / "three", 3) as cluster:
            impostor_is_refused(cluster, 2, seconds=3 * SILENCE_S)
            lies = liar_evicts_nobody(cluster, seconds=6 * SILENCE_S)
        shares, growth, grown = result["shares"], result["growth KiB"], lies["growth KiB"]
        assert isinstance(shares, dict)
        assert isinstance(growth, list)
        assert isinstance(grown, list)
        done = {f"percent of its rate kept under {name}": round(share * 100) for name, share in shares.items()}
        memory = {"KiB grown under strangers": max(growth), "KiB grown under a liar": max(grown)}
        return Report({"rounds": 1, **done, **memory})

    about = f"{rounds} times: strangers and a rogue key-holder against whole nodes (numbers are sums over the rounds)"
    return scene("cluster-attack", about, [str(number) for number in range(rounds)], play)


ON_REAL_CLUSTERS = [membership(clusters=8), partitions(), traffic(rounds=4), attacks(rounds=3)]
