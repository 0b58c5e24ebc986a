"""How far a database has come in its stream, whichever kind it is."""

from __future__ import annotations

import msgspec

from chaplain.executor.fingerprint import RowTally


class Position(msgspec.Struct, frozen=True):
    index: int
    requests: int
    """Of message `index` that are done."""
    whole: bool
    """Whether all of them are."""
    tallies: dict[str, RowTally]
    fingerprint: bytes

    @property
    def applied(self) -> int:
        """The last message that is wholly applied."""
        return self.index if self.whole else self.index - 1

    def done(self, index: int) -> int:
        """Requests that are done of a message that is not wholly applied."""
        return self.requests if index == self.index else 0
