"""Gives committed packs their offsets: the master reads them from its log and has them ordered once more.

Decides which packs are ordered again and when. Refuses to know what they hold and whether they are next: `execution`
pays what is owed, in order, and makes nothing of a copy that comes twice. So it does no harm that a master does not
know what the one before it has already brought, nor that two do it at once.

Bounds: `promoted_bytes_max` are on their way at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeAlias

from chaplain.core import Report
from chaplain.errors import Malformed
from chaplain.journal.consensus.events import ReadLog, RecordDamaged, RoleChanged
from chaplain.journal.events import Locate, PacksPromoted
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.membership import Stage
from chaplain.journal.model.records import PackKey, Staged
from chaplain.journal.settings import JournalSettings
from chaplain.journal.storage.pack_lookup import PackLookup
from chaplain.segment.record import Record

PromotionEffect: TypeAlias = ReadLog | PacksPromoted | RecordDamaged | Report
PACKS_MAX = 256
"""Packs on their way at a time."""


class CommitReplay:
    def __init__(self, settings: JournalSettings, execution: JournalExecution, locate: Locate) -> None:
        self._settings = settings
        self._execution = execution
        self._locate = locate
        self._master = 0
        self._sent: dict[PackKey, int] = {}
        """Sizes of what is on its way: the first of what is owed."""
        self._token = 0
        self._reading = False
        self._paid = 0
        self._moved_ns = 0
        self.effects: list[PromotionEffect] = []

    def role(self, now_ns: int, event: RoleChanged) -> None:
        """A new master begins with whatever is owed."""
        self._master = event.master
        self._moved_ns = now_ns
        self._sent.clear()
        self.pump()

    def woken(self, now_ns: int) -> None:
        """A master wakes with every heartbeat. What was brought and came to nothing is brought again."""
        holding = self._execution.state.staged_packs
        if holding.replayed != self._paid or not holding.committed:
            self._paid, self._moved_ns = holding.replayed, now_ns
        elif now_ns - self._moved_ns > self._settings.promotion_ns:
            self._moved_ns = now_ns
            self._sent.clear()
        self.pump()

    def pump(self) -> None:
        """Bring the next packs, as far as there is room."""
        if self._reading or not self._execution.state.staged_packs.committed or not self._is_mine():
            return
        wanted = next(self._wanted(), None)
        if wanted is None or not self._room():
            return
        span = self._locate(wanted.index, self._settings.read_bytes_max)
        if span is not None:
            self._token += 1
            self._reading = True
            self.effects.append(ReadLog(self._token, *span))

    def _is_mine(self) -> bool:
        """The master brings them, if it is an ingest node; if it is none, every one does: no copy counts twice."""
        assembly, node = self._execution.state.cluster_config, self._settings.node
        ingest = [one.node for one in assembly.nodes if one.ingest == Stage.LIVE]
        return node in ingest and (self._master == node or (self._master > 0 and self._master not in ingest))

    def _room(self) -> bool:
        return len(self._sent) < PACKS_MAX and sum(self._sent.values()) < self._settings.promoted_bytes_max

    def _wanted(self) -> Iterator[Staged]:
        """What is owed and not on its way."""
        owed = self._execution.state.staged_packs.committed
        there = {staged.key for staged in islice(owed, len(self._sent))}
        self._sent = {key: size for key, size in self._sent.items() if key in there}
        return islice(owed, len(self._sent), None)

    def read(self, token: int, records: Sequence[Record]) -> None:
        assert token == self._token, "one stretch is read at a time"
        self._reading = False
        if not self._is_mine():
            return
        excerpt = PackLookup(records)
        entries: list[IngestEntry] = []
        try:
            for staged in list(islice(self._wanted(), PACKS_MAX)):
                if staged.index not in excerpt or not self._room():
                    break
                raw = excerpt.pack(staged.index, staged.entry, staged.pack)
                entries.append(IngestEntry(staged.stream, raw))
                self._sent[staged.key] = len(raw)
        except Malformed as wrong:
            self.effects.append(Report("damaged: what was committed cannot be read back", "", {"reason": str(wrong)}))
            self.effects.append(RecordDamaged(staged.index))
        if entries:
            self.effects.append(PacksPromoted(tuple(entries)))
            self.pump()
