"""Counts acknowledgements and votes until a quorum is reached.

Decides which of them count. Does not know how messages arrive or what follows.

A node may lose its disk after it voted or acknowledged, and return as a later incarnation that remembers nothing. The
messages of an incarnation do not count if any counted node, or the counting node itself, knows a later incarnation of
the same node: those nodes may already have told the later incarnation that it promised nothing.
docs/protocol/journal-order.md, "Lost memory", has the argument.

Invariants: a node counts once, and only if it is a voter. The quorum is fixed when the counting begins.
"""

from __future__ import annotations

from collections.abc import Collection

from chaplain.journal.messages.consensus import Lives, ProposalAck
from chaplain.journal.model.log_entry import LogEntry
from chaplain.journal.model.quorum import Quorum


class AckTally:
    """The votes, or acknowledgements, of one candidacy or proposal."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._voters = quorum.voters
        self._acks: dict[int, tuple[int, Lives]] = {}
        """By node: its incarnation, and the incarnations of other nodes that it knew."""

    def add(self, node: int, incarnation: int, incarnations: Lives) -> None:
        """Add a vote or acknowledgement. Of two incarnations of a node, the later one counts."""
        if node not in self._voters:
            return
        known = self._acks.get(node)
        if known is None or known[0] <= incarnation:
            self._acks[node] = (incarnation, incarnations)

    def __contains__(self, node: int) -> bool:
        return node in self._acks

    def counted(self, incarnations: Lives) -> list[int]:
        """The nodes that count. `incarnations` are those that the counting node knows itself."""
        latest = dict(incarnations)
        for _, known in self._acks.values():
            for node, incarnation in known.items():
                if incarnation > latest.get(node, 0):
                    latest[node] = incarnation
        # A node does not count if another node here knows a later incarnation of it.
        return [node for node, (incarnation, _) in self._acks.items() if incarnation >= latest.get(node, 0)]

    def reached(self, incarnations: Lives) -> bool:
        """True if the nodes that count are a quorum: during a change of serializers, a majority of both sets."""
        return self._quorum.reached(self.counted(incarnations))


class ProposalInFlight:
    """The one proposal that is not yet agreed."""

    def __init__(self, regime: int, index: int, digest: bytes, quorum: Quorum) -> None:
        self.regime = regime
        self.index = index
        self.hash = digest
        self.tally = AckTally(quorum)

    def add_ack(self, node: int, message: ProposalAck) -> None:
        """Count an acknowledgement of this proposal under this regime; ignore all others."""
        if (message.regime, message.index, message.hash) == (self.regime, self.index, self.hash):
            self.tally.add(node, message.life, message.lives)


class PreReplication:
    """A message on its way to the data holders, before index-only serializers receive it.

    A data holder acknowledges after the message and its payloads are on its disk. Each data holder counts once, and
    only for this proposal.
    """

    def __init__(self, now_ns: int, message: LogEntry, holders: Collection[int], copies: int) -> None:
        self.since_ns = now_ns
        self.message = message
        self._holders = tuple(holders)
        self._copies = copies
        self._acknowledged: set[int] = set()

    def add_ack(self, node: int, message: ProposalAck) -> None:
        own = self.message
        same = (message.regime, message.index, message.hash) == (own.ballot, own.index, own.hash)
        if same and node in self._holders:
            self._acknowledged.add(node)

    @property
    def is_complete(self) -> bool:
        """True if as many data holders have the message as there must be copies."""
        return len(self._acknowledged) >= self._copies

    @property
    def missing_nodes(self) -> list[int]:
        """Data holders that have not acknowledged the message."""
        return [node for node in self._holders if node not in self._acknowledged]
