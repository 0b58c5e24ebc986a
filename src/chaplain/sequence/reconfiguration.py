"""Which change of the work set is due, if any: one at a time.

A member whose node shows a new seat has lost its memory, and goes at once. One that was silent too long goes. One that
was removed from the cluster goes while it is still here, and gets no seat again: its memory counts as any other's until
then, for it may not know of its removal (decision 0154). One that asks for a seat is let in, when its former self is
out and it holds what the others hold. Only an agreed entry does it.
"""

from __future__ import annotations

from chaplain.sequence.context import SequenceContext
from chaplain.sequence.messages.entry import SeatedMember, WorkSetChange
from chaplain.sequence.messages.peer import SequenceState
from chaplain.sequence.peers import SequencePeer
from chaplain.sequence.work_set import WorkSet, changed, is_enough

_ASKED_NS = 1_500 * 10**6
"""A wish to join, or a word of one that looks around, counts for so long."""


def due_change(bench: SequenceContext) -> WorkSetChange | None:
    members = bench.log.members
    leaving = [WorkSetChange(member, joins=False) for member in members if _should_leave(bench, member)]
    joining = [WorkSetChange(member, joins=True) for member in _joining(bench)]
    return next((change for change in (*leaving, *joining) if _bears(bench, change)), None)


def _should_leave(bench: SequenceContext, member: SeatedMember) -> bool:
    if member == bench.me:
        return False
    if member.identifier in bench.removed():
        return True
    fellow = bench.company.fellows.get(member.identifier)
    if fellow is not None and fellow.bearing.seat == member.seat and fellow.bearing.history not in {0, bench.history}:
        return True  # it took its seat elsewhere
    if fellow is not None and _looks_around(bench, fellow):
        return fellow.bearing.seat != member.seat
    heard_ns = bench.company.heard_ns(member.identifier, member.seat, bench.now_ns)
    return bench.now_ns - heard_ns > bench.settings.silence_ns


def _looks_around(bench: SequenceContext, fellow: SequencePeer) -> bool:
    heard_ns = fellow.heard_ns
    recently = heard_ns is not None and bench.now_ns - heard_ns <= _ASKED_NS
    return recently and fellow.connected and fellow.bearing.state is SequenceState.DSC


def _joining(bench: SequenceContext) -> list[SeatedMember]:
    barred = {*(member.identifier for member in bench.log.members), *bench.removed()}
    fellows = bench.company.fellows
    asking = [who for who in sorted(fellows) if who not in barred and _asks(bench, fellows[who])]
    return [SeatedMember(who, fellows[who].bearing.seat) for who in asking]


def _asks(bench: SequenceContext, fellow: SequencePeer) -> bool:
    """Whether it wants a seat and holds the window, but for what was decided while its word was on its way."""
    asked_ns, bearing = fellow.asked_ns, fellow.bearing
    recently = asked_ns is not None and bench.now_ns - asked_ns <= _ASKED_NS
    learned = recently and _looks_around(bench, fellow) and bearing.history == bench.history
    return learned and bench.log.is_near(bearing.decided, 2 * bench.settings.flight_bytes_max)


def _bears(bench: SequenceContext, change: WorkSetChange) -> bool:
    """Whether the set that would come of it could decide anything: else the change would be the last one."""
    members = changed(bench.log.members, change)
    here = {*reached(bench), *((change.member.seat,) if change.joins else ())}
    return members != bench.log.members and is_enough(members, here, bench.company.dead)


def lacking(bench: SequenceContext) -> WorkSet | None:
    """The first work set, decided or on its way, of which too few are here to decide."""
    here = awaited(bench)
    return next((one for one in bench.log.asked(bench.promised) if not is_enough(one, here, bench.company.dead)), None)


def awaited(bench: SequenceContext) -> set[int]:
    """The seats that are not silent yet, ours included: who just joined has had no time to speak."""
    company, now_ns = bench.company, bench.now_ns
    members = {member for members in bench.log.sets() for member in members}
    silence_ns = bench.settings.silence_ns
    return {bench.seat, *(m.seat for m in members if now_ns - company.heard_ns(*m, now_ns) <= silence_ns)}


def reached(bench: SequenceContext) -> set[int]:
    """The seats that were heard lately of all work sets, decided or on their way; ours included."""
    now_ns, silence_ns = bench.now_ns, bench.settings.silence_ns
    fellows = bench.company.fellows
    seats = {bench.seat}
    for member in (member for members in bench.log.sets() for member in members):
        fellow = fellows.get(member.identifier)
        if fellow is None or fellow.bearing.seat != member.seat or fellow.heard_ns is None:
            continue
        if now_ns - fellow.heard_ns <= silence_ns and fellow.bearing.history == bench.history:
            seats.add(member.seat)
    return seats
