"""The two ends of a connection, and the frames that each has in flight. The network moves the frames."""

from __future__ import annotations

from collections import deque

from chaplain.core import Channel
from simulator.world.machine import Host


class End:
    """One end of a connection, and the frames that it has sent."""

    __slots__ = ("channel", "host", "open", "other", "probing", "process", "queue", "scheduled_ns", "under_way", "wire")

    def __init__(self, host: Host, channel: Channel) -> None:
        self.host = host
        self.process = host.process
        self.channel = channel
        self.open = False
        self.other = self
        self.probing = False
        self.queue: deque[bytes] = deque()
        """Frames that wait at the host: not flushed."""
        self.wire: deque[bytes] = deque()
        """Flushed frames that wait until the network lets them pass."""
        self.under_way = 0
        self.scheduled_ns = 0
        """When the last frame arrives: the next may not overtake it."""


def join(dialler: End, target: End) -> None:
    """Make these the two ends of one connection."""
    dialler.other, target.other = target, dialler
