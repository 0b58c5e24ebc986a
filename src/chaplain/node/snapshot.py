"""A cached view of the node as encoded bytes.

Clients may request the view as often as they like, so its cost must not depend on the number of requests. A snapshot is
computed on demand and reused for `FRESH_NS`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

FRESH_NS = 20_000_000
"""How long a snapshot is reused, unless its version has changed."""


class Snapshot:
    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        self._made_ns = -FRESH_NS
        self._version: object = None
        self._octets = b""

    def get(self, now_ns: int, version: object) -> bytes:
        """The view as JSON. A snapshot of another `version` is never reused, even if it is recent."""
        if version != self._version or now_ns - self._made_ns >= FRESH_NS:
            self._octets = msgspec.json.encode(self._make())
            self._made_ns, self._version = now_ns, version
        return self._octets
