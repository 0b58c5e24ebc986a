"""Ingest messages in memory: those that wait to be ordered, and the last ones that were, for peers that lack them.

Decides what is kept and what peers are told to have been received. Refuses to know what messages hold.

Invariants: our own messages are kept until they are ordered; everything else is kept within bounds; what is
acknowledged for a journal was received, or ordered, without gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chaplain.journal.messages.cluster import Reference

EARLY_MAX = 65536
"""Indexes of a journal that came before their predecessors and are remembered."""


class PayloadCache:
    def __init__(self, node: int, waiting_bytes_max: int, recent_bytes_max: int) -> None:
        self._node = node
        self._waiting_bytes_max = waiting_bytes_max
        self._recent_bytes_max = recent_bytes_max
        self._waiting: dict[Reference, tuple[bytes, bytes]] = {}
        self._recent: dict[Reference, tuple[bytes, bytes]] = {}
        self._waiting_bytes = 0
        self._recent_bytes = 0

    def put(self, reference: Reference, digest: bytes, payload: bytes) -> None:
        if reference in self._waiting or reference in self._recent:
            return
        self._waiting[reference] = (digest, payload)
        self._waiting_bytes += len(payload)
        if self._waiting_bytes > self._waiting_bytes_max:
            self._forget(next((known for known in self._waiting if known.node != self._node), None))

    def _forget(self, reference: Reference | None) -> None:
        if reference is not None:
            self._waiting_bytes -= len(self._waiting.pop(reference)[1])

    def get(self, reference: Reference, digest: bytes) -> bytes | None:
        """The message, if it is here; an empty digest takes any."""
        known, payload = self._waiting.get(reference) or self._recent.get(reference) or (b"", b"")
        return payload if known and digest in (b"", known) else None

    def digest(self, reference: Reference) -> bytes:
        """Of a message that waits here."""
        return self._waiting[reference][0]

    def ordered(self, references: Iterable[Reference]) -> None:
        for reference in references:
            kept = self._waiting.pop(reference, None)
            if kept is not None:
                self._waiting_bytes -= len(kept[1])
                self._recent[reference] = kept
                self._recent_bytes += len(kept[1])
        while self._recent_bytes > self._recent_bytes_max:
            self._recent_bytes -= len(self._recent.pop(next(iter(self._recent)))[1])

    def own_after(self, journal: int, index: int) -> Iterator[tuple[Reference, bytes]]:
        """Our own messages that wait, in order; of this journal only those behind an index."""
        for reference, (_, payload) in self._waiting.items():
            if reference.node == self._node and (reference.journal != journal or reference.index > index):
                yield reference, payload


class ReceivedVector:
    """How far each ingest node's current journal was received here without gaps."""

    def __init__(self) -> None:
        self._reached: dict[int, tuple[int, int]] = {}
        self._early: dict[int, set[int]] = {}

    def received(self, reference: Reference) -> None:
        journal, _ = self._reached.get(reference.node, (-1, 0))
        if journal != reference.journal:
            self._reached[reference.node] = (reference.journal, 0)
            self._early[reference.node] = set()
        early = self._early[reference.node]
        if reference.index > self._reached[reference.node][1] and len(early) < EARLY_MAX:
            early.add(reference.index)
        self._advance(reference.node)

    def ordered(self, references: Iterable[Reference]) -> None:
        """What is ordered need not be sent any more, whether it came or not."""
        for reference in references:
            journal, index = self._reached.get(reference.node, (-1, 0))
            if journal == reference.journal and reference.index > index:
                self._reached[reference.node] = (journal, reference.index)
                early = self._early[reference.node]
                early.difference_update([known for known in early if known <= reference.index])
                self._advance(reference.node)

    def _advance(self, node: int) -> None:
        journal, index = self._reached[node]
        early = self._early[node]
        while index + 1 in early:
            index += 1
            early.discard(index)
        self._reached[node] = (journal, index)

    def vector(self) -> tuple[Reference, ...]:
        return tuple(Reference(node, *self._reached[node]) for node in sorted(self._reached))
