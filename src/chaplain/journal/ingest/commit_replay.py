"""Commit replay: the second phase of two-phase writes. Orders committed packs again, so that they get their offsets.

Reads the packs from this node's log and passes them on to be ordered a second time. Decides which packs are replayed,
and when. Does not know their contents, or whether they are next: execution assigns offsets in the order of the commits,
and ignores a pack that is replayed twice. A new master therefore does not need to know which packs the previous one has
replayed, and two nodes may replay the same pack.

Bounds: `promoted_bytes_max` bytes and `PACKS_MAX` packs under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import TypeAlias

from chaplain.core import Report
from chaplain.errors import Malformed
from chaplain.journal.consensus.events import ReadLog, RecordDamaged, RoleChanged
from chaplain.journal.events import Locate, PacksReplayed
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.membership import Stage
from chaplain.journal.model.records import PackKey, Staged
from chaplain.journal.settings import JournalSettings
from chaplain.journal.storage.pack_lookup import PackLookup
from chaplain.segment.record import Record

ReplayEffect: TypeAlias = ReadLog | PacksReplayed | RecordDamaged | Report
PACKS_MAX = 256
"""Replayed packs under way at a time."""


class CommitReplay:
    """Committed packs under way."""

    def __init__(
        self,
        settings: JournalSettings,
        execution: JournalExecution,
        locate: Locate,
        tokens: Iterator[int] | None = None,
    ) -> None:
        """`tokens` numbers reads of the log."""
        self._settings = settings
        self._execution = execution
        self._locate = locate
        self._master = 0
        self._in_flight: dict[PackKey, int] = {}
        """Sizes of the packs under way, by key. They are the first of the committed packs that wait."""
        self._tokens = tokens or count(1)
        self._reading = 0
        """The token of the read of the log that is under way; 0 if there is none."""
        self._replayed = 0
        """Number of replayed packs when progress was checked last."""
        self._last_progress_ns = 0
        """When a pack was replayed last."""
        self.effects: list[ReplayEffect] = []

    def role_changed(self, now_ns: int, event: RoleChanged) -> None:
        """A new master starts with the first committed pack that waits."""
        self._master = event.master
        self._last_progress_ns = now_ns
        self._in_flight.clear()
        self.replay_next()

    def woken(self, now_ns: int) -> None:
        """Called with every heartbeat of a master. Without progress for `promotion_ns`, packs are replayed again."""
        holding = self._execution.state.staged_packs
        if holding.replayed != self._replayed or not holding.committed:
            self._replayed, self._last_progress_ns = holding.replayed, now_ns
        elif now_ns - self._last_progress_ns > self._settings.promotion_ns:
            self._last_progress_ns = now_ns
            self._in_flight.clear()
        self.replay_next()

    def replay_next(self) -> None:
        """Read the next committed packs from the log, as far as the bounds allow."""
        if self._reading or not self._execution.state.staged_packs.committed or not self._is_responsible():
            return
        wanted = next(self._wanted(), None)
        if wanted is None or not self._has_room():
            return
        span = self._locate(wanted.index, self._settings.read_bytes_max)
        if span is not None:
            self._reading = next(self._tokens)
            self.effects.append(ReadLog(self._reading, *span))

    def _is_responsible(self) -> bool:
        """True if this node has to replay. A master that is an ingest node replays alone. Otherwise every ingest node
        replays; duplicates have no effect.
        """
        config, node = self._execution.state.cluster_config, self._settings.node
        ingest = [one.node for one in config.nodes if one.ingest == Stage.LIVE]
        return node in ingest and (self._master == node or (self._master > 0 and self._master not in ingest))

    def _has_room(self) -> bool:
        return len(self._in_flight) < PACKS_MAX and sum(self._in_flight.values()) < self._settings.promoted_bytes_max

    def _wanted(self) -> Iterator[Staged]:
        """Committed packs that wait and are not under way."""
        owed = self._execution.state.staged_packs.committed
        first_keys = {staged.key for staged in islice(owed, len(self._in_flight))}
        self._in_flight = {key: size for key, size in self._in_flight.items() if key in first_keys}
        return islice(owed, len(self._in_flight), None)

    def on_log_read(self, token: int, records: Sequence[Record]) -> None:
        assert token == self._reading, "a read of the log that was not requested"
        self._reading = 0
        if not self._is_responsible():
            return
        lookup = PackLookup(records)
        entries: list[IngestEntry] = []
        try:
            for staged in list(islice(self._wanted(), PACKS_MAX)):
                if staged.index not in lookup or not self._has_room():
                    break
                raw = lookup.pack(staged.index, staged.entry, staged.pack)
                entries.append(IngestEntry(staged.stream, raw))
                self._in_flight[staged.key] = len(raw)
        except Malformed as wrong:
            self.effects.append(
                Report("damaged: a committed pack cannot be read from the log", "", {"reason": str(wrong)})
            )
            self.effects.append(RecordDamaged(staged.index))
        if entries:
            self.effects.append(PacksReplayed(tuple(entries)))
            self.replay_next()
