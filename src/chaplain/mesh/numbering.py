"""The 16-bit sequence numbers of both directions of a session, and how to count losses from them.

The link delivers in order and refuses replays, so an unexpected number means loss. A loss on the way is seen twice: as
`Missed` from the link, and as a jump here. A command dropped before it was sealed is seen only here. So the mesh
reports `Missed` at once and subtracts it from the jump that follows.

Invariants:
- HELLO is number 1 of its direction, the first command after it 2; numbers wrap after 65535;
- a command that is dropped before it is sent keeps its number, so that the receiver sees the gap. Only in a run of more
  than `RUN_MAX` drops is the number used again, because a larger gap would look like a step back;
- each lost command is counted once.
"""

from __future__ import annotations

from chaplain.wire.command import SEQUENCE_MODULUS

_MASK = SEQUENCE_MODULUS - 1
AHEAD_MAX = 0xC000
"""A number that is further ahead than this is treated as an old one."""
RUN_MAX = 0x8000
"""The longest run of dropped commands that keep their numbers."""
GREETING = 1


class Numbering:
    __slots__ = ("_dropped_last", "_dropped_run", "_reported_by_link", "heard", "sent")

    def __init__(self, heard: int) -> None:
        self.restart(heard)

    def restart(self, heard: int) -> None:
        """A greeting was exchanged; `heard` is the number of the peer's greeting."""
        self.sent = GREETING
        self.heard = heard
        self._reported_by_link = 0
        self._dropped_last = GREETING
        self._dropped_run = 0

    def next_number(self) -> int:
        """Take the next number for an outgoing command."""
        self.sent = sent = (self.sent + 1) & _MASK
        return sent

    def on_dropped(self, sequence: int) -> None:
        """The outgoing command with this number was not sent."""
        follows = sequence == (self._dropped_last + 1) & _MASK
        self._dropped_run = self._dropped_run + 1 if follows else 1
        self._dropped_last = sequence
        if self._dropped_run > RUN_MAX and sequence == self.sent:
            self.sent = self._dropped_last = (sequence - 1) & _MASK

    def on_missed(self, count: int) -> None:
        """The link reported this loss; do not report it again."""
        self._reported_by_link += count

    def accept(self, sequence: int) -> int | None:
        """Return how many commands before this one were lost and not yet reported, or None if its number is not new."""
        # Serial number arithmetic: the distance modulo 2^16 from the next expected number.
        ahead = (sequence - self.heard - 1) & _MASK
        if not ahead:
            self._reported_by_link = 0
            self.heard = sequence
            return 0
        if ahead >= AHEAD_MAX:
            return None
        unreported = max(0, ahead - self._reported_by_link)
        self._reported_by_link = 0
        self.heard = sequence
        return unreported
