"""Campaigns on the journal's speed: the time without a master after a failure, and whether the cost of messages
grows.
"""

from __future__ import annotations

from pathlib import Path

from campaigns.campaign import Campaign, Report
from campaigns.clusters import scene
from tests.integration.journal.support.scenes import three
from tests.integration.journal.support.speed import MILLION, costs, failovers, within

TRIALS = 20
KILLED_MEDIAN_S, KILLED_LONGEST_S = 0.5, 1.5
STOPPED_MEDIAN_S = 2.0
MESSAGES = 20 * MILLION
FLAT = 1.2
"""Upper bound for the cost of the last million messages, as a multiple of the second million."""


def failover() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        with three(directory / "three") as cluster:
            gaps = failovers(cluster, TRIALS, killed=piece == "killed")
        times = {f"master {piece} to next acknowledged write": gaps}
        try:
            within(gaps, *((KILLED_MEDIAN_S, KILLED_LONGEST_S) if piece == "killed" else (STOPPED_MEDIAN_S,)))
        except AssertionError as late:
            return Report({"blows": TRIALS}, [str(late)], times_s=times)
        return Report({"blows": TRIALS}, times_s=times)

    about = f"{TRIALS} kills -9 and {TRIALS} stops (SIGSTOP) of the master under load"
    return scene("journal-failover", about, ["killed", "stopped"], play)


def flat() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        with three(directory / "three") as cluster:
            found = costs(cluster, MESSAGES)
        second, last = found[1], found[-1]
        findings = [
            f"the last million: {name} {late:.2f}, the second {early:.2f}"
            for name, late, early in (("CPU us", last.cpu_us, second.cpu_us), ("RSS KiB", last.rss_kib, second.rss_kib))
            if late > FLAT * early
        ]
        done = {"messages": MESSAGES, "RSS KiB after the second million": second.rss_kib, "RSS KiB": last.rss_kib}
        nanoseconds = {f"CPU ns a message, {at} million": round(each.cpu_us * 1e3) for at, each in _some(found)}
        return Report({**done, **nanoseconds}, findings)

    about = f"{MESSAGES:,} messages of 100 bytes through one writer: the cost of a million and the nodes' size"
    return scene("journal-flat", about, ["writer"], play)


def _some(found: list) -> list[tuple[str, object]]:
    return [("second", found[1]), ("middle", found[len(found) // 2]), ("last", found[-1])]


ON_FAST_JOURNALS = [failover(), flat()]
