"""One session with one node, as the client sees it: its sequence, its pings, and how long it has been silent.

Knows nothing of calls. Commands are numbered from 2, because the greeting was 1, and wrap.
"""

from __future__ import annotations

from collections import deque

from chaplain.client.protocol.events import Settings
from chaplain.link.events import Say
from chaplain.wire import command
from chaplain.wire.command import SEQUENCE_MODULUS, Alive, DecenAck, Ping


class ClientSession:
    def __init__(self, instance: bytes, endpoint: str, now_ns: int, settings: Settings) -> None:
        self.instance = instance
        self.endpoint = endpoint
        self._settings = settings
        self._sequence = 1
        self._heard_ns = now_ns
        self._pings: deque[tuple[int, int | None]] = deque()
        """PINGs not yet answered, oldest first: when each left, and for which call."""

    def alive(self, content: bytes) -> Say:
        return Say(self.instance, command.encode(Alive(self._next(), content)))

    def ping(self, now_ns: int, call: int | None = None) -> Say:
        self._pings.append((now_ns, call))
        return Say(self.instance, command.encode(Ping(self._next())), urgent=True)

    def acknowledge(self) -> Say:
        return Say(self.instance, command.encode(DecenAck(self._next())), urgent=True)

    def heard(self, now_ns: int) -> None:
        self._heard_ns = now_ns

    def answered(self, now_ns: int) -> tuple[int | None, int] | None:
        """The node answered its oldest PING: for which call, and after how long."""
        if not self._pings:
            return None
        sent_ns, call = self._pings.popleft()
        return call, now_ns - sent_ns

    def forget_pings(self) -> None:
        """Something from the node was lost, perhaps an answer: those to come would be matched to the wrong PING."""
        self._pings.clear()

    def wants_ping(self, now_ns: int) -> bool:
        return not self._pings and now_ns >= self._heard_ns + self._settings.ping_after_ns

    def is_silent(self, now_ns: int) -> bool:
        return bool(self._pings) and now_ns >= self._silent_at_ns()

    def next_ns(self) -> int:
        return self._silent_at_ns() if self._pings else self._heard_ns + self._settings.ping_after_ns

    def _silent_at_ns(self) -> int:
        """Never sooner after it was heard, whoever sent the PING: a node counts on that (decision 0144)."""
        asked_ns = max(self._heard_ns + self._settings.ping_after_ns, self._pings[0][0])
        return asked_ns + self._settings.answer_within_ns

    def _next(self) -> int:
        self._sequence = (self._sequence + 1) % SEQUENCE_MODULUS
        return self._sequence
