"""Catch-up: a node without a seat copies the window of a member, then asks for a seat.

It starts from the window base of the member that answered SEQRES, its source, and requests page after page, one at a
time, so that the source has time for its other work. If the source does not answer or exits, the node continues with
the next member. Pages received so far stay valid, because decided entries are the same on every node.

Decides which member is asked, and when to give up. Does not know what a page contains.

Invariant: the node asks for a seat only after it has received all entries that its source had at one moment
(docs/decisions/sequence-members.md).
"""

from __future__ import annotations

from collections.abc import Callable

from chaplain.sequence.context import SequenceContext
from chaplain.sequence.messages.peer import Fill, PeerState, SeqRes, SequenceState
from chaplain.sequence.peers import SequencePeer

_FRESH_NS = 2_500 * 10**6
"""How long a state that a source sent is valid."""
_SEAT_REQUEST_NS = 250 * 10**6
"""Interval at which a seat is requested."""


class CatchUp:
    def __init__(
        self, context: SequenceContext, lacks: Callable[[PeerState], bool], abandon_history: Callable[[str], None]
    ) -> None:
        self._context = context
        self._lacks = lacks
        self._abandon_history = abandon_history
        self._source = 0
        """Identifier of the current source."""
        self._next_request_ns = 0
        """When the next source is asked if the current one has not answered."""
        self._awaits_page = False
        """A page was requested and has not arrived."""
        self._source_seen_ns = 0
        """The last time at which there was a source."""
        self._seat_request_ns: int | None = None
        """When to ask for a seat again. None until the source has had no entry that we lack. From then on only few
        entries are missing.
        """

    def start(self, source: SequencePeer) -> None:
        self._source_seen_ns = self._context.now_ns
        self._seat_request_ns = None
        self._request_page(source)

    def due_ns(self) -> int | None:
        if not self._context.is_learning:
            return None
        return (
            self._next_request_ns
            if self._seat_request_ns is None
            else min(self._next_request_ns, self._seat_request_ns)
        )

    def poll(self) -> None:
        """On a timer: ask another source, or give up."""
        context = self._context
        if not context.is_learning:
            return
        sources = self._sources()
        if sources:
            self._source_seen_ns = context.now_ns
        if self._works_elsewhere(sources) or context.now_ns - self._source_seen_ns > context.settings.silence_ns:
            self._abandon_history(f"nobody of history {context.name} is left to learn from")
            return
        if self._seat_request_ns is not None and context.now_ns >= self._seat_request_ns:
            self._request_seat()
        if context.now_ns >= self._next_request_ns:
            later = [one for one in sources if one.identifier > self._source]
            for source in (later or sources)[:1]:
                self._request_page(source)
            self._next_request_ns = context.now_ns + context.settings.page_wait_ns

    def _sources(self) -> list[SequencePeer]:
        """Recently heard peers that have a seat in this history, by their own reports."""
        context = self._context
        recent = context.peers.recent(context.now_ns, _FRESH_NS)
        return [
            one
            for one in recent
            if one.last_state.history == context.history and one.last_state.state is not SequenceState.DSC
        ]

    def _works_elsewhere(self, sources: list[SequencePeer]) -> bool:
        """True if no member of this history is in WRK, but a member of another history is. Then this history can never
        give us a seat.
        """
        if any(one.last_state.state is SequenceState.WRK for one in sources):
            return False
        context = self._context
        recent = context.peers.recent(context.now_ns, _FRESH_NS)
        return any(
            one.last_state.state is SequenceState.WRK and one.last_state.history != context.history for one in recent
        )

    def peer_exited(self, identifier: int) -> None:
        """A connection broke: if it was the source's, ask another one at once."""
        if identifier == self._source:
            self._next_request_ns = self._context.now_ns

    def on_entries(self, peer: SequencePeer) -> None:
        """Entries from this peer were accepted."""
        if peer.identifier == self._source:
            self._awaits_page = False
            self.on_status(peer)

    def on_status(self, peer: SequencePeer) -> None:
        """A member with a seat reported its log length: request the next page, or a seat."""
        if not self._context.is_learning or peer.identifier != self._source or self._awaits_page:
            return
        if self._lacks(peer.last_state):
            self._request_page(peer)
        elif self._seat_request_ns is None:
            self._request_seat()

    def _request_seat(self) -> None:
        """Ask all sources for a seat."""
        self._seat_request_ns = self._context.now_ns + _SEAT_REQUEST_NS
        self._context.send_all(self._sources(), SeqRes(self._context.own_state()))

    def _request_page(self, source: SequencePeer) -> None:
        context = self._context
        self._source = source.identifier
        self._next_request_ns = context.now_ns + context.settings.page_wait_ns
        self._awaits_page = True
        context.send(source, Fill(context.own_state()))
