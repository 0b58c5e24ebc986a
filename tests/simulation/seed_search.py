"""Runs of the simulator that together show a case, whatever seeds show it today.

A change of a protocol changes what happens under every seed. A test that is about a case therefore names the case, as
counts that its runs must reach, and not the seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

from simulator.runner import MODES, run_seed, total

Run = tuple[int, str]
"""A seed and a mode."""
SEARCHED = range(30)


def run_until_counted(
    workload: str,
    first: Iterable[Run],
    at_least: Mapping[str, int],
    *,
    seeds: Iterable[int] = SEARCHED,
    modes: Iterable[str] = MODES,
) -> Counter[str]:
    """Play the first runs, then others until their counts together are large enough, and return the counts.

    The first runs reach the counts today, which keeps the test quick. No run may have a finding.
    """
    first, modes = tuple(first), tuple(modes)
    others = [(seed, mode) for seed in seeds for mode in modes if (seed, mode) not in first]
    counts: Counter[str] = Counter()
    for number, (seed, mode) in enumerate([*first, *others], 1):
        outcome = run_seed(workload, seed, mode)
        assert outcome.ok, f"{outcome.checker}: {outcome.reason}: {outcome.replay()}"
        counts += total([outcome])
        lacking = {name: counts[name] for name, least in at_least.items() if counts[name] < least}
        if number >= len(first) and not lacking:
            return counts
    pytest.fail(f"{len(first) + len(others)} runs of {workload} show too few of {lacking}; at least {dict(at_least)}")
