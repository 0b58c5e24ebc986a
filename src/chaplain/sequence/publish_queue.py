"""The publish queue: events that wait for a number, and those of this node that are in undecided entries.

A confirmation is a publish without events: it needs an entry of this node that is decided after the request, and may be
in an entry without events. Such an entry follows everything that was decided before.

Decides the content of a batch: all waiting events up to a bound. Adjacent events of one stream and publisher form one
run.

Another entry at the same index can displace an entry of ours from our log. Our entry may still be decided later: other
nodes may store it, and a ballot without a majority displaces nothing permanently. The entry that is decided at that
index determines the outcome. If it is our entry, its events are numbered. If it is another entry, ours can never be
decided, because its hash depends on its predecessors.

Invariants: a token is settled once; events return to the front of the queue only when they certainly cannot be decided
at their old place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from chaplain.sequence.events import Confirm, Publish
from chaplain.sequence.messages.entry import encode_run
from chaplain.sequence.window.entries import HeldEntry, LostEntry, PlacedRun


class PublishQueue:
    def __init__(self) -> None:
        self._pending: deque[Publish] = deque()
        self.pending_bytes = 0
        """0 if and only if no publish waits."""
        self._placed: dict[int, list[PlacedRun]] = {}
        """By entry index: our publishes in that entry."""
        self.displaced_chains: list[deque[LostEntry]] = []
        """Chains of entries that were displaced before they were decided. Each entry of a chain is linked to the one
        before, and at least one of them is ours.
        """

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(self, publish: Publish) -> None:
        self._pending.append(publish)
        self.pending_bytes += _size(publish)

    def add_confirmation(self, confirm: Confirm) -> None:
        self.add(Publish(confirm.token, "", "", ()))

    def take(self, index: int, bytes_max: int) -> bytes:
        """The body of the entry that will be written at this index; empty if only confirmations wait."""
        assert self._pending
        if len(self._pending) == 1:
            publish = self._pending.popleft()
            self.pending_bytes = 0
            self._placed[index] = [PlacedRun(publish, 0, 0)]
            if not publish.values:
                return b""
            return encode_run(publish.stream, publish.publisher, publish.values)
        placed: list[PlacedRun] = []
        runs: list[tuple[str, str, list[bytes]]] = []
        size = 0
        while self._pending and (not placed or size + _size(self._pending[0]) <= bytes_max):
            publish = self._pending.popleft()
            size += _size(publish)
            if not publish.values:
                placed.append(PlacedRun(publish, 0, 0))
                continue
            if not runs or runs[-1][:2] != (publish.stream, publish.publisher):
                runs.append((publish.stream, publish.publisher, []))
            values = runs[-1][2]
            placed.append(PlacedRun(publish, len(runs) - 1, len(values)))
            values.extend(publish.values)
        self.pending_bytes -= size
        self._placed[index] = placed
        return b"".join(encode_run(*run) for run in runs)

    def displaced(self, dropped: Sequence[HeldEntry]) -> None:
        """Record entries that left the log undecided."""
        if not dropped:
            return
        chain = deque(LostEntry(held.index, held.hash, self._placed.pop(held.index, [])) for held in dropped)
        if any(lost.placed for lost in chain):
            self.displaced_chains.append(chain)

    def is_displaced_after(self, index: int) -> bool:
        """True if the outcome of a publish of ours depends on the entry that is decided after this index."""
        return any(chain[-1].at > index for chain in self.displaced_chains)

    def decided(self, index: int, digest: bytes) -> list[PlacedRun]:
        """An entry was decided at the next index. Return our publishes in it; publishes that it rules out
        wait again.
        """
        found = self._placed.pop(index, [])
        if not self.displaced_chains:
            return found
        for chain in [chain for chain in self.displaced_chains if chain[0].at == index]:
            if chain[0].hash == digest:
                found = chain.popleft().placed or found
            else:
                self._wait_again([one.publish for lost in chain for one in lost.placed])
                chain.clear()
        self.displaced_chains = [chain for chain in self.displaced_chains if chain]
        return found

    def _wait_again(self, publishes: list[Publish]) -> None:
        self._pending.extendleft(reversed(publishes))
        self.pending_bytes += sum(map(_size, publishes))

    def abandon_placed(self) -> list[int]:
        """Remove and return the tokens of publishes in undecided or displaced entries. Their outcome stays unknown."""
        lost = [one.publish.token for chain in self.displaced_chains for each in chain for one in each.placed]
        tokens = [one.publish.token for index in sorted(self._placed) for one in self._placed[index]]
        self._placed.clear()
        self.displaced_chains.clear()
        return lost + tokens

    def abandon_pending(self) -> list[int]:
        """Remove and return the tokens of publishes that were never in an entry."""
        tokens = [publish.token for publish in self._pending]
        self._pending.clear()
        self.pending_bytes = 0
        return tokens


def _size(publish: Publish) -> int:
    return sum(map(len, publish.values)) + 4 * len(publish.values) + 64
