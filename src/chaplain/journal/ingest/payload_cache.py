"""Payload cache: ingest messages that wait to be ordered, and the last ordered ones, for peers that lack them.

Decides which messages stay in memory, and which ones this node acknowledges to peers. Does not know the contents of
messages.

Invariants: this node's own messages stay until they are ordered. All others stay within bounds. An acknowledged index
means that all messages of the journal up to it were received or ordered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chaplain.journal.messages.cluster import Reference

EARLY_MAX = 65536
"""Remembered indexes of a journal that arrived before a predecessor."""


class PayloadCache:
    """Messages by reference, with their digests."""

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
            self._evict(next((known for known in self._waiting if known.node != self._node), None))

    def _evict(self, reference: Reference | None) -> None:
        if reference is not None:
            self._waiting_bytes -= len(self._waiting.pop(reference)[1])

    def get(self, reference: Reference, digest: bytes) -> bytes | None:
        """The message with this reference and digest, or None. An empty digest matches any."""
        known, payload = self._waiting.get(reference) or self._recent.get(reference) or (b"", b"")
        return payload if known and digest in (b"", known) else None

    def digest(self, reference: Reference) -> bytes:
        """The digest of a message that waits."""
        return self._waiting[reference][0]

    def mark_ordered(self, references: Iterable[Reference]) -> None:
        """Move messages from the waiting to the recent ones. Beyond the bound, evict the oldest recent ones."""
        for reference in references:
            kept = self._waiting.pop(reference, None)
            if kept is not None:
                self._waiting_bytes -= len(kept[1])
                self._recent[reference] = kept
                self._recent_bytes += len(kept[1])
        while self._recent_bytes > self._recent_bytes_max:
            self._recent_bytes -= len(self._recent.pop(next(iter(self._recent)))[1])

    def own_after(self, journal: int, index: int) -> Iterator[tuple[Reference, bytes]]:
        """Own messages that wait, in order. Leaves out the messages of `journal` up to `index`."""
        for reference, (_, payload) in self._waiting.items():
            if reference.node == self._node and (reference.journal != journal or reference.index > index):
                yield reference, payload


class ReceivedVector:
    """For each ingest node: its current journal, and the index up to which this node has received all messages of the
    journal.
    """

    def __init__(self) -> None:
        self._reached: dict[int, tuple[int, int]] = {}
        self._early: dict[int, set[int]] = {}

    def received(self, reference: Reference) -> None:
        journal, index = self._reached.get(reference.node, (-1, 0))
        if journal != reference.journal:
            index = 0
            self._reached[reference.node] = (reference.journal, 0)
            self._early[reference.node] = set()
        early = self._early[reference.node]
        if reference.index == index + 1:
            self._reached[reference.node] = (reference.journal, reference.index)
        elif reference.index > index and len(early) < EARLY_MAX:
            early.add(reference.index)
        if early:
            self._advance(reference.node)

    def has(self, reference: Reference) -> bool:
        """True if this message was received, or ordered."""
        journal, index = self._reached.get(reference.node, (-1, 0))
        return journal == reference.journal and (
            reference.index <= index or reference.index in self._early[reference.node]
        )

    def mark_ordered(self, references: Iterable[Reference]) -> None:
        """An ordered message need not be sent any more, even if it never arrived here."""
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
