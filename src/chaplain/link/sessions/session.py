"""A session: two seals, two counters, what waits to be sealed, and what the other side has confirmed.

Decides which sealed frames are accepted. Knows nothing of greetings or dials beyond the line it speaks through.

Commands are counted, not frames, so that a lost frame tells how many commands are gone with it.

The first frame of each direction is the *nod*: an empty command, made by the link itself, which tells the other side
that its greeting was completed here too.

Invariants: every command has the next counter, and a frame that of its last command, so no counter seals twice; every
counter of an accepted frame is higher than all accepted before; 0 <= confirmed <= sent.
"""

from __future__ import annotations

from collections import deque

from chaplain.core import Channel
from chaplain.errors import Malformed
from chaplain.link.errors import GreetingRefused
from chaplain.link.events import Peer
from chaplain.link.sessions import batching
from chaplain.link.sessions.aead import BUNDLED, HEADER, Seal
from chaplain.link.sessions.dialing import SpeakingChannel

NOD = b""
_NOD_COUNTER = 1
MOMENT_NS = 100_000_000
"""What is said to a client within so long counts as said at the beginning of it."""
MOMENTS_MAX = 64
"""Remembered until confirmed; beyond it the oldest is forgotten, which is long past whatever anybody asks of it."""


class LinkSession:
    """With one instance of a peer, from one completed greeting."""

    __slots__ = (
        "_closing",
        "_moments",
        "_opening",
        "confirmed",
        "heard",
        "heard_us_ns",
        "inward",
        "line",
        "octet",
        "overhead_bytes",
        "peer",
        "pending",
        "pending_bytes",
        "sent",
        "turn",
    )

    def __init__(
        self,
        peer: Peer,
        turn: int,
        line: SpeakingChannel,
        inward: Channel,
        seals: tuple[Seal, Seal],
        *,
        offered_ns: int,
    ) -> None:
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
        self.pending: list[bytes] = []
        """Commands that wait for the wake-up's end, to share a frame."""
        self.pending_bytes = 0
        """What they would take if each had its own frame, so at least what they will take."""
        self.heard_us_ns = offered_ns
        """The peer was there after this, and heard us: we made the offer then that it took up, or said the last of what
        it has confirmed. Kept up for clients alone.
        """
        self._moments: deque[tuple[int, int]] = deque(maxlen=MOMENTS_MAX)
        """What we said and is not confirmed, by its counter, and when."""

    def spoke(self, now_ns: int) -> None:
        """The last command sealed leaves now."""
        if not self._moments or now_ns - self._moments[-1][1] >= MOMENT_NS:
            self._moments.append((self.sent, now_ns))

    def close_pending(self) -> bytes:
        """Seal all that waits."""
        commands, self.pending, self.pending_bytes = self.pending, [], 0
        count = len(commands)
        self.sent += count
        if count == 1:
            return self._closing.close(self.sent, self.heard, commands[0])
        return self._closing.close(self.sent, self.heard, batching.pack(commands), BUNDLED)

    def close(self, command: bytes) -> bytes:
        """Seal the next command, or the nod."""
        assert not self.pending, "what was said before must be sealed before"
        self.sent += 1
        return self._closing.close(self.sent, self.heard, command)

    def open(self, frame: bytes) -> tuple[tuple[bytes, ...], int]:
        """The commands (or the nod), and how many before them are missing; raises `GreetingRefused`."""
        if len(frame) < self.overhead_bytes or frame[0] & ~BUNDLED != self.octet:
            raise GreetingRefused("not sealed")
        _, counter, confirmed = HEADER.unpack_from(frame)
        if counter <= self.heard:
            raise GreetingRefused("replayed")
        opened = self._opening.open(frame)
        if opened is None:
            raise GreetingRefused("broken seal")
        if confirmed > self.sent:
            raise GreetingRefused("confirms what was never said")
        commands = self._unpack(opened, counter) if frame[0] & BUNDLED else (opened,)
        # Every frame comes through here, so it does not go through `max`.
        missed = counter - len(commands) - (self.heard or _NOD_COUNTER)
        self.heard = counter
        self.confirmed = confirmed if confirmed > self.confirmed else self.confirmed
        while self._moments and self._moments[0][0] <= confirmed:
            _, self.heard_us_ns = self._moments.popleft()
        return commands, missed if missed > 0 else 0

    def _unpack(self, opened: bytes, counter: int) -> tuple[bytes, ...]:
        try:
            commands = batching.unpack(opened)
        except Malformed as error:
            raise GreetingRefused("malformed bundle") from error
        if counter - len(commands) < self.heard:
            raise GreetingRefused("replayed")
        return commands

    @property
    def unconfirmed(self) -> int:
        assert 0 <= self.confirmed <= self.sent
        assert self.sent >= _NOD_COUNTER
        return self.sent - max(self.confirmed, _NOD_COUNTER) + len(self.pending)
