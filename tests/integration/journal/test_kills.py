"""Kills and pauses under load: nothing acknowledged is lost or doubled, and every node ends the same.

A slice of campaign `journal-kills`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.journal.support.scenes import ACKED_AFTER, batter, three

pytestmark = pytest.mark.timeout(400)


def test_kills_and_pauses_under_load_lose_no_acknowledged_write(tmp_path: Path) -> None:
    with three(tmp_path / "three") as cluster:
        counts, gaps = batter(cluster, masters=2, anyone=2, everybody=1, pauses=1, seed=1)
    assert len(gaps) == 6
    assert counts["acknowledged"] >= len(gaps) * ACKED_AFTER, "the scene waits for so many after each blow"
