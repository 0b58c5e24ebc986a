"""How many files and connections this process may have open, how many sessions that is enough for, and what is done
when none is left: what was to be read is read later.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from chaplain.link.settings import SESSIONS_MAX

Wanted = TypeVar("Wanted")
Found = TypeVar("Found")

NONE_LEFT = (errno.EMFILE, errno.ENFILE)
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


class NoDescriptors(Exception):
    """Neither this process nor the system has one left to give. Nothing was done, and it may be done again."""


def reading(read: Callable[[Wanted], Found]) -> Callable[[Wanted], Found]:
    """The same, for one who only reads: what it cannot open now is no damage, and no reason to stop."""

    def attempt(wanted: Wanted) -> Found:
        try:
            return read(wanted)
        except OSError as error:
            raise (NoDescriptors(str(error)) if error.errno in NONE_LEFT else error) from error

    return attempt
