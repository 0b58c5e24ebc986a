"""A node's own clock: the world's time, shifted, drifting, and never backwards for one life of a process.

The runtime promises its core a time that does not go back, so the simulator does too: after a backward jump the
core sees its clock stand still until the jump is made up. Forward jumps and drift reach the core as they are.
A new process has seen no time yet, so it starts from whatever the clock says then.

Invariants: `read` never falls within one life; `world_time(t)` is the first moment at which `read` reaches t.
"""

from __future__ import annotations

EPOCH_NS = 1_800_000_000 * 10**9
"""What a faultless clock says when the world begins: some moment in 2027."""

_MILLION = 10**6


class Clock:
    __slots__ = ("_floor_ns", "_node_ns", "_ppm", "_world_ns")

    def __init__(self) -> None:
        self._world_ns = 0
        self._node_ns = EPOCH_NS
        self._ppm = 0
        self._floor_ns = 0

    def read(self, world_ns: int) -> int:
        """What the core is told at this moment of the world."""
        # Every step asks: so it does not go through `_raw`.
        now_ns = self._node_ns + (world_ns - self._world_ns) * (_MILLION + self._ppm) // _MILLION
        self._floor_ns = max(self._floor_ns, now_ns)
        return self._floor_ns

    def world_time(self, node_ns: int) -> int:
        """When, in world time, the clock will show this."""
        rate = _MILLION + self._ppm
        return self._world_ns - (self._node_ns - node_ns) * _MILLION // rate

    def jump(self, world_ns: int, by_ns: int) -> None:
        self._rebase(world_ns, self._raw(world_ns) + by_ns)

    def drift(self, world_ns: int, ppm: int) -> None:
        """From now on gain (or lose) so many parts in a million."""
        assert abs(ppm) < _MILLION
        self._rebase(world_ns, self._raw(world_ns))
        self._ppm = ppm

    def mend(self, world_ns: int) -> None:
        """Right again, for the next process: the one that runs may have seen a later time."""
        self._ppm = 0
        self._rebase(world_ns, EPOCH_NS + world_ns)

    def reborn(self) -> None:
        """A new process starts: it has seen no time."""
        self._floor_ns = 0

    def error_ns(self, world_ns: int) -> int:
        """How far what the core is told is from the truth."""
        return abs(max(self._floor_ns, self._raw(world_ns)) - EPOCH_NS - world_ns)

    def drifts(self) -> bool:
        return self._ppm != 0

    def _raw(self, world_ns: int) -> int:
        return self._node_ns + (world_ns - self._world_ns) * (_MILLION + self._ppm) // _MILLION

    def _rebase(self, world_ns: int, node_ns: int) -> None:
        self._world_ns = world_ns
        self._node_ns = node_ns
