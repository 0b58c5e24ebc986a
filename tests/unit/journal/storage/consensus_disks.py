"""The disks of serializers in tests: what is in the first segment, and how it comes to harm."""

from __future__ import annotations

from chaplain.journal.consensus.events import Role
from chaplain.journal.consensus.hard_state import VotingState, decode_hard_state
from chaplain.segment.header import read_headers
from chaplain.segment.scan import scan
from tests.support.consensus_cluster import Cluster, ConsensusHost

SEGMENT = "journal-00000000000000000000.segment"


def follower(cluster: Cluster) -> ConsensusHost:
    return next(host for host in cluster.up() if host.core.role is Role.FOLLOWER)


def positions(host: ConsensusHost) -> list[tuple[int, int, int]]:
    """Start, end and index of every message record in the first segment."""
    data = bytes(host.files[SEGMENT])
    header = read_headers(data).header
    assert header is not None
    return [(head.position, head.end, record.index) for head, record in scan(data, header).records if record.parts]


def state(host: ConsensusHost) -> VotingState:
    return decode_hard_state(bytes(host.files["journal.standing"])).state


def damage(host: ConsensusHost, at: int) -> None:
    host.files[SEGMENT][at] ^= 1
