"""One session with one node: the numbering of its commands, its PINGs, and how long the node has been silent.

Knows nothing of calls. Commands are numbered from 2, because the greeting was 1, and the numbers wrap.
"""

from __future__ import annotations

from collections import deque

from chaplain.client.protocol.events import Settings
from chaplain.link.events import Say
from chaplain.wire import command
from chaplain.wire.command import SEQUENCE_MODULUS, DecenAck, Ping


class ClientSession:
    """One session with one node."""

    def __init__(self, instance: bytes, endpoint: str, now_ns: int, settings: Settings) -> None:
        self.instance = instance
        self.endpoint = endpoint
        self._settings = settings
        self._sequence = 1
        self._heard_ns = now_ns
        self._pings: deque[tuple[int, int | None]] = deque()
        """PINGs without an answer, oldest first: when each was sent, and for which call."""
        self.due_ns = now_ns + settings.ping_after_ns
        """When `needs_ping` or `is_silent` may become true. It is kept up to date: the host asks after every turn."""

    def alive(self, content: bytes) -> Say:
        """An ALIVE command with this content."""
        return Say(self.instance, command.assemble(command.ALIVE, self._next(), content))

    def ping(self, now_ns: int, call: int | None = None) -> Say:
        """A PING, for a call that measures the round trip or for none."""
        self._pings.append((now_ns, call))
        self._set_due()
        return Say(self.instance, command.encode(Ping(self._next())), urgent=True)

    def acknowledge(self) -> Say:
        """The answer to a PING of the node."""
        return Say(self.instance, command.encode(DecenAck(self._next())), urgent=True)

    def mark_heard(self, now_ns: int) -> None:
        """The node sent something."""
        self._heard_ns = now_ns
        self._set_due()

    def take_ping_answer(self, now_ns: int) -> tuple[int | None, int] | None:
        """Match a DECENACK to the oldest PING. Returns its call and the round trip in ns."""
        if not self._pings:
            return None
        sent_ns, call = self._pings.popleft()
        self._set_due()
        return call, now_ns - sent_ns

    def forget_pings(self) -> None:
        """A command of the node was lost, perhaps an answer: later answers would match the wrong PING."""
        self._pings.clear()
        self._set_due()

    def needs_ping(self, now_ns: int) -> bool:
        """True if the node was silent for `ping_after_ns` and no PING is pending."""
        return not self._pings and now_ns >= self._heard_ns + self._settings.ping_after_ns

    def is_silent(self, now_ns: int) -> bool:
        """True if a PING has been unanswered for too long."""
        return bool(self._pings) and now_ns >= self._silent_at_ns()

    def _set_due(self) -> None:
        self.due_ns = self._silent_at_ns() if self._pings else self._heard_ns + self._settings.ping_after_ns

    def _silent_at_ns(self) -> int:
        """When the node counts as silent.

        That is never earlier than `ping_after_ns` + `answer_within_ns` after it was last heard, also if a PING was sent
        early to measure the round trip. Nodes rely on this minimum to refuse late requests
        (docs/decisions/client-timeouts.md).
        """
        asked_ns = max(self._heard_ns + self._settings.ping_after_ns, self._pings[0][0])
        return asked_ns + self._settings.answer_within_ns

    def _next(self) -> int:
        self._sequence = (self._sequence + 1) % SEQUENCE_MODULUS
        return self._sequence
