"""Estimates from the kind and size of a client's request what it costs the whole cluster.

The node that serves a request measures only its own step. But an event, a question, an append to a graph, a
configuration request and a statement make every node work, mostly later. So a request has a cost in units: a small
write costs one unit. The node charges `size_cost` for every request. The layer that decodes the request charges the
additional cost of its kind, and the client service that of large answers. The charges decide only which clients are
light (`node.fair_queue`); the host measures how busy the node really is.
"""

from __future__ import annotations

from chaplain.core import Frozen

REQUEST = 1
SPREAD = 10
"""An event, a question or a configuration request. Measured on three nodes: five to ten times a small write. A tile of
the log's tree and the state of one named consumer take the serving node as long.
"""
APPEND = 20
"""An append to a graph: every node checks its signature and writes it to disk. Measured likewise: 17 times."""
READ = 20
"""A read of the journal, or a page of consumers: a thread reads and unpacks a span of the log. More credit for a read
costs as much as `SPREAD`.
"""
STATEMENT = 2
"""A statement of a pack, which may contain thousands: every node executes each. With 4 units, an honest writer beside a
flood of statements would keep no more of its rate than with this value.
"""
UNIT_BYTES = 4096
"""Octets of a request that cost as much as a request."""


class Charge(Frozen, frozen=True):
    """Effect: a request of the client with this key costs this much in addition to the cost of its size."""

    key: bytes
    units: int


def size_cost(size_bytes: int) -> int:
    """The cost of any request of this size, in units."""
    return REQUEST + size_bytes // UNIT_BYTES
