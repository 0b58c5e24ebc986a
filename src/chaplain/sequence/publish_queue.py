"""Events that wait to be numbered, and those of ours that are on their way.

Decides what goes into a batch: as much as is waiting, up to a bound, neighbours of one stream and publisher as one run.

An entry of ours that lost its place here to another's may be held elsewhere, and be agreed after all: a ballot that
never reached a majority displaces nothing for good. What is agreed in its place decides: the entry itself, and then it
is numbered; or another, and then it can be agreed nowhere, since its hash hangs on its place.

Invariants: a token ends once; events wait again, in front, only when they are certain not to be agreed where they were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from chaplain.sequence.events import Publish
from chaplain.sequence.messages.entry import encode_run
from chaplain.sequence.window.entries import HeldEntry, LostEntry, PlacedRun


class PublishQueue:
    def __init__(self) -> None:
        self._pending: deque[Publish] = deque()
        self.pending_bytes = 0
        """0 if and only if nothing waits."""
        self._placed: dict[int, list[PlacedRun]] = {}
        """By the index of our entry."""
        self.lost: list[deque[LostEntry]] = []
        """Entries that left the log undecided, as they hung on each other; some of them ours."""

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(self, publish: Publish) -> None:
        self._pending.append(publish)
        self.pending_bytes += _size(publish)

    def take(self, index: int, bytes_max: int) -> bytes:
        """The body of the entry that will stand at this index."""
        assert self._pending
        if len(self._pending) == 1:
            publish = self._pending.popleft()
            self.pending_bytes = 0
            self._placed[index] = [PlacedRun(publish, 0, 0)]
            return encode_run(publish.stream, publish.publisher, publish.values)
        placed: list[PlacedRun] = []
        runs: list[tuple[str, str, list[bytes]]] = []
        size = 0
        while self._pending and (not placed or size + _size(self._pending[0]) <= bytes_max):
            publish = self._pending.popleft()
            size += _size(publish)
            if not runs or runs[-1][:2] != (publish.stream, publish.publisher):
                runs.append((publish.stream, publish.publisher, []))
            values = runs[-1][2]
            placed.append(PlacedRun(publish, len(runs) - 1, len(values)))
            values.extend(publish.values)
        self.pending_bytes -= size
        self._placed[index] = placed
        return b"".join(encode_run(*run) for run in runs)

    def displaced(self, dropped: Sequence[HeldEntry]) -> None:
        """Entries left the log undecided."""
        if not dropped:
            return
        chain = deque(LostEntry(held.index, held.hash, self._placed.pop(held.index, [])) for held in dropped)
        if any(lost.placed for lost in chain):
            self.lost.append(chain)

    def is_lost_behind(self, index: int) -> bool:
        """Whether something of ours is to be decided by what is agreed behind an index."""
        return any(chain[-1].at > index for chain in self.lost)

    def decided(self, index: int, digest: bytes) -> list[PlacedRun]:
        """What is agreed at the next index: gives what of ours is in it; what it rules out waits again."""
        found = self._placed.pop(index, [])
        if not self.lost:
            return found
        for chain in [chain for chain in self.lost if chain[0].at == index]:
            if chain[0].hash == digest:
                found = chain.popleft().placed or found
            else:
                self._wait_again([one.publish for lost in chain for one in lost.placed])
                chain.clear()
        self.lost = [chain for chain in self.lost if chain]
        return found

    def _wait_again(self, publishes: list[Publish]) -> None:
        self._pending.extendleft(reversed(publishes))
        self.pending_bytes += sum(map(_size, publishes))

    def abandon_placed(self) -> list[int]:
        """The tokens of what is in the log, or was and may be elsewhere; nobody waits for them here any more."""
        lost = [one.publish.token for chain in self.lost for each in chain for one in each.placed]
        tokens = [one.publish.token for index in sorted(self._placed) for one in self._placed[index]]
        self._placed.clear()
        self.lost.clear()
        return lost + tokens

    def abandon_pending(self) -> list[int]:
        """The tokens of what never was in an entry."""
        tokens = [publish.token for publish in self._pending]
        self._pending.clear()
        self.pending_bytes = 0
        return tokens


def _size(publish: Publish) -> int:
    return sum(map(len, publish.values)) + 4 * len(publish.values) + 64
