"""Payloads that have arrived and wait to be ordered.

Decides which references come next: per ingest journal in order and without gaps, journals in turn. Refuses to know
what a payload means.

A journal whose node is gone may have a gap that nobody will ever fill, or payloads that only we have. What came of it
is let go once the journal has been silent for `idle_ns`: ingest nodes send again what is not ordered, so silence means
that nobody does, and a proposal that needs something fetches it.

Invariants: a reference is offered only if all before it in its journal are ordered or offered with it; at most
`bytes_max` octets are kept, beside what a proposal waits for.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.journal.messages.cluster import DataEntry, Reference

FIRST_INDEX = 1
JOURNALS_MAX = 1024
"""Journals remembered; the one that was used longest ago is forgotten first. Execution voids what is ordered twice."""

PAYLOAD_OVERHEAD_BYTES = 128
"""What a payload costs beside its octets: many empty ones must reach the bound, too."""

_Journal = tuple[int, int]
_NONE: dict[int, tuple[bytes, bytes]] = {}


class PayloadQueue:
    def __init__(self, bytes_max: int, idle_ns: int) -> None:
        self._bytes_max = bytes_max
        self._idle_ns = idle_ns
        self._heard_ns: dict[_Journal, int] = {}
        """When something of a journal came last; journals of which something is kept."""
        self._kept: dict[_Journal, dict[int, tuple[bytes, bytes]]] = {}
        self._next: dict[_Journal, int] = {}
        self._wanted: set[Reference] = set()
        self.size_bytes = 0

    def put(self, now_ns: int, reference: Reference, digest: bytes, payload: bytes) -> bool:
        """Keep a payload. False if there is no room."""
        journal = (reference.node, reference.journal)
        if reference.index < self._next.get(journal, FIRST_INDEX):
            return True
        self._heard_ns[journal] = now_ns
        if self.size_bytes + _cost(payload) > self._bytes_max and reference not in self._wanted:
            return False
        kept = self._kept.setdefault(journal, {})
        old = kept.get(reference.index)
        self.size_bytes += _cost(payload) - (_cost(old[1]) if old else 0)
        kept[reference.index] = (digest, payload)
        return True

    def want(self, entries: list[DataEntry]) -> None:
        """These are what a proposal waits for: room is made for them, whatever the bound."""
        self._wanted = {entry.reference for entry in entries} if entries else set()

    def get(self, entries: Iterable[DataEntry]) -> tuple[bytes, ...]:
        """The payloads of entries none of which is missing."""
        payloads: list[bytes] = []
        for entry in entries:
            payload = self.find(entry)
            assert payload is not None, "a message was taken up without its payloads"
            payloads.append(payload)
        return tuple(payloads)

    def find(self, entry: DataEntry) -> bytes | None:
        """The payload, if it is here."""
        reference = entry.reference
        digest, payload = self._kept.get((reference.node, reference.journal), _NONE).get(reference.index, (b"", b""))
        return payload if digest == entry.digest else None

    def choose(self, entries_max: int, bytes_max: int) -> list[DataEntry]:
        """What to order next. A payload larger than the bound goes alone."""
        chosen: list[DataEntry] = []
        size = 0
        for journal in list(self._kept):
            kept = self._kept[journal]
            index = self._next.get(journal, FIRST_INDEX)
            while index in kept and len(chosen) < entries_max:
                digest, payload = kept[index]
                size += len(payload)
                if chosen and size > bytes_max:
                    return chosen
                chosen.append(DataEntry(Reference(*journal, index), digest))
                index += 1
        return chosen

    def holds(self, node: int) -> bool:
        """Whether anything of this ingest node waits here."""
        return any(journal[0] == node for journal in self._kept)

    def gaps(self, references_max: int) -> list[Reference]:
        """What is missing before payloads that are here, the first of each journal first."""
        gaps: list[Reference] = []
        for journal, kept in self._kept.items():
            for index in range(self._next.get(journal, FIRST_INDEX), max(kept)):
                if len(gaps) == references_max:
                    return gaps
                if index not in kept:
                    gaps.append(Reference(*journal, index))
        return gaps

    def expire(self, now_ns: int) -> list[_Journal]:
        """Let go of journals that have been silent for too long; which they were."""
        silent = [journal for journal, heard_ns in self._heard_ns.items() if now_ns - heard_ns >= self._idle_ns]
        for journal in silent:
            del self._heard_ns[journal]
            for _, payload in self._kept.pop(journal, {}).values():
                self.size_bytes -= _cost(payload)
        return silent

    def ordered(self, entries: Iterable[DataEntry]) -> None:
        """These are agreed: they are not offered again."""
        for entry in entries:
            reference = entry.reference
            journal = (reference.node, reference.journal)
            following = max(reference.index + 1, self._next.pop(journal, FIRST_INDEX))
            self._next[journal] = following
            kept = self._kept.pop(journal, {})
            for index in [index for index in kept if index < following]:
                self.size_bytes -= _cost(kept.pop(index)[1])
            if kept:
                self._kept[journal] = kept
            else:
                self._heard_ns.pop(journal, None)
        while len(self._next) > JOURNALS_MAX:
            del self._next[next(iter(self._next))]


def _cost(payload: bytes) -> int:
    return len(payload) + PAYLOAD_OVERHEAD_BYTES
