"""A session: two seals, two counters, and what the other side has confirmed.

Decides which sealed frames are accepted. Knows nothing of greetings or dials beyond the line it speaks through.

The first frame of each direction is the *nod*: an empty command, made by the link itself, which tells the other side
that its greeting was completed here too.

Invariants: each counter seals once, going up by one; an accepted counter is higher than all accepted before;
0 <= confirmed <= sent.
"""

from __future__ import annotations

from chaplain.core import Channel
from chaplain.link.call import Line
from chaplain.link.events import Peer
from chaplain.link.refusal import Refusal
from chaplain.link.seal import HEADER, Seal

NOD = b""
_NOD_COUNTER = 1


class Session:
    """With one instance of a peer, from one completed greeting."""

    __slots__ = (
        "_closing",
        "_opening",
        "confirmed",
        "heard",
        "inward",
        "line",
        "octet",
        "overhead_bytes",
        "peer",
        "sent",
        "turn",
    )

    def __init__(self, peer: Peer, turn: int, line: Line, inward: Channel, seals: tuple[Seal, Seal]) -> None:
        self.peer = peer
        self.turn = turn
        """The turn of the peer's offer that made this session."""
        self.line = line
        """Where we speak."""
        self.inward = inward
        """Where the peer speaks."""
        self._closing, self._opening = seals
        self.octet = self._opening.octet
        self.overhead_bytes = self._closing.overhead_bytes
        self.sent = 0
        self.confirmed = 0
        self.heard = 0

    def close(self, command: bytes) -> bytes:
        """Seal the next command."""
        self.sent += 1
        return self._closing.close(self.sent, self.heard, command)

    def open(self, frame: bytes) -> tuple[bytes, int]:
        """The command (or the nod), and how many before it are missing; raises `Refusal`."""
        if len(frame) < self.overhead_bytes or frame[0] != self.octet:
            raise Refusal("not sealed")
        _, counter, confirmed = HEADER.unpack_from(frame)
        if counter <= self.heard:
            raise Refusal("replayed")
        command = self._opening.open(frame)
        if command is None:
            raise Refusal("broken seal")
        if confirmed > self.sent:
            raise Refusal("confirms what was never said")
        missed = counter - 1 - max(self.heard, _NOD_COUNTER) if counter > _NOD_COUNTER else 0
        self.heard = counter
        self.confirmed = max(self.confirmed, confirmed)
        return command, missed

    @property
    def unconfirmed(self) -> int:
        assert 0 <= self.confirmed <= self.sent
        assert self.sent >= _NOD_COUNTER
        return self.sent - max(self.confirmed, _NOD_COUNTER)
