"""What a node makes of segments on a real disk that cannot be read everywhere, or are too short."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chaplain.journal.consensus.events import Role
from chaplain.journal.consensus.hard_state import VotingState
from chaplain.runtime.disk import log_files
from chaplain.runtime.disk.log_files import UNREADABLE, read_if_exists, segments_of
from tests.support.consensus_cluster import Cluster, ConsensusHost
from tests.support.unreadable_file import PAGE_BYTES, make_unreadable
from tests.unit.journal.storage.consensus_disks import SEGMENT, follower, positions, state


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(3)
    made.run(3)
    for _ in range(40):
        made.arrive()
        made.run(0.02)
    return made


def restart_from(cluster: Cluster, host: ConsensusHost, folder: Path) -> None:
    """Start the process again, from what the runtime reads of a real folder."""
    for name in host.files:
        read = read_if_exists(folder / name)
        assert read is not None
        host.files[name] = bytearray(read)
    for sequence, data in segments_of(folder, "journal"):
        host.files[f"journal-{sequence:020d}.segment"] = bytearray(data)
    cluster.restart(host.node)


def assert_it_catches_up(cluster: Cluster, host: ConsensusHost) -> None:
    cluster.run(3)
    assert state(host) is VotingState.SOUND
    assert host.core.agreed == cluster.master().core.agreed


def stopped_follower(cluster: Cluster, folder: Path) -> ConsensusHost:
    """Stop a follower and write its files to the folder."""
    host = follower(cluster)
    cluster.kill(host.node)
    for name, data in host.files.items():
        (folder / name).write_bytes(data)
    return host


def spoil_page_of_message(monkeypatch: pytest.MonkeyPatch, host: ConsensusHost, folder: Path, number: int) -> None:
    """Make the page unreadable in which the message of this number begins."""
    start = positions(host)[number][0]
    make_unreadable(monkeypatch, folder / SEGMENT, start // PAGE_BYTES * PAGE_BYTES)


@pytest.mark.parametrize("copied_bytes_max", [log_files.COPIED_BYTES_MAX, 0])
def test_unreadable_page_in_the_middle_is_fetched_from_other_nodes(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied_bytes_max: int
) -> None:
    monkeypatch.setattr(log_files, "COPIED_BYTES_MAX", copied_bytes_max)
    host = stopped_follower(cluster, tmp_path)
    before = host.core.agreed
    spoil_page_of_message(monkeypatch, host, tmp_path, 20)
    restart_from(cluster, host, tmp_path)
    assert host.core.agreed[0] < before[0]
    assert any("missing" in report.event for report in host.reports)
    assert_it_catches_up(cluster, host)
    assert host.core.has_no_gap


def test_unreadable_page_at_the_end_takes_the_vote_until_caught_up(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = stopped_follower(cluster, tmp_path)
    spoil_page_of_message(monkeypatch, host, tmp_path, -1)
    restart_from(cluster, host, tmp_path)
    assert host.core.role is Role.OUT
    assert_it_catches_up(cluster, host)


def test_segment_that_was_truncated_takes_the_vote_until_caught_up(cluster: Cluster, tmp_path: Path) -> None:
    host = stopped_follower(cluster, tmp_path)
    os.truncate(tmp_path / SEGMENT, 3 * PAGE_BYTES)
    restart_from(cluster, host, tmp_path)
    assert host.core.role is Role.OUT
    assert_it_catches_up(cluster, host)


def test_segments_truncated_after_they_were_read_stay_unchanged_in_memory(cluster: Cluster, tmp_path: Path) -> None:
    """A page of a memory map that is gone is a signal which ends the process; of a copy it is nothing."""
    host = stopped_follower(cluster, tmp_path)
    read = list(segments_of(tmp_path, "journal"))
    os.truncate(tmp_path / SEGMENT, PAGE_BYTES)
    assert bytes(read[0][1]) == bytes(host.files[SEGMENT])


def test_unreadable_small_file_counts_as_damaged_and_not_as_absent(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = stopped_follower(cluster, tmp_path)
    read_bytes = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path.name in ("journal.standing", "journal.jot"):
            raise OSError(5, "Input/output error")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    assert read_if_exists(tmp_path / "journal.standing") == UNREADABLE
    restart_from(cluster, host, tmp_path)
    cluster.settle()
    assert host.core.role is Role.OUT or state(host) is VotingState.SOUND
    assert_it_catches_up(cluster, host)


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
