"""What becomes of a pack on its lane: the rule that makes each request apply at most once, in order, for ever.

    first id = last + 1     next: it may apply           the very request that is remembered     seen: its receipt again
    first id > last + 1     gap: go back to last + 1     below everything remembered             old: already written
    anything else           conflict: an id was signed twice, over different octets

On the lane of a retry, which whoever retries the same request gets, the first request is the only one there is: any
other is answered with its receipt, for those who retry need not know of each other
(docs/decisions/lanes-and-retries.md). A lane that
was given back stays for a while, fenced, so that somebody can still ask how far it came (decisions/lanes-and-retries).

Decides by ids and digests alone; whether signatures hold was decided before. A client keeps the octets of a request
until it is answered and sends the same ones again, so a pack that overlaps another one with other bounds is a
conflict, too: no pack is ever applied in part (docs/decisions/write-requests.md).

Invariants: `last_id` never falls; a lane that is over comes never back, because client ids are not given twice.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

import msgspec

from chaplain.journal.execution.state import StateDraft
from chaplain.journal.messages.config import is_of_retry
from chaplain.journal.messages.write_request import Heading
from chaplain.journal.model.bootstrap import Policy
from chaplain.journal.model.records import AppliedRequest, LaneState

RETIRED_PACKS = 8
"""Packs of a lane whose receipts can be given again after it was given back."""


class PackStatus(Enum):
    NEXT = auto()
    GAP = auto()
    SEEN = auto()
    OLD = auto()
    CONFLICT = auto()


class Ruling(NamedTuple):
    standing: PackStatus
    remembered: AppliedRequest | None = None
    """SEEN: the request itself; CONFLICT: the one that has the id."""


def rule(lane: LaneState, heading: Heading, digest: bytes) -> Ruling:
    """Where a pack stands that its lane's identity has signed; `digest` names the request."""
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
    """The latest remembered request that has an id of this pack."""
    for remembered in reversed(lane.recent):
        if remembered.first_id <= heading.last_id and heading.first_id <= remembered.last_id:
            return remembered
    return None


def applied(lane: LaneState, remembered: AppliedRequest, policy: Policy) -> LaneState:
    """The lane after a pack was applied."""
    assert remembered.first_id == lane.last_id + 1, "a request was applied out of its turn"
    recent = (*lane.recent, remembered)[-policy.remembered_packs :]
    return msgspec.structs.replace(
        lane, last_id=remembered.last_id, active_ns=remembered.moment.timestamp_ns, recent=recent
    )


def retired(lane: LaneState) -> LaneState:
    """The lane after it was given back: nothing more is applied on it, and it cannot be leased again."""
    return msgspec.structs.replace(lane, nonce=b"", fenced=True, recent=lane.recent[-RETIRED_PACKS:])


def is_retired(lane: LaneState) -> bool:
    return not lane.nonce


def reclaim(draft: StateDraft) -> None:
    """End lanes that nobody has used for long, by cluster time."""
    horizon_ns = draft.moment.timestamp_ns - draft.state.founding.policy.lane_idle_ns
    for client_id, lane in draft.state.lanes.items():
        if lane.active_ns >= horizon_ns:
            break
        draft.drop_lane(client_id)


def make_room(draft: StateDraft, acl: bytes) -> bool:
    """Whether the identity may have one more lane; at a bound, one that was given back goes, or its longest unused."""
    policy = draft.state.founding.policy
    lanes = draft.lanes_by_use()
    own = [lane for lane in lanes if lane.acl == acl]
    if len(own) < policy.lanes_per_identity_max and len(lanes) < policy.lanes_max:
        return True
    spare = [lane for lane in (lanes if len(own) < policy.lanes_per_identity_max else own) if is_retired(lane)]
    if spare:
        draft.drop_lane(min(spare, key=_use).client_id)
        return True
    if not own:
        return False
    oldest = min(own, key=_use)
    if draft.moment.timestamp_ns - oldest.active_ns < policy.lane_spare_ns:
        return False
    draft.drop_lane(oldest.client_id)
    return True


def _use(lane: LaneState) -> tuple[int, int]:
    return lane.active_ns, lane.client_id
