"""Pool traffic through a real cluster while its keys are rotated, its nodes restarted and its receivers stand still."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaplain.config import NODE_FILE
from tests.integration.cluster.traffic_scenes import keys_rotate_under_traffic, receiver_restarts, slow_receiver_is_told
from tests.support.process_cluster import running

pytestmark = pytest.mark.timeout(240)


def test_three_rotations_under_traffic_lose_no_message(tmp_path: Path) -> None:
    with running(tmp_path / "four", 4) as cluster:
        sent = keys_rotate_under_traffic(cluster, restarted=4, rotations=3)
    print(f"{sent} broadcasts, none lost, doubled or out of order")


def test_every_loss_of_a_repeatedly_killed_receiver_is_reported(tmp_path: Path) -> None:
    with running(tmp_path / "two", 2) as cluster:
        result = receiver_restarts(cluster, restarts=3)
    print(result)


def test_listener_behind_a_full_queue_receives_its_loss_count(tmp_path: Path) -> None:
    def shorten(directory: Path) -> None:
        """Only the sender's queue: what its client hears must not hide what it never got."""
        file = directory / "node-1" / NODE_FILE
        file.write_text(file.read_text() + "\n[bounds]\nqueue_bytes_max = 65536\n")

    with running(tmp_path / "two", 2, change=shorten) as cluster:
        print(slow_receiver_is_told(cluster))
