"""Deduplication of packs on a lane: each request is applied at most once, and in the order of its id.

    first id = last id + 1      NEXT: it may be applied
    first id > last id + 1      GAP: the client must go back to last id + 1
    same digest as a recent one SEEN: the stored receipt is returned
    below all recent ones       OLD: it was written, and its receipt is no longer stored
    anything else               CONFLICT: two different requests were signed for one id

A lane that was leased for a retry has one request only. All clients that retry the same request get the same lane, and
they need not know of each other. The first pack on that lane is applied, and all others get its receipt. A retired lane
stays in the state for a while, fenced, so that a client can still ask for its last request
(docs/decisions/lanes-and-retries.md).

Decides by ids and digests alone; the caller has already verified signatures. A client retains the octets of a request
until it is answered, and sends the same octets again. No pack is ever applied in part. A pack that overlaps an applied
one, but has another first or last id, is therefore a conflict, too (docs/decisions/write-requests.md).

Invariants: `last_id` never decreases. A lane that has ended never returns, because client ids are not reused.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

import msgspec

from chaplain.journal.execution.state import StateDraft
from chaplain.journal.messages.config import is_of_retry
from chaplain.journal.messages.write_request import Heading
from chaplain.journal.model.bootstrap import ExecutionPolicy
from chaplain.journal.model.records import AppliedRequest, LaneState

RETIRED_PACKS = 8
"""Number of packs of a retired lane whose receipts are retained."""


class PackStatus(Enum):
    """How a pack relates to the requests that were applied on its lane."""

    NEXT = auto()
    GAP = auto()
    SEEN = auto()
    OLD = auto()
    CONFLICT = auto()


class Ruling(NamedTuple):
    """The status of a pack, and the applied request that it repeats or contradicts."""

    status: PackStatus
    applied: AppliedRequest | None = None
    """SEEN: the request itself. CONFLICT: the request that has the id."""


def classify(lane: LaneState, heading: Heading, digest: bytes) -> Ruling:
    """Compare a pack with its lane. The lane's identity has signed the pack; `digest` names the request."""
    if heading.first_id == lane.last_id + 1:
        return Ruling(PackStatus.NEXT)
    if heading.first_id > lane.last_id + 1:
        return Ruling(PackStatus.GAP)
    overlapped = _overlapped(lane, heading)
    if overlapped is None:
        return Ruling(PackStatus.OLD)
    if is_of_retry(lane.nonce):
        return Ruling(PackStatus.SEEN, overlapped)
    if overlapped.digest == digest:
        return Ruling(PackStatus.SEEN, overlapped)
    return Ruling(PackStatus.CONFLICT, overlapped)


def _overlapped(lane: LaneState, heading: Heading) -> AppliedRequest | None:
    """The latest stored request that shares an id with this pack."""
    for applied in reversed(lane.recent):
        if applied.first_id <= heading.last_id and heading.first_id <= applied.last_id:
            return applied
    return None


def record_applied(lane: LaneState, applied: AppliedRequest, policy: ExecutionPolicy) -> LaneState:
    """The lane after a pack was applied."""
    assert applied.first_id == lane.last_id + 1, "a request was applied out of its turn"
    recent = (*lane.recent, applied)[-policy.remembered_packs :]
    return msgspec.structs.replace(
        lane, last_id=applied.last_id, active_ns=applied.position.timestamp_ns, recent=recent
    )


def retired(lane: LaneState) -> LaneState:
    """The lane after its client gave it back: no further request is applied on it, and its lease cannot be repeated."""
    return msgspec.structs.replace(lane, nonce=b"", fenced=True, recent=lane.recent[-RETIRED_PACKS:])


def is_retired(lane: LaneState) -> bool:
    return not lane.nonce


def drop_idle_lanes(draft: StateDraft) -> None:
    """End the lanes that were not used for `lane_idle_ns`, by cluster time."""
    horizon_ns = draft.position.timestamp_ns - draft.state.bootstrap.policy.lane_idle_ns
    for client_id, lane in draft.state.lanes.items():
        if lane.active_ns >= horizon_ns:
            break
        draft.drop_lane(client_id)


def make_room(draft: StateDraft, acl: bytes) -> bool:
    """True if the identity may have one more lane.

    At a bound, one lane is ended to make room: a retired lane if there is one, otherwise the identity's least recently
    used lane if it was not used for `lane_spare_ns`.
    """
    policy = draft.state.bootstrap.policy
    lanes = draft.lanes_by_use()
    own = [lane for lane in lanes if lane.acl == acl]
    if len(own) < policy.lanes_per_identity_max and len(lanes) < policy.lanes_max:
        return True
    spare = [lane for lane in (lanes if len(own) < policy.lanes_per_identity_max else own) if is_retired(lane)]
    if spare:
        draft.drop_lane(min(spare, key=_last_use).client_id)
        return True
    if not own:
        return False
    oldest = min(own, key=_last_use)
    if draft.position.timestamp_ns - oldest.active_ns < policy.lane_spare_ns:
        return False
    draft.drop_lane(oldest.client_id)
    return True


def _last_use(lane: LaneState) -> tuple[int, int]:
    return lane.active_ns, lane.client_id
