"""What a node makes of segments on a real disk that cannot be read everywhere, or are too short."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from order_cluster import Cluster, Desk
from order_disks import SEGMENT, follower, positions, state
from tests.unreadable import PAGE_BYTES, make_unreadable

from chaplain.journal.consensus.events import Role
from chaplain.journal.consensus.hard_state import VotingState
from chaplain.runtime.disk import log_files
from chaplain.runtime.disk.log_files import UNREADABLE, content, segments_of


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(3)
    made.run(3)
    for _ in range(40):
        made.arrive()
        made.run(0.02)
    return made


def read_back(desk: Desk, folder: Path) -> None:
    """The process starts again, from what the runtime reads of a real folder."""
    for name in desk.files:
        read = content(folder / name)
        assert read is not None
        desk.files[name] = bytearray(read)
    for sequence, data in segments_of(folder, "journal"):
        desk.files[f"journal-{sequence:020d}.segment"] = bytearray(data)


def stop_and_store(cluster: Cluster, desk: Desk, folder: Path) -> None:
    cluster.kill(desk.node)
    for name, data in desk.files.items():
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("copied_bytes_max", [log_files.COPIED_BYTES_MAX, 0])
def test_unreadable_page_in_the_middle_is_fetched_from_other_nodes(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied_bytes_max: int
) -> None:
    monkeypatch.setattr(log_files, "COPIED_BYTES_MAX", copied_bytes_max)
    desk = follower(cluster)
    before = desk.core.agreed
    stop_and_store(cluster, desk, tmp_path)
    place = positions(desk)[20][0]
    make_unreadable(monkeypatch, tmp_path / SEGMENT, place // PAGE_BYTES * PAGE_BYTES)
    read_back(desk, tmp_path)
    cluster.restart(desk.node)
    assert desk.core.agreed[0] < before[0]
    assert any("missing" in report.event for report in desk.reports)
    cluster.run(3)
    assert state(desk) is VotingState.SOUND
    assert desk.core.agreed == cluster.master().core.agreed
    assert desk.core.has_no_gap


def test_unreadable_page_at_the_end_takes_the_vote_until_caught_up(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = follower(cluster)
    stop_and_store(cluster, desk, tmp_path)
    place = positions(desk)[-1][0]
    make_unreadable(monkeypatch, tmp_path / SEGMENT, place // PAGE_BYTES * PAGE_BYTES)
    read_back(desk, tmp_path)
    cluster.restart(desk.node)
    assert desk.core.role is Role.OUT
    cluster.run(3)
    assert state(desk) is VotingState.SOUND
    assert desk.core.agreed == cluster.master().core.agreed


def test_segment_that_was_truncated_takes_the_vote_until_caught_up(cluster: Cluster, tmp_path: Path) -> None:
    desk = follower(cluster)
    stop_and_store(cluster, desk, tmp_path)
    os.truncate(tmp_path / SEGMENT, 3 * PAGE_BYTES)
    read_back(desk, tmp_path)
    cluster.restart(desk.node)
    assert desk.core.role is Role.OUT
    cluster.run(3)
    assert state(desk) is VotingState.SOUND
    assert desk.core.agreed == cluster.master().core.agreed


def test_segments_that_are_truncated_after_they_were_read_stay_as_they_were(cluster: Cluster, tmp_path: Path) -> None:
    """A page of a memory map that is gone is a signal which ends the process; of a copy it is nothing."""
    desk = follower(cluster)
    stop_and_store(cluster, desk, tmp_path)
    read = list(segments_of(tmp_path, "journal"))
    os.truncate(tmp_path / SEGMENT, PAGE_BYTES)
    assert bytes(read[0][1]) == bytes(desk.files[SEGMENT])


def test_small_file_that_cannot_be_read_counts_as_damaged_and_not_as_absent(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = follower(cluster)
    stop_and_store(cluster, desk, tmp_path)
    read_bytes = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path.name in ("journal.standing", "journal.jot"):
            raise OSError(5, "Input/output error")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    assert content(tmp_path / "journal.standing") == UNREADABLE
    read_back(desk, tmp_path)
    cluster.restart(desk.node)
    cluster.settle()
    assert desk.core.role is Role.OUT or state(desk) is VotingState.SOUND
    cluster.run(3)
    assert state(desk) is VotingState.SOUND
    assert desk.core.agreed == cluster.master().core.agreed


def test_holes_of_a_segment_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / SEGMENT
    path.write_bytes(b"x" * PAGE_BYTES)
    os.truncate(path, 64 << 20)
    read = 0
    preadv = os.preadv

    def counted(descriptor: int, buffers: list[memoryview], position: int) -> int:
        nonlocal read
        got = preadv(descriptor, buffers, position)
        read += got
        return got

    monkeypatch.setattr(os, "preadv", counted)
    [(_, data)] = segments_of(tmp_path, "journal")
    assert len(data) == 64 << 20
    assert bytes(data[: PAGE_BYTES + 10]) == b"x" * PAGE_BYTES + bytes(10)
    assert read <= 1 << 20
