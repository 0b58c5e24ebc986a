"""The 16-bit numbers on both directions of one session, and what a jump in them means.

The link delivers in order and refuses replays, so a number that is not the next one means loss. A loss on the way is
seen twice, as `Missed` by the link and as a jump here; a command dropped before the seal is seen only here. So `Missed`
is told at once and forgiven from the jump that follows.

Invariants:
- HELLO is number 1 of its direction, the first command after it 2; numbers wrap after 65535;
- a command that is dropped before it is sent keeps its number, so that the receiver sees the gap; only in a run of more
  than `RUN_MAX` drops is the number used again, or the gap would look like a step back;
- each lost command is counted once.
"""

from __future__ import annotations

from chaplain.wire.command import SEQUENCE_MODULUS

_MASK = SEQUENCE_MODULUS - 1
AHEAD_MAX = 0xC000
"""A number further ahead than this is taken for one from the past."""
RUN_MAX = 0x8000
GREETING = 1


class Numbering:
    __slots__ = ("_dropped_last", "_dropped_run", "_forgiven", "heard", "sent")

    def __init__(self, heard: int) -> None:
        self.restart(heard)

    def restart(self, heard: int) -> None:
        """A greeting was exchanged; `heard` is the number on the peer's."""
        self.sent = GREETING
        self.heard = heard
        self._forgiven = 0
        self._dropped_last = GREETING
        self._dropped_run = 0

    def next_number(self) -> int:
        """Take the next number for a command of ours."""
        self.sent = sent = (self.sent + 1) & _MASK
        return sent

    def dropped(self, sequence: int) -> None:
        """Our command of this number was not sent."""
        follows = sequence == (self._dropped_last + 1) & _MASK
        self._dropped_run = self._dropped_run + 1 if follows else 1
        self._dropped_last = sequence
        if self._dropped_run > RUN_MAX and sequence == self.sent:
            self.sent = self._dropped_last = (sequence - 1) & _MASK

    def missed(self, count: int) -> None:
        """The link has told of this loss; do not tell it again."""
        self._forgiven += count

    def accept(self, sequence: int) -> int | None:
        """How many commands were lost before this one and not told yet; None if it is not new."""
        ahead = (sequence - self.heard - 1) & _MASK
        if not ahead:
            self._forgiven = 0
            self.heard = sequence
            return 0
        if ahead >= AHEAD_MAX:
            return None
        untold = max(0, ahead - self._forgiven)
        self._forgiven = 0
        self.heard = sequence
        return untold
