"""How a node without a history gets one: it joins the one there is, or helps to begin one.

The list is who belongs to the cluster, plus gossip's members, without those who were removed. A history begins with an
entry that names the whole list as its first work set; more than half of that set must hold it. So two histories cannot
begin side by side among nodes that remember. Which node proposes it: the lowest identifier of those it can reach, when
all of them are in DSC.

Refuses to know locks and logs beyond that first entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from chaplain.gossip.events import MemberChanged
from chaplain.gossip.events import MemberState as Standing
from chaplain.link.events import Meet
from chaplain.sequence.context import SequenceContext
from chaplain.sequence.messages.entry import (
    MEMBERS_MAX,
    Ballot,
    EntryKind,
    SeatedMember,
    SequenceEntry,
    decode_members,
    encode_members,
    make_entry,
)
from chaplain.sequence.messages.peer import DscReq, SeqRes, SequenceState
from chaplain.sequence.peers import SequencePeer

_ASK_NS = 250 * 10**6
_FRESH_NS = 2_500 * 10**6
"""How long an answer counts: longer than the interval of asking."""


class HistoryDiscovery:
    def __init__(self, bench: SequenceContext, belonging: Callable[[], Iterable[int]]) -> None:
        self._bench = bench
        self._belonging = belonging
        """Who belongs to the cluster: nodes are added and removed while this one runs."""
        self._gossiped: dict[int, str] = {}
        self._met: set[str] = set()
        self._ask_ns = 0
        self._turn = 0
        """Whom to ask for the number: one at a time, because the answer may be long."""

    # The list.

    def member_changed(self, event: MemberChanged) -> None:
        member = event.member
        if member.identifier == self._bench.settings.identifier:
            return
        if member.state is Standing.LEFT:
            self._gossiped.pop(member.identifier, None)
        else:
            self._gossiped[member.identifier] = member.uri

    def listed(self) -> list[int]:
        """Identifiers of all others that should be here."""
        bench = self._bench
        return sorted({*self._belonging(), *self._gossiped} - {*bench.removed(), bench.settings.identifier})

    def _unknown(self) -> int:
        """Configured endpoints at which nobody was met yet."""
        if set(self._belonging()) - {self._bench.settings.identifier}:
            return 0
        known = {fellow.endpoint for fellow in self._bench.company.fellows.values()} | set(self._gossiped.values())
        return sum(1 for endpoint in self._bench.settings.neighbours if endpoint not in known)

    def neighbours(self) -> dict[int, str]:
        return {fellow.identifier: fellow.endpoint for fellow in self._bench.company.connected()}

    def learn(self, neighbours: dict[int, str]) -> None:
        """Both sides of a DSCREQ add whom the other knows."""
        for identifier, endpoint in neighbours.items():
            fellow = self._bench.company.fellows.get(identifier)
            known = (fellow is not None and fellow.connected) or identifier == self._bench.settings.identifier
            if not known and endpoint and endpoint not in self._met:
                self._met.add(endpoint)
                self._bench.out.append(Meet(endpoint))

    # Looking.

    def due_ns(self) -> int | None:
        return self._ask_ns if not self._bench.history or self._bench.learns else None

    def look(self) -> None:
        """Ask everybody, and one that works for the number. Then see whether a history is to be begun."""
        bench = self._bench
        if bench.history and not bench.learns:
            return
        if bench.now_ns >= self._ask_ns:
            self._ask_ns = bench.now_ns + _ASK_NS
            bench.tell_all(bench.company.connected(), DscReq(bench.bearing(), self.neighbours()))
            if not bench.history:
                self._ask_for_number()
        if not bench.history:
            self._begin_if_due()

    def _ask_for_number(self) -> None:
        working = [one for one in self._fresh() if one.bearing.history and one.bearing.state is SequenceState.WRK]
        if working:
            self._turn += 1
            self._bench.tell(working[self._turn % len(working)], SeqRes(self._bench.bearing()))

    def _fresh(self) -> list[SequencePeer]:
        return self._bench.company.fresh(self._bench.now_ns, _FRESH_NS)

    def _begin_if_due(self) -> None:
        bench = self._bench
        fresh = self._fresh()
        if any(one.bearing.history for one in fresh):
            return  # there is one: join it, or wait until those who remember it can go on
        removed = bench.removed()
        if bench.settings.identifier in removed:
            return
        fresh = [one for one in fresh if one.identifier not in removed]
        here = {one.identifier for one in fresh}
        listed, unknown = self.listed(), self._unknown()
        if any(who < bench.settings.identifier for who in here):
            return
        missing = [who for who in listed if who not in here]
        whole = not missing and not unknown
        size = len({*listed, *here}) + unknown + 1
        most = 2 * (len(here) + 1) > size and bench.now_ns - bench.since_ns >= bench.settings.patience_ns
        innocent = not bench.remembers and not any(one.bearing.remembers for one in fresh)
        if size <= MEMBERS_MAX and (whole or (most and not unknown and innocent)):
            self._begin(fresh, missing)

    def _begin(self, fresh: list[SequencePeer], missing: list[int]) -> None:
        bench = self._bench
        members = [bench.me, *(SeatedMember(one.identifier, one.bearing.seat) for one in fresh)]
        members += [SeatedMember(who, 0) for who in missing]
        history = bench.chance.randrange(1, 1 << 64)
        bench.start_from(history)
        bench.promised = Ballot(1, bench.seat)
        bench.alone = len(members) == 1
        body = encode_members(members)
        bench.log.append(make_entry(EntryKind.FOUND, bench.promised, bench.settings.identifier, bench.seat, body))
        bench.counts["histories_begun"] += 1
        bench.since_ns = bench.now_ns
        bench.spread(0)

    def may_enter(self, entries: list[SequenceEntry], previous: int) -> bool:
        """Whether these are the beginning of a history that has a seat for us as we are now."""
        bench = self._bench
        if bench.history or previous or not entries or entries[0].kind is not EntryKind.FOUND:
            return False
        members = decode_members(entries[0].body)
        vacant = any(not member.seat for member in members)
        return bench.me in members and not (vacant and bench.remembers)
