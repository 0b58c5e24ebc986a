"""What a writer of segments is told when it is made."""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.segment.layout import RECORDS_START, SEGMENT_BYTES
from chaplain.segment.record import ROLL_BYTES


class LogSettings(Frozen, frozen=True):
    log: str
    log_kind: int
    folder: str = ""
    """Put before every file name, with its slash."""
    segment_bytes: int = SEGMENT_BYTES
    free_max: int = 4
    """How many dropped files are kept for recycling; further ones are removed."""

    @property
    def record_bytes_max(self) -> int:
        return self.segment_bytes - RECORDS_START - ROLL_BYTES
