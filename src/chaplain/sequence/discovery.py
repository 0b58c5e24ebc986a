"""Discovery: a node without a history joins the existing one, or takes part in founding one.

The listed nodes are the members of the cluster and those known from gossip, without removed nodes. The first entry of a
history names all listed nodes as its first work set, and a majority of that set must hold the entry. So nodes that kept
their memory cannot found two histories side by side. The node with the lowest identifier among those it can reach
founds the history, when all of them are in DSC.

Does not know locks, or logs beyond the first entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from chaplain.gossip.events import MemberChanged
from chaplain.gossip.events import MemberState as GossipState
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
"""Interval at which a node without a seat asks its peers."""
_FRESH_NS = 2_500 * 10**6
"""How long an answer is valid: longer than the interval between questions."""


class HistoryDiscovery:
    def __init__(self, context: SequenceContext, cluster_members: Callable[[], Iterable[int]]) -> None:
        self._context = context
        self._cluster_members = cluster_members
        """Returns the current members of the cluster; nodes are added and removed while this node runs."""
        self._gossiped: dict[int, str] = {}
        self._dialed: set[str] = set()
        self._next_request_ns = 0
        self._next_peer = 0
        """Rotates over the peers that get SEQRES: one at a time, because the answer may be long."""

    # The listed nodes.

    def member_changed(self, event: MemberChanged) -> None:
        member = event.member
        if member.identifier == self._context.settings.identifier:
            return
        if member.state is GossipState.LEFT:
            self._gossiped.pop(member.identifier, None)
        else:
            self._gossiped[member.identifier] = member.uri

    def listed(self) -> list[int]:
        """Identifiers of all other nodes that should take part."""
        context = self._context
        return sorted({*self._cluster_members(), *self._gossiped} - {*context.removed(), context.settings.identifier})

    def _unmet_endpoints(self) -> int:
        """The number of configured endpoints at which no node was met yet; 0 if the members are known."""
        if set(self._cluster_members()) - {self._context.settings.identifier}:
            return 0
        known = {peer.endpoint for peer in self._context.peers.by_id.values()} | set(self._gossiped.values())
        return sum(1 for endpoint in self._context.settings.neighbours if endpoint not in known)

    def neighbours(self) -> dict[int, str]:
        return {peer.identifier: peer.endpoint for peer in self._context.peers.connected()}

    def learn_neighbours(self, neighbours: dict[int, str]) -> None:
        """Dial the neighbours that the other side of a DSCREQ knows and we do not."""
        for identifier, endpoint in neighbours.items():
            peer = self._context.peers.by_id.get(identifier)
            known = (peer is not None and peer.connected) or identifier == self._context.settings.identifier
            if not known and endpoint and endpoint not in self._dialed:
                self._dialed.add(endpoint)
                self._context.out.append(Meet(endpoint))

    # Polling.

    def due_ns(self) -> int | None:
        return self._next_request_ns if not self._context.history or self._context.is_learning else None

    def poll(self) -> None:
        """Ask all peers for their neighbours, and one working peer for its window base (SEQRES). Found a history if
        that is due.
        """
        context = self._context
        if context.history and not context.is_learning:
            return
        if context.now_ns >= self._next_request_ns:
            self._next_request_ns = context.now_ns + _ASK_NS
            context.send_all(context.peers.connected(), DscReq(context.own_state(), self.neighbours()))
            if not context.history:
                self._request_number()
        if not context.history:
            self._found_if_due()

    def _request_number(self) -> None:
        working = [
            one for one in self._recent() if one.last_state.history and one.last_state.state is SequenceState.WRK
        ]
        if working:
            self._next_peer += 1
            self._context.send(working[self._next_peer % len(working)], SeqRes(self._context.own_state()))

    def _recent(self) -> list[SequencePeer]:
        return self._context.peers.recent(self._context.now_ns, _FRESH_NS)

    def _found_if_due(self) -> None:
        context = self._context
        recent = self._recent()
        if any(one.last_state.history for one in recent):
            return  # a history exists: join it, or wait until its members have a quorum
        removed = context.removed()
        if context.settings.identifier in removed:
            return
        recent = [one for one in recent if one.identifier not in removed]
        here = {one.identifier for one in recent}
        listed, unmet = self.listed(), self._unmet_endpoints()
        if any(identifier < context.settings.identifier for identifier in here):
            return
        missing = [identifier for identifier in listed if identifier not in here]
        whole = not missing and not unmet
        size = len({*listed, *here}) + unmet + 1
        most = 2 * (len(here) + 1) > size and context.now_ns - context.since_ns >= context.settings.patience_ns
        forgot_nothing = not context.remembers and not any(one.last_state.remembers for one in recent)
        if size <= MEMBERS_MAX and (whole or (most and not unmet and forgot_nothing)):
            self._found_history(recent, missing)

    def _found_history(self, recent: list[SequencePeer], missing: list[int]) -> None:
        context = self._context
        members = [context.me, *(SeatedMember(one.identifier, one.last_state.seat) for one in recent)]
        members += [SeatedMember(identifier, 0) for identifier in missing]
        history = context.rng.randrange(1, 1 << 64)
        context.start_from(history)
        context.promised = Ballot(1, context.seat)
        context.founded_alone = len(members) == 1
        body = encode_members(members)
        context.log.append(
            make_entry(EntryKind.FOUND, context.promised, context.settings.identifier, context.seat, body)
        )
        context.counts["histories_begun"] += 1
        context.since_ns = context.now_ns
        context.broadcast_after(0)

    def may_accept(self, entries: list[SequenceEntry], previous: int) -> bool:
        """True if these entries found a history that contains our current seat.

        A node that has known a history refuses one with vacant seats: the missing node might remember the old one.
        """
        context = self._context
        if context.history or previous or not entries or entries[0].kind is not EntryKind.FOUND:
            return False
        members = decode_members(entries[0].body)
        vacant = any(not member.seat for member in members)
        return context.me in members and not (vacant and context.remembers)
