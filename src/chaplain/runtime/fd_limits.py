"""The limit on file descriptors: raising it, deriving the number of sessions from it, and surviving its exhaustion.

A read that finds no free descriptor raises `NoDescriptors`; the worker pool retries such a read later.
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
"""Descriptors reserved for the node itself: log segments, databases, event descriptors of its threads."""
SESSIONS_MIN = 16
"""A node allows this many sessions even if the limit on descriptors is smaller."""


def raise_fd_limit() -> None:
    """Raise the soft limit to the hard limit: clients soon use up the usual soft limit of 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems refuse the hard limit that they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def sessions_for(strangers: int) -> int:
    """Return how many sessions nodes may have, and how many clients may have.

    Each group gets half of the descriptors that remain after `OWN` and `strangers`, the number of connections that may
    be open before they authenticate.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return SESSIONS_MAX
    return max(SESSIONS_MIN, min(SESSIONS_MAX, (descriptors - strangers - OWN) // 2))


class NoDescriptors(Exception):
    """The process or the system has no free file descriptor. The call had no effect and can be retried."""


def retry_when_exhausted(read: Callable[[Wanted], Found]) -> Callable[[Wanted], Found]:
    """Wrap a function that only reads, so that it raises `NoDescriptors` when no descriptor is free.

    Any other `OSError` means damage and stops the node; a lack of descriptors must not.
    """

    def attempt(wanted: Wanted) -> Found:
        try:
            return read(wanted)
        except OSError as error:
            raise (NoDescriptors(str(error)) if error.errno in NONE_LEFT else error) from error

    return attempt
