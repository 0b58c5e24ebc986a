"""Reconfiguration: selects the change of the work set that is due. Changes happen one at a time.

- A member whose node shows a new seat has lost its memory and leaves at once.
- A member that was silent for `silence_ns` leaves.
- A member that was removed from the cluster leaves while it is still connected, and gets no seat again. Until then its
  acknowledgements count, because it may not know of its removal (docs/decisions/removed-nodes.md).
- A node that asks for a seat joins when its former seat has left and it stores the same entries as the members.

Only a decided entry changes the work set.
"""

from __future__ import annotations

from chaplain.sequence.context import SequenceContext
from chaplain.sequence.messages.entry import SeatedMember, WorkSetChange
from chaplain.sequence.messages.peer import SequenceState
from chaplain.sequence.peers import SequencePeer
from chaplain.sequence.work_set import WorkSet, changed, is_quorum

_ASKED_NS = 1_500 * 10**6
"""How long a request to join, or a peer state with DSC, is valid."""


def due_change(context: SequenceContext) -> WorkSetChange | None:
    members = context.log.members
    leaving = [WorkSetChange(member, joins=False) for member in members if _should_leave(context, member)]
    joining = [WorkSetChange(member, joins=True) for member in _joining(context)]
    return next((change for change in (*leaving, *joining) if _keeps_quorum(context, change)), None)


def _should_leave(context: SequenceContext, member: SeatedMember) -> bool:
    """True if the member should leave the work set."""
    if member == context.me:
        return False
    if member.identifier in context.removed():
        return True
    peer = context.peers.by_id.get(member.identifier)
    if peer is not None and peer.last_state.seat == member.seat and peer.last_state.history not in {0, context.history}:
        return True  # the node joined another history with this seat
    if peer is not None and _is_discovering(context, peer):
        return peer.last_state.seat != member.seat
    heard_ns = context.peers.heard_ns(member.identifier, member.seat, context.now_ns)
    return context.now_ns - heard_ns > context.settings.silence_ns


def _is_discovering(context: SequenceContext, peer: SequencePeer) -> bool:
    heard_ns = peer.heard_ns
    recently = heard_ns is not None and context.now_ns - heard_ns <= _ASKED_NS
    return recently and peer.connected and peer.last_state.state is SequenceState.DSC


def _joining(context: SequenceContext) -> list[SeatedMember]:
    barred = {*(member.identifier for member in context.log.members), *context.removed()}
    by_id = context.peers.by_id
    asking = [
        identifier for identifier in sorted(by_id) if identifier not in barred and _may_join(context, by_id[identifier])
    ]
    return [SeatedMember(identifier, by_id[identifier].last_state.seat) for identifier in asking]


def _may_join(context: SequenceContext, peer: SequencePeer) -> bool:
    """True if the node asked for a seat and holds the window, except for entries decided since it sent its request."""
    asked_ns, peer_state = peer.asked_ns, peer.last_state
    recently = asked_ns is not None and context.now_ns - asked_ns <= _ASKED_NS
    learned = recently and _is_discovering(context, peer) and peer_state.history == context.history
    return learned and context.log.is_near(peer_state.decided, 2 * context.settings.flight_bytes_max)


def _keeps_quorum(context: SequenceContext, change: WorkSetChange) -> bool:
    """True if the resulting work set would have a quorum; otherwise no further change could ever be decided."""
    members = changed(context.log.members, change)
    here = {*heard_seats(context), *((change.member.seat,) if change.joins else ())}
    return members != context.log.members and is_quorum(members, here, context.peers.dead)


def set_without_quorum(context: SequenceContext) -> WorkSet | None:
    """The first work set, decided or not, of which too few members are present to decide; None if all have a quorum."""
    here = unsilenced_seats(context)
    return next(
        (one for one in context.log.required_sets(context.promised) if not is_quorum(one, here, context.peers.dead)),
        None,
    )


def unsilenced_seats(context: SequenceContext) -> set[int]:
    """The seats that are not silent yet, including ours. A new member counts from when it was first expected."""
    peers, now_ns = context.peers, context.now_ns
    members = {member for members in context.log.sets() for member in members}
    silence_ns = context.settings.silence_ns
    return {context.seat, *(m.seat for m in members if now_ns - peers.heard_ns(*m, now_ns) <= silence_ns)}


def heard_seats(context: SequenceContext) -> set[int]:
    """The seats of all work sets, decided or not, that were heard lately, including ours."""
    now_ns, silence_ns = context.now_ns, context.settings.silence_ns
    by_id = context.peers.by_id
    seats = {context.seat}
    for member in (member for members in context.log.sets() for member in members):
        peer = by_id.get(member.identifier)
        if peer is None or peer.last_state.seat != member.seat or peer.heard_ns is None:
            continue
        if now_ns - peer.heard_ns <= silence_ns and peer.last_state.history == context.history:
            seats.add(member.seat)
    return seats
