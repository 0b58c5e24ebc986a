"""Whether looking around again can find anything: who should leave or join, and whether enough are here.

Both depend on the work set, on what the others say of themselves beside how far they are, and on time, but on nothing
that comes with every entry. So they are asked when one of these has changed, and else a few times a second.

Invariant: what is not calm is looked at; calm lasts only while the state is WRK and no change is due or on its way.
"""

from __future__ import annotations

from chaplain.sequence.context import SequenceContext
from chaplain.sequence.messages.peer import SequenceState

_LOOK_NS = 100 * 10**6
"""Silences are seconds: that much later they are noticed just as well."""


class IdleCheck:
    def __init__(self, bench: SequenceContext) -> None:
        self._bench = bench
        self._log = bench.log
        self._members = bench.log.members
        self._changes = 0
        self._until_ns = 0

    def lasts(self) -> bool:
        bench = self._bench
        log = bench.log
        return (
            bench.now_ns < self._until_ns
            and bench.company.changes == self._changes
            and log is self._log
            and log.members is self._members
            and bench.state is SequenceState.WRK
            and not log.changing
        )

    def begin(self) -> None:
        """All was looked at just now, and nothing was found to do."""
        bench = self._bench
        self._log, self._members, self._changes = bench.log, bench.log.members, bench.company.changes
        self._until_ns = bench.now_ns + _LOOK_NS

    def end(self) -> None:
        self._until_ns = 0
