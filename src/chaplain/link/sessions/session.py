"""A session: two seals, two counters, the commands that wait to be sealed, and what the peer has confirmed.

It decides which sealed frames are accepted. It does not know greetings and dials, only the channel on which it sends.

Counters count commands, not frames, so that a lost frame reveals how many commands were lost with it.

The first frame of each direction is the *confirmation* (the "nod" of docs/connection.md): an empty command of the link
itself. It tells the peer that its greeting was completed on this side, too.

Invariants: every command has the next counter, and a frame has that of its last command, so that no counter is sealed
twice; the counters of accepted frames increase strictly; 0 <= confirmed <= sent.
"""

from __future__ import annotations

from collections import deque

from chaplain.core import Channel
from chaplain.errors import Malformed
from chaplain.link.errors import GreetingRefused
from chaplain.link.events import Peer
from chaplain.link.sessions import batching
from chaplain.link.sessions.aead import BUNDLED, HEADER, Seal
from chaplain.link.sessions.dialing import OutgoingChannel

CONFIRM = b""
"""The empty command that confirms a greeting."""
_CONFIRM_COUNTER = 1
SEND_TIME_GRANULARITY_NS = 100_000_000
"""Commands sent to a client within this interval share the send time of the first."""
SEND_TIMES_MAX = 64
"""Send times remembered until confirmed. Beyond it the oldest is forgotten, which is older than any query needs."""


class LinkSession:
    """A session with one instance of a peer, from one completed handshake."""

    __slots__ = (
        "_closing",
        "_opening",
        "_send_times",
        "confirmed",
        "confirmed_sent_ns",
        "heard",
        "incoming",
        "octet",
        "outgoing",
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
        outgoing: OutgoingChannel,
        incoming: Channel,
        seals: tuple[Seal, Seal],
        *,
        offered_ns: int,
    ) -> None:
        self.peer = peer
        self.turn = turn
        """The turn of the peer's offer that created this session."""
        self.outgoing = outgoing
        """The channel on which we send."""
        self.incoming = incoming
        """The channel on which the peer sends."""
        self._closing, self._opening = seals
        self.octet = self._opening.octet
        self.overhead_bytes = self._closing.overhead_bytes
        self.sent = 0
        """Counter of the last command that we sealed."""
        self.confirmed = 0
        """Counter of the last command of ours that the peer has confirmed."""
        self.heard = 0
        """Counter of the last command that we accepted from the peer."""
        self.pending: list[bytes] = []
        """Commands that wait for the end of the wake-up, to share a frame."""
        self.pending_bytes = 0
        """Their size if each had its own frame: an upper bound for the shared frame."""
        self.confirmed_sent_ns = offered_ns
        """The peer received something from us after this time: the time at which we made the offer that the peer
        accepted, or sent the last command that it has confirmed. Maintained for clients only.
        """
        self._send_times: deque[tuple[int, int]] = deque(maxlen=SEND_TIMES_MAX)
        """Counter and time of sent commands that are not confirmed yet."""

    def record_sent(self, now_ns: int) -> None:
        """Record the send time of the last sealed command."""
        if not self._send_times or now_ns - self._send_times[-1][1] >= SEND_TIME_GRANULARITY_NS:
            self._send_times.append((self.sent, now_ns))

    def close_pending(self) -> bytes:
        """Seal all pending commands in one frame."""
        commands, self.pending, self.pending_bytes = self.pending, [], 0
        count = len(commands)
        self.sent += count
        if count == 1:
            return self._closing.close(self.sent, self.heard, commands[0])
        return self._closing.close(self.sent, self.heard, batching.pack(commands), BUNDLED)

    def close(self, command: bytes) -> bytes:
        """Seal one command, or the confirmation."""
        assert not self.pending, "pending commands are sealed first"
        self.sent += 1
        return self._closing.close(self.sent, self.heard, command)

    def open(self, frame: bytes) -> tuple[tuple[bytes, ...], int]:
        """Return the commands (or the confirmation), and how many before them were lost. Raises `GreetingRefused`."""
        if len(frame) < self.overhead_bytes or frame[0] & ~BUNDLED != self.octet:
            raise GreetingRefused("not sealed")
        _, counter, confirmed = HEADER.unpack_from(frame)
        # Cheap checks come before decryption. A counter that is not new is a replay.
        if counter <= self.heard:
            raise GreetingRefused("replayed")
        opened = self._opening.open(frame)
        if opened is None:
            raise GreetingRefused("broken seal")
        # The seal is genuine from here on, so this is a defect of the peer and not an attack from outside.
        if confirmed > self.sent:
            raise GreetingRefused("confirms what was never said")
        commands = self._unpack(opened, counter) if frame[0] & BUNDLED else (opened,)
        # Hot path: every frame passes here, so this code avoids calls of `max`.
        missed = counter - len(commands) - (self.heard or _CONFIRM_COUNTER)
        self.heard = counter
        self.confirmed = confirmed if confirmed > self.confirmed else self.confirmed
        while self._send_times and self._send_times[0][0] <= confirmed:
            _, self.confirmed_sent_ns = self._send_times.popleft()
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
        assert self.sent >= _CONFIRM_COUNTER
        return self.sent - max(self.confirmed, _CONFIRM_COUNTER) + len(self.pending)
