"""Events that wait to be numbered, and those of ours that are on their way.

Decides what goes into a batch: as much as is waiting, up to a bound, neighbours of one stream and publisher as one run.

Invariants: a token ends once; events that lost their place to another entry wait again, in front, in their order, since
they are certain not to be agreed there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from chaplain.sequence.entry import encode_run
from chaplain.sequence.events import Publish
from chaplain.sequence.log import Held


class _Placed(NamedTuple):
    publish: Publish
    run: int
    offset: int


class Publishing:
    def __init__(self) -> None:
        self._pending: deque[Publish] = deque()
        self.pending_bytes = 0
        self._placed: dict[int, list[_Placed]] = {}
        """By the index of our entry."""

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(self, publish: Publish) -> None:
        self._pending.append(publish)
        self.pending_bytes += _size(publish)

    def take(self, index: int, bytes_max: int) -> bytes:
        """The body of the entry that will stand at this index."""
        assert self._pending
        placed: list[_Placed] = []
        runs: list[tuple[str, str, list[bytes]]] = []
        size = 0
        while self._pending and (not placed or size + _size(self._pending[0]) <= bytes_max):
            publish = self._pending.popleft()
            size += _size(publish)
            if not runs or runs[-1][:2] != (publish.stream, publish.publisher):
                runs.append((publish.stream, publish.publisher, []))
            values = runs[-1][2]
            placed.append(_Placed(publish, len(runs) - 1, len(values)))
            values.extend(publish.values)
        self.pending_bytes -= size
        self._placed[index] = placed
        return b"".join(encode_run(*run) for run in runs)

    def numbered(self, index: int, firsts: list[int]) -> list[tuple[int, int]]:
        """Our entry is agreed: each token with its first number, from those of the runs."""
        placed = self._placed.pop(index, ())
        return [(one.publish.token, firsts[one.run] + one.offset) for one in placed]

    def displaced(self, dropped: Iterable[Held]) -> None:
        """Entries left the log undecided: ours wait again."""
        for held in reversed(list(dropped)):
            for one in reversed(self._placed.pop(held.index, ())):
                self._pending.appendleft(one.publish)
                self.pending_bytes += _size(one.publish)

    def abandon_placed(self) -> list[int]:
        """The tokens of what is in the log; nobody waits for them here any more."""
        tokens = [one.publish.token for index in sorted(self._placed) for one in self._placed[index]]
        self._placed.clear()
        return tokens

    def abandon_pending(self) -> list[int]:
        """The tokens of what never was in an entry."""
        tokens = [publish.token for publish in self._pending]
        self._pending.clear()
        self.pending_bytes = 0
        return tokens


def _size(publish: Publish) -> int:
    return sum(map(len, publish.values)) + 4 * len(publish.values) + 64
