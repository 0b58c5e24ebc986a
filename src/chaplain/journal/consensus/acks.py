"""Counts acknowledgements and votes, and says when a quorum has spoken.

Decides what counts. Refuses to know how the messages came or what follows.

A node may lose its disk after it spoke and come back as a later life that remembers nothing. If anybody who is counted
knows of a later life of a node than the one that spoke, that node is not counted: the ones it is counted with might
have told the later life that nothing had happened. The argument is in docs/protocol/journal-order.md.

Invariants: a node counts once, and only if it is one of those who vote; only its life that nobody counted knows to be
over counts. Who votes is fixed when the counting begins.
"""

from __future__ import annotations

from collections.abc import Collection

from chaplain.journal.messages.consensus import Lives, ProposalAck
from chaplain.journal.model.log_entry import LogEntry
from chaplain.journal.model.quorum import Quorum


class AckTally:
    """Who has spoken for one thing."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._voters = quorum.voters
        self._spoken: dict[int, tuple[int, Lives]] = {}

    def add(self, node: int, life: int, lives: Lives) -> None:
        if node not in self._voters:
            return
        known = self._spoken.get(node)
        if known is None or known[0] <= life:
            self._spoken[node] = (life, lives)

    def __contains__(self, node: int) -> bool:
        return node in self._spoken

    def counted(self, lives: Lives) -> list[int]:
        """Those that count, given the lives that we know of ourselves."""
        latest = dict(lives)
        for _, known in self._spoken.values():
            for node, life in known.items():
                if life > latest.get(node, 0):
                    latest[node] = life
        return [node for node, (life, _) in self._spoken.items() if life >= latest.get(node, 0)]

    def reached(self, lives: Lives) -> bool:
        return self._quorum.reached(self.counted(lives))


class InFlight:
    """The one message that is proposed and not yet agreed."""

    def __init__(self, regime: int, index: int, digest: bytes, quorum: Quorum) -> None:
        self.regime = regime
        self.index = index
        self.hash = digest
        self.tally = AckTally(quorum)

    def acknowledged(self, node: int, message: ProposalAck) -> None:
        """Take an acknowledgement, if it is one of this very proposal under this very regime."""
        if (message.regime, message.index, message.hash) == (self.regime, self.index, self.hash):
            self.tally.add(node, message.life, message.lives)


class PreReplication:
    """A message on its way to the nodes that hold data; index-only serializers are not shown it before enough have it.

    Whoever acknowledges has it on disk, with all payloads. A node counts once, and only for this very proposal.
    """

    def __init__(self, now_ns: int, message: LogEntry, holders: Collection[int], copies: int) -> None:
        self.since_ns = now_ns
        self.message = message
        self._holders = tuple(holders)
        self._copies = copies
        self._have: set[int] = set()

    def acknowledged(self, node: int, message: ProposalAck) -> None:
        ours = self.message
        same = (message.regime, message.index, message.hash) == (ours.ballot, ours.index, ours.hash)
        if same and node in self._holders:
            self._have.add(node)

    @property
    def enough(self) -> bool:
        return len(self._have) >= self._copies

    @property
    def lacking(self) -> list[int]:
        """Who is to be told, or to be told again."""
        return [node for node in self._holders if node not in self._have]
