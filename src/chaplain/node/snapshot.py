"""A view of the node as ready bytes: made when somebody asks, and then given to everybody who asks soon after.

A client may ask as often as it likes, so the cost of an answer must not depend on how often it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

FRESH_NS = 20_000_000
"""A snapshot is given again for this long, unless the version that it is of has changed."""


class Snapshot:
    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        self._made_ns = -FRESH_NS
        self._version: object = None
        self._octets = b""

    def get(self, now_ns: int, version: object) -> bytes:
        """The view as JSON. `version` names what it must not lag behind, however young it is."""
        if version != self._version or now_ns - self._made_ns >= FRESH_NS:
            self._octets = msgspec.json.encode(self._make())
            self._made_ns, self._version = now_ns, version
        return self._octets
