"""The conditions of the network: which hosts reach each other, with which delay, and what happens to frames at random.

This module knows nothing about connections; it answers questions and draws random values. The fault plan changes it.

Frames on one connection never overtake each other, as in TCP. `loss` has two meanings. With TCP-like conditions a lost
frame is late, because TCP resends it. With `raw` conditions it is gone; no TCP does that, but a core must survive it.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from chaplain.core import Frozen
from chaplain.units import MILLISECOND_NS, SECOND_NS

Pair = tuple[str, str]
"""A direction: from the first host to the second."""


class NetworkProfile(Frozen, frozen=True):
    """The properties of one seed's network during the whole run."""

    loss: float = 0.0
    duplicates: float = 0.0
    delay_max_ns: int = MILLISECOND_NS
    raw: bool = False
    """Frames may be lost or duplicated."""
    breaks: float = 0.0
    """Probability per frame that the connection breaks."""
    half_open: float = 0.0
    """Probability that one end of a broken connection is never notified."""
    route_news: bool = False
    """True if the dialled end is notified of a disconnect and can disconnect itself. A ROUTER does neither: it notices
    a lost route only when it sends.
    """


FAULTLESS = NetworkProfile()


class NetworkConditions:
    __slots__ = ("_blocked", "_blocks", "_clogged", "_rng", "_tokens", "profile")

    def __init__(self, rng: Random) -> None:
        self.profile = FAULTLESS
        self._rng = rng
        self._blocked: set[Pair] = set()
        self._blocks: dict[int, tuple[Pair, ...]] = {}
        self._tokens = 0
        self._clogged: dict[Pair, int] = {}

    # Called by the fault plan.

    def block(self, pairs: Iterable[Pair]) -> int:
        """Block these directions until `unblock` is called with the returned token; blocks may overlap."""
        self._tokens += 1
        self._blocks[self._tokens] = tuple(pairs)
        self._blocked.update(self._blocks[self._tokens])
        return self._tokens

    def unblock(self, token: int) -> None:
        """Lift that block, unless `clear` already did."""
        if self._blocks.pop(token, None) is not None:
            self._blocked = {pair for pairs in self._blocks.values() for pair in pairs}

    def clog(self, pair: Pair, until_ns: int) -> None:
        self._clogged[pair] = max(until_ns, self._clogged.get(pair, 0))

    def clear(self) -> None:
        self.profile = FAULTLESS
        self._blocked.clear()
        self._blocks.clear()
        self._clogged.clear()

    # Called by connections.

    def passes(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) not in self._blocked

    def clogged_until(self, sender: str, receiver: str, now_ns: int) -> int:
        """When the direction is free again; now, if it is free."""
        return max(now_ns, self._clogged.get((sender, receiver), 0)) if self._clogged else now_ns

    def delay(self) -> int:
        """A random latency; short most of the time, as in real networks."""
        chance = self._rng.random()
        return 20_000 + int(self.profile.delay_max_ns * chance * chance * chance)

    def lost(self) -> bool:
        return self.profile.loss > 0 and self._rng.random() < self.profile.loss

    def retransmission(self) -> int:
        """The delay of a frame that TCP had to resend."""
        return 200 * MILLISECOND_NS << self._rng.randrange(3)

    def duplicated(self) -> bool:
        return self.profile.duplicates > 0 and self._rng.random() < self.profile.duplicates

    def breaks(self) -> bool:
        return self.profile.breaks > 0 and self._rng.random() < self.profile.breaks

    def stays_half_open(self) -> bool:
        return self.profile.half_open > 0 and self._rng.random() < self.profile.half_open

    def timeout(self) -> int:
        """How long an end takes to notice that the other is silent."""
        return self._rng.randrange(2 * SECOND_NS, 15 * SECOND_NS)
