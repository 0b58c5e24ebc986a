"""The disks of serializers in tests: what is in the first segment, and how it comes to harm."""

from __future__ import annotations

from chaplain.journal.consensus.events import Role
from chaplain.journal.consensus.hard_state import VotingState, decode_hard_state
from chaplain.segment.header import read_headers
from chaplain.segment.scan import scan
from tests.support.consensus_cluster import Cluster, Desk

SEGMENT = "journal-00000000000000000000.segment"


def follower(cluster: Cluster) -> Desk:
    return next(desk for desk in cluster.up() if desk.core.role is Role.FOLLOWER)


def positions(desk: Desk) -> list[tuple[int, int, int]]:
    """Start, end and index of every message record in the first segment."""
    data = bytes(desk.files[SEGMENT])
    header = read_headers(data).header
    assert header is not None
    return [(head.position, head.end, record.index) for head, record in scan(data, header).records if record.parts]


def state(desk: Desk) -> VotingState:
    return decode_hard_state(bytes(desk.files["journal.standing"])).state


def damage(desk: Desk, at: int) -> None:
    desk.files[SEGMENT][at] ^= 1
