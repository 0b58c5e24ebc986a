"""Learning: one that has no seat yet takes over what the others remember, and asks for a seat when it holds that.

It starts from the foot of the window of the one that told it the number, its guide, and asks for page after page of
what follows, one at a time, so that nobody is kept from working. A guide that does not answer, or is gone, is left for
the next one: what was taken over stays, because the log is the same everywhere as far as it is agreed.

Decides whom to ask, and when to give up. Refuses to know what is in a page.

Invariant: no seat is asked for before everything was held that the guide held at one moment (decision 0141).
"""

from __future__ import annotations

from collections.abc import Callable

from chaplain.sequence.context import SequenceContext
from chaplain.sequence.messages.peer import Bearing, Fill, SeqRes, SequenceState
from chaplain.sequence.peers import SequencePeer

_FRESH_NS = 2_500 * 10**6
"""How long a word of a guide counts."""
_WISH_NS = 250 * 10**6


class CatchUp:
    def __init__(self, bench: SequenceContext, lacks: Callable[[Bearing], bool], leave: Callable[[str], None]) -> None:
        self._bench = bench
        self._lacks = lacks
        self._leave = leave
        self._guide = 0
        """Its identifier."""
        self._ask_ns = 0
        """When the next one is asked, if this one has not answered."""
        self._waits = False
        """A page is on its way."""
        self._led_ns = 0
        """When there last was somebody to learn from."""
        self._wish_ns: int | None = None
        """When to ask for a seat again; not before the guide had nothing that we lacked. What came since is little."""

    def began(self, guide: SequencePeer) -> None:
        self._led_ns = self._bench.now_ns
        self._wish_ns = None
        self._ask(guide)

    def due_ns(self) -> int | None:
        if not self._bench.learns:
            return None
        return self._ask_ns if self._wish_ns is None else min(self._ask_ns, self._wish_ns)

    def look(self) -> None:
        """Time has passed: ask another one, or give up."""
        bench = self._bench
        if not bench.learns:
            return
        guides = self._guides()
        if guides:
            self._led_ns = bench.now_ns
        if self._is_led_astray(guides) or bench.now_ns - self._led_ns > bench.settings.silence_ns:
            self._leave(f"nobody of history {bench.name} is left to learn from")
            return
        if self._wish_ns is not None and bench.now_ns >= self._wish_ns:
            self._wish()
        if bench.now_ns >= self._ask_ns:
            later = [one for one in guides if one.identifier > self._guide]
            for guide in (later or guides)[:1]:
                self._ask(guide)
            self._ask_ns = bench.now_ns + bench.settings.page_wait_ns

    def _guides(self) -> list[SequencePeer]:
        """Those who have a seat in this history, as far as they know."""
        bench = self._bench
        fresh = bench.company.fresh(bench.now_ns, _FRESH_NS)
        return [
            one for one in fresh if one.bearing.history == bench.history and one.bearing.state is not SequenceState.DSC
        ]

    def _is_led_astray(self, guides: list[SequencePeer]) -> bool:
        """Nobody of this history works, and somebody of another does: it would never let us in."""
        if any(one.bearing.state is SequenceState.WRK for one in guides):
            return False
        bench = self._bench
        fresh = bench.company.fresh(bench.now_ns, _FRESH_NS)
        return any(one.bearing.state is SequenceState.WRK and one.bearing.history != bench.history for one in fresh)

    def gone(self, identifier: int) -> None:
        """A connection broke."""
        if identifier == self._guide:
            self._ask_ns = self._bench.now_ns

    def took(self, fellow: SequencePeer) -> None:
        """Entries came, and were taken in."""
        if fellow.identifier == self._guide:
            self._waits = False
            self.heard(fellow)

    def heard(self, fellow: SequencePeer) -> None:
        """One that has a seat said how far it is."""
        if not self._bench.learns or fellow.identifier != self._guide or self._waits:
            return
        if self._lacks(fellow.bearing):
            self._ask(fellow)
        elif self._wish_ns is None:
            self._wish()

    def _wish(self) -> None:
        """Ask for a seat."""
        self._wish_ns = self._bench.now_ns + _WISH_NS
        self._bench.tell_all(self._guides(), SeqRes(self._bench.bearing()))

    def _ask(self, guide: SequencePeer) -> None:
        bench = self._bench
        self._guide = guide.identifier
        self._ask_ns = bench.now_ns + bench.settings.page_wait_ns
        self._waits = True
        bench.tell(guide, Fill(bench.bearing()))
