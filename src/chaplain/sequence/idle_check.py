"""Caches the result of the membership checks: which member should leave or join, and whether there is a quorum.

The checks depend on the work set, on the peers' states and wishes, and on time, but not on individual entries. So they
run again only when one of these has changed, and otherwise ten times a second.

Invariant: the cached result is valid only in state WRK, while no change of the work set is due or undecided.
"""

from __future__ import annotations

from chaplain.sequence.context import SequenceContext
from chaplain.sequence.messages.peer import SequenceState

_LOOK_NS = 100 * 10**6
"""How long a result is valid. Silence is measured in seconds, so this delay does not matter."""


class IdleCheck:
    def __init__(self, context: SequenceContext) -> None:
        self._context = context
        self._log = context.log
        self._members = context.log.members
        self._changes = 0
        self._until_ns = 0

    def is_current(self) -> bool:
        """True if nothing relevant has changed since `start`."""
        context = self._context
        log = context.log
        return (
            context.now_ns < self._until_ns
            and context.peers.changes == self._changes
            and log is self._log
            and log.members is self._members
            and context.state is SequenceState.WRK
            and not log.changing
        )

    def start(self) -> None:
        """Record that the checks just ran and found nothing to do."""
        context = self._context
        self._log, self._members, self._changes = context.log, context.log.members, context.peers.changes
        self._until_ns = context.now_ns + _LOOK_NS

    def reset(self) -> None:
        """Invalidate the result: the checks run again."""
        self._until_ns = 0
