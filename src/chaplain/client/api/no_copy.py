"""What there is once: a connection, and whatever is used through it.

A copy would end the connection of the original when it is collected; a pickled one would have to connect elsewhere,
with a secret that does not travel. Both are refused in words: somebody put a client into a closure that Spark, or a
pool of processes, sends away.
"""

from __future__ import annotations

from typing import NoReturn

from chaplain.errors import Misused


class NotPicklable:
    def __reduce__(self) -> NoReturn:
        raise Misused(
            "a client, and what is used through it, is neither pickled nor copied:"
            " give the other process the cluster's directory, and connect there"
        )
