"""The settings of a segment writer."""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.segment.layout import RECORDS_START, SEGMENT_BYTES
from chaplain.segment.record import ROLL_BYTES


class LogSettings(Frozen, frozen=True):
    log: str
    log_kind: int
    folder: str = ""
    """The prefix of every file name, including its slash."""
    segment_bytes: int = SEGMENT_BYTES
    free_max: int = 4
    """Released files that are retained for recycling; further ones are deleted."""

    @property
    def record_bytes_max(self) -> int:
        """The largest record that fits in a segment of this size."""
        return self.segment_bytes - RECORDS_START - ROLL_BYTES
