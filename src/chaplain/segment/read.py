"""The filter between valid records and readers: shows only agreed records.

It decides when a message becomes visible. A valid record may still be a proposal that a new master replaced. It is
agreed if the next message is chained to it, or an agreed mark names it. This module does not know where records come
from.

A message whose batches get their offsets after they were written has a VERDICT record as its last part (`verdicts`).
It is shown only with that part, like with any other.

Invariants: messages of a chained log are shown in the order of their index, each index at most once; either all parts
of a message are shown or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from chaplain.core import Frozen
from chaplain.errors import StorageError
from chaplain.segment.layout import NO_HASH
from chaplain.segment.record import Flag, Kind, Record
from chaplain.segment.verdicts import Joiner

WAITING_MAX = 100_000
"""Records that may wait for agreement; with more, the log has lost its marks."""
MessageName: TypeAlias = tuple[int, bytes]
"""Index and chain hash of a message."""


class Incomplete(Frozen, frozen=True):
    """An agreed message of which some parts are missing because of damage."""

    index: int
    seen: int
    parts: int


class Agreement:
    """Takes records in the order of the log and returns those that became visible."""

    def __init__(self, waiting_max: int = WAITING_MAX) -> None:
        self._waiting: list[Record] = []
        self._previous: dict[MessageName, bytes] = {}
        """The previous hash of each waiting message. Kept beside `_waiting`, so that a record costs one lookup."""
        self._waiting_max = waiting_max
        self.incomplete: list[Incomplete] = []
        self._last_shown: tuple[int, bytes] | None = None
        """Index and chain hash of the last message that was shown."""
        self.forks: list[int] = []
        """Indexes at which agreed records contradict what was shown. Impossible in a healthy log."""
        self.superseded = 0
        """Records of proposals that were replaced, so that they are never shown."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def passed(self) -> int:
        """The index of the last message that was shown, or would have been if it were complete."""
        return self._last_shown[0] if self._last_shown is not None else -1

    def feed(self, record: Record) -> list[Record]:
        """Take the next record of the log."""
        if record.flags & Flag.SETTLED:
            return [record]
        if record.kind == Kind.MARK:
            return self._on_mark(record)
        shown = self._chained(record.index - 1, record.previous_hash) if record.previous_hash != NO_HASH else []
        if self._last_shown is not None and record.chain_hash != NO_HASH and record.index <= self._last_shown[0]:
            self.superseded += 1  # this index was shown: the same record written again, or a replaced proposal
            return shown
        if len(self._waiting) >= self._waiting_max:
            raise StorageError(f"{self._waiting_max} records wait for an agreed mark: the log has lost its marks")
        self._waiting.append(record)
        self._previous[record.index, record.chain_hash] = record.previous_hash
        return shown

    def _on_mark(self, mark: Record) -> list[Record]:
        if mark.chain_hash != NO_HASH:
            return self._chained(mark.index, mark.chain_hash)
        agreed = [record for record in self._waiting if record.index <= mark.index]
        self._keep_after(mark.index)
        return self._complete_messages(agreed)

    def _keep_after(self, index: int) -> None:
        self._waiting = [record for record in self._waiting if record.index > index]
        self._previous = {(record.index, record.chain_hash): record.previous_hash for record in self._waiting}

    def _chained(self, index: int, chain_hash: bytes) -> list[Record]:
        """Show the waiting messages that lead, by their hashes, to the message `index` with this chain hash."""
        # Each part of a message calls this, and a message may have many parts. So a call that shows nothing costs one
        # lookup; only a call that shows something is linear in the waiting records.
        on_chain: dict[MessageName, None] = {}
        lowest = self._last_shown[0] if self._last_shown else -1
        while index > lowest and (previous := self._previous.get((index, chain_hash))) is not None:
            on_chain[index, chain_hash] = None
            index, chain_hash = index - 1, previous
        if self._last_shown is not None and index == lowest and chain_hash != self._last_shown[1]:
            self.forks.append(index)
            return []
        if not on_chain:
            return []
        self._last_shown = last, _ = next(iter(on_chain))
        agreed = [record for record in self._waiting if (record.index, record.chain_hash) in on_chain]
        settled = sum(record.index <= last for record in self._waiting)
        self.superseded += settled - len(agreed)
        self._keep_after(last)
        return self._complete_messages(agreed)

    def _complete_messages(self, agreed: list[Record]) -> list[Record]:
        """Omit messages that lack a part, and record them.

        A part that was written again after a restart is shown once.
        """
        messages: dict[tuple[int, bytes], dict[int, Record]] = {}
        for record in agreed:
            messages.setdefault((record.index, record.chain_hash), {})[record.part] = record
        shown: list[Record] = []
        for name in sorted(messages, key=lambda name: name[0]):
            parts = messages[name]
            wanted = max(record.parts for record in parts.values())
            if len(parts) < wanted:
                self.incomplete.append(Incomplete(name[0], len(parts), wanted))
                continue
            shown += [parts[part] for part in sorted(parts)]
        return shown


def agreed(records: Iterable[Record], agreement: Agreement | None = None) -> Iterator[Record]:
    """The visible ones of these records, in order, with the offsets that verdicts state."""
    agreement, joiner = agreement or Agreement(), Joiner()
    for record in records:
        yield from joiner.feed(agreement.feed(record))
