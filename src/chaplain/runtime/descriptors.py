"""How many files and connections this process may have open, and how many sessions that is enough for."""

from __future__ import annotations

import resource
from contextlib import suppress

from chaplain.link.settings import SESSIONS_MAX

OWN = 256
"""What a node needs beside its peers: the log, databases, wake-ups of its threads."""
SESSIONS_MIN = 16


def take_all() -> None:
    """Ask for as many as the system lets this process have: the usual 1,024 are soon used up by clients."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # a system that allows less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def sessions_for(strangers: int) -> int:
    """Nodes and clients may have so many sessions each: half of what strangers and our own files leave."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return SESSIONS_MAX
    return max(SESSIONS_MIN, min(SESSIONS_MAX, (descriptors - strangers - OWN) // 2))
