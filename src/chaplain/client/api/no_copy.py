"""A mixin that forbids pickling and copying.

A client and the objects used through it exist once. Garbage collection of a copy would close the connection of the
original. A pickled client would have to connect elsewhere, with a secret that does not travel with it. The error helps
users who put a client into a closure that Spark or a process pool sends to another process.
"""

from __future__ import annotations

from typing import NoReturn

from chaplain.errors import Misused


class NotPicklable:
    """Raises `Misused` when it is pickled or copied."""

    def __reduce__(self) -> NoReturn:
        raise Misused(
            "a client, and what is used through it, is neither pickled nor copied:"
            " give the other process the cluster's directory, and connect there"
        )
