"""The trust anchor of a verification when the beginning of the log was dropped: the checkpoint beside the log.

A checkpoint states the chains, offsets and request ids after one message. The messages before it that are still in the
log must lead to the same values, and the messages after it must continue them. This module does not verify the
checkpoint itself: nodes compare their checkpoints before they drop anything, and a verification compares the
checkpoints of all nodes that it can read.
"""

from __future__ import annotations

from pathlib import Path

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.execution.state import read_export
from chaplain.journal.model.records import LogPosition
from chaplain.journal.snapshots.checkpoint import decode
from chaplain.verification.header_scan import LOG
from chaplain.verification.keys import AllowedSigners, KnownSigner
from chaplain.verification.proof_segments import Point, ProofSegment, ProofState, StreamTail, join_segments
from chaplain.verification.violations import Break

KIND = "checkpoint"


class TrustAnchor(Frozen, frozen=True):
    """The state after the message that a checkpoint covers last."""

    position: LogPosition
    tails: dict[str, StreamTail]
    ids: dict[int, int]
    """The next id of each lane."""
    signers: AllowedSigners
    digest: bytes
    first: int
    """The first message of the log when the checkpoint was written. The log may begin later now."""

    @property
    def index(self) -> int:
        return self.position.index

    def state(self) -> ProofState:
        """Return the state that the next message must continue."""
        position = self.position
        point = Point(position.index, [position.hash], position.regime, position.timestamp_ns)
        return ProofState(point, dict(self.tails), dict(self.ids), all_lanes=False)


def read_anchor(folder: Path) -> TrustAnchor | None:
    """Read the checkpoint in a folder of segments; None if there is none or it is damaged.

    Raises `OSError` if the checkpoint exists and cannot be read: without it, the log would seem to lack its beginning.
    """
    try:
        data = (folder / f"{LOG}.checkpoint").read_bytes()
        first, state = decode(data)
        position, streams, lanes, clients = read_export(state)
    except (FileNotFoundError, Malformed):
        return None
    tails = {name: StreamTail(tail.next_offset, [tail.chain]) for name, tail in streams}
    signers = AllowedSigners(
        [KnownSigner(one.acl, one.key, one.signature_type, one.admin) for one in clients],
        [(lane.client_id, lane.acl) for lane in lanes],
    )
    ids = {lane.client_id: lane.last_id + 1 for lane in lanes}
    return TrustAnchor(position, tails, ids, signers, data[24:56], first)


def join_segments_at(segments: list[ProofSegment], anchor: TrustAnchor, cluster: str) -> tuple[list[Break], ProofState]:
    """Join the segments before and after a checkpoint: the former must lead to it, the latter must continue it."""
    before = [
        segment
        for segment in segments
        if segment.first_message is not None and segment.first_message.index <= anchor.index
    ]
    behind = [
        segment for segment in segments if segment.first_message is None or segment.first_message.index > anchor.index
    ]
    breaks, reached = join_segments(before, ProofState(), cluster)
    if not breaks:
        breaks += _differences(reached, anchor)
    more, state = join_segments(behind, anchor.state(), cluster)
    return [*breaks, *more], state


def _differences(reached: ProofState, anchor: TrustAnchor) -> list[Break]:
    found: list[Break] = []
    point = reached.point
    if point is not None and point.index == anchor.index and anchor.position.hash not in point.hashes:
        found.append(Break("", point.index, KIND, anchor.position.hash.hex(), point.hashes[0].hex()))
    for stream, tail in sorted(reached.tails.items()):
        expected = anchor.tails.get(stream)
        if expected is None or expected.next_offset != tail.next_offset or expected.chains[0] not in tail.chains:
            said = "no stream" if expected is None else f"{expected.chains[0].hex()} at {expected.next_offset}"
            there = tail.chains[0].hex() if tail.chains else "?"
            found.append(Break(stream, tail.next_offset, KIND, said, f"{there} at {tail.next_offset}"))
    return found
