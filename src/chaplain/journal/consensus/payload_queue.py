"""Queue of payloads that have arrived and wait to be ordered.

Decides which references are ordered next. The references of one ingest journal are ordered without gaps, and journals
take turns. Does not know what a payload means.

If the node of a journal has failed, the journal may have a gap that no node can fill, or payloads that only this node
has. The queue drops the payloads of a journal after it has been silent for `idle_ns`. Ingest nodes send unordered
payloads again, so silence means that no node waits for them. If a proposal needs a dropped payload, the node fetches
it.

Invariants: a reference is chosen only if all references before it in its journal are ordered, or chosen with it. The
queue contains at most `bytes_max` bytes, plus the payloads that a proposal waits for.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.journal.messages.cluster import DataEntry, Reference

FIRST_INDEX = 1
JOURNALS_MAX = 1024
"""Journals whose next index is remembered; the one used longest ago is forgotten first. A payload that is ordered twice
as a result has no effect, because execution voids it."""

PAYLOAD_OVERHEAD_BYTES = 128
"""Added to the size of each payload, so that many empty payloads reach the bound, too."""

_Journal = tuple[int, int]
_NONE: dict[int, tuple[bytes, bytes]] = {}


class PayloadQueue:
    """Payloads by ingest journal and index."""

    def __init__(self, bytes_max: int, idle_ns: int) -> None:
        self._bytes_max = bytes_max
        self._idle_ns = idle_ns
        self._last_arrival_ns: dict[_Journal, int] = {}
        """When a payload of each journal arrived last; only journals with payloads in the queue."""
        self._payloads: dict[_Journal, dict[int, tuple[bytes, bytes]]] = {}
        """Digest and payload by index, for each journal."""
        self._next: dict[_Journal, int] = {}
        """The index after the last ordered one, for each journal."""
        self._reserved: set[Reference] = set()
        """References that a proposal waits for."""
        self.size_bytes = 0

    def put(self, now_ns: int, reference: Reference, digest: bytes, payload: bytes) -> bool:
        """Add a payload. False if there is no room."""
        journal = (reference.node, reference.journal)
        if reference.index < self._next.get(journal, FIRST_INDEX):
            return True
        self._last_arrival_ns[journal] = now_ns
        cost = _cost(payload)
        if self.size_bytes + cost > self._bytes_max and reference not in self._reserved:
            return False
        payloads = self._payloads.setdefault(journal, {})
        if reference.index in payloads:
            cost -= _cost(payloads[reference.index][1])
        self.size_bytes += cost
        payloads[reference.index] = (digest, payload)
        return True

    def reserve(self, entries: list[DataEntry]) -> None:
        """A proposal waits for these entries: their payloads are accepted beyond `bytes_max`."""
        self._reserved = {entry.reference for entry in entries} if entries else set()

    def get(self, entries: Iterable[DataEntry]) -> tuple[bytes, ...]:
        """The payloads of these entries, all of which must be here."""
        found: list[bytes] = []
        for entry in entries:
            payload = self.find(entry)
            assert payload is not None, "a message was proposed without its payloads"
            found.append(payload)
        return tuple(found)

    def find(self, entry: DataEntry) -> bytes | None:
        """The payload of this entry, or None."""
        reference = entry.reference
        digest, payload = self._payloads.get((reference.node, reference.journal), _NONE).get(
            reference.index, (b"", b"")
        )
        return payload if digest == entry.digest else None

    def choose(self, entries_max: int, bytes_max: int) -> list[DataEntry]:
        """The entries to order next. A payload larger than `bytes_max` is chosen alone."""
        chosen: list[DataEntry] = []
        size = 0
        for journal in list(self._payloads):
            payloads = self._payloads[journal]
            index = self._next.get(journal, FIRST_INDEX)
            while index in payloads and len(chosen) < entries_max:
                digest, payload = payloads[index]
                size += len(payload)
                if chosen and size > bytes_max:
                    return chosen
                chosen.append(DataEntry(Reference(*journal, index), digest))
                index += 1
        return chosen

    def has_any_of(self, node: int) -> bool:
        """True if a payload of this ingest node waits here."""
        return any(journal[0] == node for journal in self._payloads)

    def gaps(self, references_max: int) -> list[Reference]:
        """The missing references that precede a payload in the queue. Those of one journal are in ascending order."""
        gaps: list[Reference] = []
        for journal, payloads in self._payloads.items():
            for index in range(self._next.get(journal, FIRST_INDEX), max(payloads)):
                if len(gaps) == references_max:
                    return gaps
                if index not in payloads:
                    gaps.append(Reference(*journal, index))
        return gaps

    def expire(self, now_ns: int) -> list[_Journal]:
        """Drop the payloads of journals that have been silent for `idle_ns`, and return those journals."""
        silent = [
            journal for journal, arrival_ns in self._last_arrival_ns.items() if now_ns - arrival_ns >= self._idle_ns
        ]
        for journal in silent:
            del self._last_arrival_ns[journal]
            for _, payload in self._payloads.pop(journal, {}).values():
                self.size_bytes -= _cost(payload)
        return silent

    def mark_ordered(self, entries: Iterable[DataEntry]) -> None:
        """These entries are agreed: remove their payloads, and do not offer them again."""
        for entry in entries:
            reference = entry.reference
            journal = (reference.node, reference.journal)
            following = max(reference.index + 1, self._next.pop(journal, FIRST_INDEX))
            self._next[journal] = following
            payloads = self._payloads.pop(journal, {})
            for index in [index for index in payloads if index < following]:
                self.size_bytes -= _cost(payloads.pop(index)[1])
            if payloads:
                self._payloads[journal] = payloads
            else:
                self._last_arrival_ns.pop(journal, None)
        while len(self._next) > JOURNALS_MAX:
            del self._next[next(iter(self._next))]


def _cost(payload: bytes) -> int:
    return len(payload) + PAYLOAD_OVERHEAD_BYTES
