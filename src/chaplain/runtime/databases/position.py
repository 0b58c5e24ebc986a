"""The position of a database in its stream, for every engine."""

from __future__ import annotations

import msgspec

from chaplain.executor.fingerprint import RowTally


class Position(msgspec.Struct, frozen=True):
    index: int
    requests: int
    """Number of requests of message `index` that are applied."""
    whole: bool
    """True if all requests of message `index` are applied."""
    tallies: dict[str, RowTally]
    fingerprint: bytes

    @property
    def applied(self) -> int:
        """The last message that is completely applied."""
        return self.index if self.whole else self.index - 1

    def done(self, index: int) -> int:
        """Number of applied requests of a message that is not completely applied."""
        return self.requests if index == self.index else 0
