"""A node's own clock: the world's time, shifted and drifting, but never backwards within one process.

The runtime promises its core that time does not go back, so the simulator does, too. After a backward jump the core
sees its clock stand still until the world's time has caught up. Forward jumps and drift reach the core as they are. A
new process starts from whatever the clock shows.

Invariants: `read` never decreases within one process; `world_time(t)` is the first moment at which `read` reaches t.
"""

from __future__ import annotations

EPOCH_NS = 1_800_000_000 * 10**9
"""What a faultless clock shows when the world begins: some moment in 2027."""

_MILLION = 10**6


class Clock:
    __slots__ = ("_floor_ns", "_node_ns", "_ppm", "_world_ns")

    def __init__(self) -> None:
        self._world_ns = 0
        self._node_ns = EPOCH_NS
        self._ppm = 0
        self._floor_ns = 0

    def read(self, world_ns: int) -> int:
        """The time that the core sees at this moment of the world."""
        # Called at every step, so `_raw` is inlined.
        now_ns = self._node_ns + (world_ns - self._world_ns) * (_MILLION + self._ppm) // _MILLION
        self._floor_ns = max(self._floor_ns, now_ns)
        return self._floor_ns

    def world_time(self, node_ns: int) -> int:
        """The world time at which the clock will show this."""
        rate = _MILLION + self._ppm
        return self._world_ns - (self._node_ns - node_ns) * _MILLION // rate

    def jump(self, world_ns: int, by_ns: int) -> None:
        self._rebase(world_ns, self._raw(world_ns) + by_ns)

    def drift(self, world_ns: int, ppm: int) -> None:
        """From now on, gain (or lose) `ppm` parts per million."""
        assert abs(ppm) < _MILLION
        self._rebase(world_ns, self._raw(world_ns))
        self._ppm = ppm

    def set_right(self, world_ns: int) -> None:
        """Set the clock right for the next process; the running one may have seen a later time."""
        self._ppm = 0
        self._rebase(world_ns, EPOCH_NS + world_ns)

    def process_started(self) -> None:
        """A new process starts: it has seen no time yet."""
        self._floor_ns = 0

    def error_ns(self, world_ns: int) -> int:
        """The error of the time that the core sees."""
        return abs(max(self._floor_ns, self._raw(world_ns)) - EPOCH_NS - world_ns)

    def drifts(self) -> bool:
        return self._ppm != 0

    def _raw(self, world_ns: int) -> int:
        return self._node_ns + (world_ns - self._world_ns) * (_MILLION + self._ppm) // _MILLION

    def _rebase(self, world_ns: int, node_ns: int) -> None:
        self._world_ns = world_ns
        self._node_ns = node_ns
