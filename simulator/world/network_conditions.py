"""The state of the network between hosts: who can reach whom, how slowly, and what chance does to a frame.

The weather decides nothing about connections; it answers questions and draws chances. The fault plan changes it.

Frames on one connection never overtake each other, as in TCP. `loss` has two faces: in *stream* weather a lost frame
comes later (TCP sends it again), in *raw* weather it is gone, which no TCP does but a core must survive.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from chaplain.core import Frozen
from chaplain.units import MILLISECOND_NS, SECOND_NS

Pair = tuple[str, str]
"""A direction: from the first to the second."""


class Climate(Frozen, frozen=True):
    """What one seed's network is like all along."""

    loss: float = 0.0
    duplicates: float = 0.0
    delay_max_ns: int = MILLISECOND_NS
    raw: bool = False
    """Frames may really vanish or come twice."""
    breaks: float = 0.0
    """Chance per frame that the connection breaks under it."""
    half_open: float = 0.0
    """Chance that one side of a broken connection is never told."""
    route_news: bool = False
    """Whether the side that was dialled is told of an end, and can make one. A ROUTER does neither: it learns that a
    route is gone only when it wants to send there."""


FAIR = Climate()


class Weather:
    __slots__ = ("_blocked", "_blocks", "_clogged", "_rng", "_tokens", "climate")

    def __init__(self, rng: Random) -> None:
        self.climate = FAIR
        self._rng = rng
        self._blocked: set[Pair] = set()
        self._blocks: dict[int, tuple[Pair, ...]] = {}
        self._tokens = 0
        self._clogged: dict[Pair, int] = {}

    # What the fault plan does.

    def block(self, pairs: Iterable[Pair]) -> int:
        """Nothing passes in these directions until the token that is returned lifts the block; blocks overlap."""
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
        self.climate = FAIR
        self._blocked.clear()
        self._blocks.clear()
        self._clogged.clear()

    # What connections ask.

    def passes(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) not in self._blocked

    def clogged_until(self, sender: str, receiver: str, now_ns: int) -> int:
        """When the direction is free again; now, if it is free."""
        return max(now_ns, self._clogged.get((sender, receiver), 0)) if self._clogged else now_ns

    def delay(self) -> int:
        """How long something is under way. Short most of the time, as in life."""
        chance = self._rng.random()
        return 20_000 + int(self.climate.delay_max_ns * chance * chance * chance)

    def lost(self) -> bool:
        return self.climate.loss > 0 and self._rng.random() < self.climate.loss

    def retransmission(self) -> int:
        """How late a frame is that TCP had to send again."""
        return 200 * MILLISECOND_NS << self._rng.randrange(3)

    def doubled(self) -> bool:
        return self.climate.duplicates > 0 and self._rng.random() < self.climate.duplicates

    def breaks(self) -> bool:
        return self.climate.breaks > 0 and self._rng.random() < self.climate.breaks

    def untold(self) -> bool:
        return self.climate.half_open > 0 and self._rng.random() < self.climate.half_open

    def timeout(self) -> int:
        """How long it takes a side to notice that the other has fallen silent."""
        return self._rng.randrange(2 * SECOND_NS, 15 * SECOND_NS)
