"""The ingest messages that every other node is known to have received (journal.txt: the acknowledgement of a
serializer has "their view of the current state of all of the nodes in the cluster that should see the message").

Decides what a node is known to have received. Does not know who is connected, or what is sent to whom.

A node's own acknowledgement replaces what is known of it. The view of another node may only add to that. A view may be
wrong, because its sender may be malicious: it saves a resend or chooses whom to ask first, and nothing depends on it
for long (`replication.STALE_ROUNDS`). Bounds: node ids are octets, and a node has one current journal, so there are at
most 254 x 254 positions.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.journal.messages.cluster import Reference
from chaplain.journal.messages.peer import NodeReached


class ClusterView:
    def __init__(self, node: int) -> None:
        self._node = node
        self._reached: dict[int, dict[int, tuple[int, int]]] = {}
        """By node, then by ingest node: its journal, and the index up to which the node has received all of it."""

    def acknowledged(self, node: int, reached: Iterable[Reference]) -> None:
        """The node itself reports what it has received."""
        self._reached[node] = {one.node: (one.journal, one.index) for one in reached}

    def reported(self, view: Iterable[NodeReached]) -> None:
        """A serializer reports what it knows of other nodes."""
        for one in view:
            if one.node == self._node:
                continue
            known = self._reached.setdefault(one.node, {})
            for reference in one.reached:
                journal, index = known.get(reference.node, (reference.journal, -1))
                if journal == reference.journal and reference.index > index:
                    known[reference.node] = (journal, reference.index)

    def forget(self, node: int) -> None:
        """The node has connected again, perhaps after a restart without its memory."""
        self._reached.pop(node, None)

    def index_of(self, node: int, ingest_node: int, journal: int) -> int:
        """Up to which index the node is known to have received this journal."""
        known, index = self._reached.get(node, {}).get(ingest_node, (journal, 0))
        return index if known == journal else 0

    def has(self, node: int, reference: Reference) -> bool:
        """True if the node is known to have received this message."""
        return self.index_of(node, reference.node, reference.journal) >= reference.index

    def nodes(self) -> tuple[NodeReached, ...]:
        """All that is known, for acknowledgements and for the status page."""
        return tuple(
            NodeReached(node, tuple(Reference(one, *place) for one, place in sorted(known.items())))
            for node, known in sorted(self._reached.items())
            if known
        )
