"""The two sides of one connection, and what each has under way. The network moves frames; this only holds them."""

from __future__ import annotations

from collections import deque

from chaplain.core import Channel
from simulator.world.machine import Host


class End:
    """One side of a connection, and what that side has said."""

    __slots__ = ("channel", "host", "life", "open", "other", "probing", "queue", "scheduled_ns", "under_way", "wire")

    def __init__(self, host: Host, channel: Channel) -> None:
        self.host = host
        self.life = host.life
        self.channel = channel
        self.open = False
        self.other = self
        self.probing = False
        self.queue: deque[bytes] = deque()
        """Waiting at the host: not flushed."""
        self.wire: deque[bytes] = deque()
        """Flushed, waiting for the way to be open."""
        self.under_way = 0
        self.scheduled_ns = 0
        """When the last frame will arrive: the next may not overtake it."""


def join(dialler: End, target: End) -> None:
    """Make the two sides of one connection."""
    dialler.other, target.other = target, dialler
