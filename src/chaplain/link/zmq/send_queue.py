"""The queue of a channel, for messages that ZeroMQ does not accept yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import zmq

from chaplain.link.zmq.fragments import carried_bytes, cut

OUTBOX_BYTES_MAX = 64 * 1024 * 1024
"""A channel whose queue exceeds this is disconnected. The core's budget is lower; this is the last bound."""


class Outbox:
    """Messages in order, and the number of frame octets that they carry."""

    __slots__ = ("_messages", "size")

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self.size = 0

    def put(self, frame: bytes) -> None:
        self._messages.extend(cut(frame))
        self.size += len(frame)

    @property
    def empty(self) -> bool:
        return not self._messages

    def flush(self, send: Callable[[bytes], None]) -> int:
        """Send until ZeroMQ returns "again". Returns the number of octets sent."""
        before = self.size
        try:
            while self._messages:
                send(self._messages[0])
                self.size -= carried_bytes(self._messages.popleft())
        except zmq.Again:
            pass
        return before - self.size
