"""Fetched messages that are not yet confirmed as agreed, and the nodes that report them as agreed.

Any node can supply a chain of messages that fits the hashes, but only agreed messages may be executed. Decides when a
supplied message is confirmed. A master with a proven election is enough, if it supplies the message or marks a later
message of its chain. Otherwise two serializers of one set, or the only serializer of a set, must report the message as
agreed. A node that supplies a message reports this message and all earlier ones as agreed. Does not know how messages
are fetched.

    from A   5 6 7 8            A calls 8 agreed
    from B         8 9 10       B calls 10 agreed, so A and B confirm everything up to 8
    from A            10 11     A and B confirm everything up to 10

Suppliers take turns, and each begins with the last message of the one before it. No other message is sent twice.

If two suppliers differ, one of them lies. The messages of the later supplier replace those of the earlier one from
there on. In the end the messages of honest serializers are confirmed.

Bounds: `BATCHES_MAX` supplies. More are not stored, and fetched again.
"""

from __future__ import annotations

from collections.abc import Collection

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.consensus.election import Election
from chaplain.journal.messages.cluster import Body, chain_hash, decode_body, payloads_match
from chaplain.journal.messages.consensus import Supplied

BATCHES_MAX = 16
"""A set contains at most 15 serializers, and each may have to confirm."""


CONFIRMING_SERIALIZERS_MIN = 2
"""Number of serializers of one set that confirm a message together, so that one malicious serializer is not enough."""


class SuppliedMessage(Frozen, frozen=True):
    """A supplied message. Its payloads, if it has any, match the digests in its body."""

    body: Body
    raw: bytes
    hash: bytes
    payloads: tuple[bytes, ...]

    @property
    def without_payloads(self) -> bool:
        """True if the body refers to payloads that were not supplied with it."""
        return not self.payloads and bool(self.body.data_entries)

    @property
    def size_bytes(self) -> int:
        return len(self.raw) + sum(map(len, self.payloads))


def read_supplied(context: ConsensusContext, node: int, supplied: Supplied) -> SuppliedMessage | None:
    """Decode a supplied message. Return None, with a report, if it is malformed or its payloads do not match."""
    try:
        body = decode_body(supplied.body)
    except Malformed as wrong:
        context.report("malformed supply", node, reason=str(wrong))
        return None
    given = bool(supplied.payloads) or not context.log.copies
    if given and not payloads_match(body, supplied.payloads):
        context.report("supply does not fit", node, index=body.index)
        return None
    return SuppliedMessage(body, supplied.body, chain_hash(body.previous, supplied.body), supplied.payloads)


class UnconfirmedSupplies:
    """The messages after the agreed prefix that peers have supplied."""

    def __init__(self, context: ConsensusContext, election: Election) -> None:
        self._context = context
        self._election = election
        self._entries: dict[int, SuppliedMessage] = {}
        """By index, from the message after the agreed prefix on, without gaps. Each continues the one before it."""
        self._size_bytes = 0
        self._confirmed_to: dict[int, int] = {}
        """By serializer: the last of these messages that it calls agreed."""
        self._master_mark: tuple[int, bytes] = (0, b"")
        """Index and hash of the last message that a proven master marked as agreed and that is missing here."""
        self._agreed_at: dict[int, int] = {}
        """By supplier: its agreed index, as it reported last."""

    def may_confirm(self, node: int) -> bool:
        """True if the peer may confirm that a message is agreed: a proven master, or a serializer."""
        context = self._context
        return (
            node == self._election.proven[1]
            or node in context.quorum.voters
            or node in context.latest_known_quorum.voters
        )

    def next_index_for(self, node: int) -> int:
        """The first index to request from this node: the last message that others supplied, so that this node confirms
        it.
        """
        self._drop_agreed()
        following = self._context.log.agreed + 1
        for index, entry in self._entries.items():
            if entry.without_payloads:
                return index
        last = max(self._entries, default=following)
        return max(following, min(last, self._agreed_at.get(node, last)))

    def awaits_confirmation(self) -> bool:
        """True if the message after the agreed prefix is here with its payloads, and only has to be confirmed."""
        first = self.first()
        return first is not None and not first.without_payloads

    def has_confirmed_all(self, node: int) -> bool:
        """True if the node has confirmed every message here. Then another node has to be asked."""
        self._drop_agreed()
        return bool(self._entries) and self._confirmed_to.get(node, 0) >= max(self._entries)

    def add(self, node: int, index: int, agreed: int, messages: tuple[Supplied, ...]) -> bool:
        """Add messages that the node calls agreed. Its own agreed index is `agreed`. Return True if that brought a new
        message or a new confirmation.
        """
        self._drop_agreed()
        before = (self._size_bytes, self._confirmed_to.get(node, 0))
        may_confirm = self.may_confirm(node)
        if may_confirm:
            self._agreed_at[node] = agreed
        for offset, supplied in enumerate(messages):
            if index + offset > self._context.log.agreed and not self._add(node, index + offset, supplied, may_confirm):
                break
        return before != (self._size_bytes, self._confirmed_to.get(node, 0))

    def _add(self, node: int, index: int, supplied: Supplied, may_confirm: bool) -> bool:
        """Add one message. Return False if the messages after it in the same supply must be ignored."""
        message, before = read_supplied(self._context, node, supplied), self._hash_at(index - 1)
        if message is None or message.body.index != index or before is None:
            return False
        if message.body.previous != before:
            if may_confirm and index > self._context.log.agreed + 1:
                self._truncate(index - 1)  # one supplier lies about the message before: fetch it again from others
            self._context.report("supply does not fit", node, index=index)
            return False
        known = self._entries.get(index)
        if known is not None and known.hash != message.hash:
            if not may_confirm:
                return False
            self._context.report("suppliers differ", node, index=index)
            self._truncate(index)
            known = None
        if known is None or (known.without_payloads and not message.without_payloads):
            if known is None and self._is_full():
                return False
            self._put(index, message)
        if may_confirm:
            self._confirmed_to[node] = max(index, self._confirmed_to.get(node, 0))
        return True

    def first(self) -> SuppliedMessage | None:
        """The message after the agreed prefix, confirmed or not."""
        self._drop_agreed()
        return self._entries.get(self._context.log.agreed + 1)

    def next_confirmed(self) -> SuppliedMessage | None:
        """The message after the agreed prefix, if it is confirmed."""
        first = self.first()
        if first is None:
            return None
        index = self._context.log.agreed + 1
        nodes = [node for node, last in self._confirmed_to.items() if last >= index]
        named = self._context.log.expected_next_hash() == first.hash
        # A mark confirms the marked message and those before it, and nothing after it.
        marked = index <= self._master_mark[0] and self._hash_at(self._master_mark[0]) == self._master_mark[1]
        return first if named or marked or self.is_confirmed_by(nodes) else None

    def note_mark(self, index: int, digest: bytes) -> None:
        """A proven master calls this message agreed. This confirms all messages of a chain that ends with it."""
        self._master_mark = (index, digest)

    def is_confirmed_by(self, nodes: Collection[int]) -> bool:
        """True if a message counts as agreed when exactly these nodes call it agreed."""
        if self._election.proven[1] in nodes:
            return True
        for electorate in self._context.electorates:
            # Two serializers are enough, even of a larger set. A smaller set may have replaced the one that this node
            # knows, and too many of its former members may be gone to form a majority ever again (seed 12 of the config
            # workload, liveness).
            confirming = sum(node in nodes for node in electorate.voters)
            if confirming >= CONFIRMING_SERIALIZERS_MIN or electorate.reached(nodes):
                return True
        return False

    def _hash_at(self, index: int) -> bytes | None:
        log = self._context.log
        if index == log.agreed:
            return log.agreed_hash
        entry = self._entries.get(index)
        return None if entry is None else entry.hash

    def _put(self, index: int, message: SuppliedMessage) -> None:
        if index in self._entries:
            self._size_bytes -= self._entries[index].size_bytes
        self._entries[index] = message
        self._size_bytes += message.size_bytes

    def _is_full(self) -> bool:
        settings = self._context.settings
        many = len(self._entries) >= BATCHES_MAX * settings.supply_messages_max
        return many or self._size_bytes >= BATCHES_MAX * settings.supply_bytes_max

    def _truncate(self, index: int) -> None:
        """Drop the messages from this index on."""
        for later in [one for one in self._entries if one >= index]:
            self._size_bytes -= self._entries.pop(later).size_bytes
        self._confirmed_to = {node: min(last, index - 1) for node, last in self._confirmed_to.items()}

    def _drop_agreed(self) -> None:
        """Drop messages that are agreed here by now; drop all if another message was agreed in place of one of them."""
        log = self._context.log
        while self._entries and (index := next(iter(self._entries))) <= log.agreed:
            entry = self._entries.pop(index)
            self._size_bytes -= entry.size_bytes
            if index == log.agreed and entry.hash != log.agreed_hash:
                self._truncate(index)
