"""Supplied messages that are not yet confirmed to be agreed, and which nodes call them agreed.

Any node can supply a chain of messages that fits; only what others agreed on may be executed. Decides when a supplied
message is confirmed: a master whose election was proven calls it agreed, or marks one that it leads to; or two
serializers call it agreed, or the only one there is. A node that supplies a message says that it is agreed, and with it
everything before it. Refuses to know how messages are fetched.

    from A   5 6 7 8            A calls 8 agreed
    from B         8 9 10       B calls 10 agreed, so A and B confirm everything up to 8
    from A            10 11     A and B confirm everything up to 10

So suppliers take turns, and each begins with the last message of the one before it: nothing else is sent twice.

If two suppliers differ, one of them lies. The later one takes the place of the earlier from there on; a quorum that
agrees confirms in the end.

Bounds: `BATCHES_MAX` supplies. More is not kept, and fetched again.
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
"""At most 15 serializers are in a set, and each may have to confirm."""


VOUCHERS = 2
"""Serializers of one set that are believed together: one that lies finds no second that says the same."""


class SuppliedMessage(Frozen, frozen=True):
    """A supplied message whose payloads, if there are any, are those that its body refers to."""

    body: Body
    raw: bytes
    hash: bytes
    payloads: tuple[bytes, ...]

    @property
    def bare(self) -> bool:
        """The body refers to payloads that were not supplied with it."""
        return not self.payloads and bool(self.body.data_entries)

    @property
    def size_bytes(self) -> int:
        return len(self.raw) + sum(map(len, self.payloads))


def read_supplied(bench: ConsensusContext, node: int, supplied: Supplied) -> SuppliedMessage | None:
    """Decode a supplied message; return None, with a report, if it cannot be what it is said to be."""
    try:
        body = decode_body(supplied.body)
    except Malformed as wrong:
        bench.report("malformed supply", node, reason=str(wrong))
        return None
    given = bool(supplied.payloads) or not bench.log.copies
    if given and not payloads_match(body, supplied.payloads):
        bench.report("supply does not fit", node, index=body.index)
        return None
    return SuppliedMessage(body, supplied.body, chain_hash(body.previous, supplied.body), supplied.payloads)


class UnconfirmedSupplies:
    def __init__(self, bench: ConsensusContext, election: Election) -> None:
        self._bench = bench
        self._election = election
        self._entries: dict[int, SuppliedMessage] = {}
        """By index, from the message behind the agreed prefix on, without gaps; each continues the one before it."""
        self._size_bytes = 0
        self._confirmed_to: dict[int, int] = {}
        """The last message of these that each serializer calls agreed."""
        self._marked: tuple[int, bytes] = (0, b"")
        """The last message that a proven master called agreed and that is not here: index and hash."""
        self._reach: dict[int, int] = {}
        """How far each supplier knew messages to be agreed, by what it said last."""

    def may_vouch(self, node: int) -> bool:
        """Whether it matters what this node calls agreed."""
        bench = self._bench
        return node == self._election.proven[1] or node in bench.quorum.voters or node in bench.teachers.voters

    def wanted(self, node: int) -> int:
        """The index from which on this node is to supply: it confirms what others supplied, and goes on from there."""
        self._forget()
        following = self._bench.log.agreed + 1
        for index, entry in self._entries.items():
            if entry.bare:
                return index
        last = max(self._entries, default=following)
        return max(following, min(last, self._reach.get(node, last)))

    def has_confirmed(self, node: int) -> bool:
        """Whether the node has called everything agreed that is here: another one is to be asked then."""
        self._forget()
        return bool(self._entries) and self._confirmed_to.get(node, 0) >= max(self._entries)

    def add(self, node: int, index: int, agreed: int, messages: tuple[Supplied, ...]) -> bool:
        """The node calls these messages agreed; it knows of more, up to `agreed`. Says whether that was news."""
        self._forget()
        before = (self._size_bytes, self._confirmed_to.get(node, 0))
        vouches = self.may_vouch(node)
        if vouches:
            self._reach[node] = agreed
        for offset, supplied in enumerate(messages):
            if index + offset > self._bench.log.agreed and not self._add(node, index + offset, supplied, vouches):
                break
        return before != (self._size_bytes, self._confirmed_to.get(node, 0))

    def _add(self, node: int, index: int, supplied: Supplied, vouches: bool) -> bool:
        """Whether the node's messages behind this one may be looked at."""
        message, before = read_supplied(self._bench, node, supplied), self._hash_at(index - 1)
        if message is None or message.body.index != index or before is None:
            return False
        if message.body.previous != before:
            if vouches and index > self._bench.log.agreed + 1:
                self._truncate(index - 1)  # somebody lies about the message before: let others supply it again
            self._bench.report("supply does not fit", node, index=index)
            return False
        known = self._entries.get(index)
        if known is not None and known.hash != message.hash:
            if not vouches:
                return False
            self._bench.report("suppliers differ", node, index=index)
            self._truncate(index)
            known = None
        if known is None or (known.bare and not message.bare):
            if known is None and self._is_full():
                return False
            self._put(index, message)
        if vouches:
            self._confirmed_to[node] = max(index, self._confirmed_to.get(node, 0))
        return True

    def first(self) -> SuppliedMessage | None:
        """The message behind the agreed prefix, confirmed or not."""
        self._forget()
        return self._entries.get(self._bench.log.agreed + 1)

    def confirmed(self) -> SuppliedMessage | None:
        """The message behind the agreed prefix, if it is confirmed that it is agreed."""
        first = self.first()
        if first is None:
            return None
        index = self._bench.log.agreed + 1
        nodes = [node for node, last in self._confirmed_to.items() if last >= index]
        named = self._bench.log.expected_next_hash() == first.hash
        # The mark says nothing about messages behind it: once we have the marked message, it confirms nothing more.
        marked = index <= self._marked[0] and self._hash_at(self._marked[0]) == self._marked[1]
        return first if named or marked or self.confirms(nodes) else None

    def mark(self, index: int, digest: bytes) -> None:
        """A proven master calls this message agreed: any chain that leads to it is confirmed."""
        self._marked = (index, digest)

    def confirms(self, nodes: Collection[int]) -> bool:
        """Whether it is believed if these nodes call a message agreed."""
        if self._election.proven[1] in nodes:
            return True
        for electorate in self._bench.electorates:
            # A quorum of a larger set may never come together again: the set that we know may have been replaced by
            # a smaller one since, and enough of its former members may be gone for good (config, liveness seed 12).
            vouching = sum(node in nodes for node in electorate.voters)
            if vouching >= VOUCHERS or electorate.reached(nodes):
                return True
        return False

    def _hash_at(self, index: int) -> bytes | None:
        log = self._bench.log
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
        settings = self._bench.settings
        many = len(self._entries) >= BATCHES_MAX * settings.supply_messages_max
        return many or self._size_bytes >= BATCHES_MAX * settings.supply_bytes_max

    def _truncate(self, index: int) -> None:
        """Forget the messages from this one on."""
        for later in [one for one in self._entries if one >= index]:
            self._size_bytes -= self._entries.pop(later).size_bytes
        self._confirmed_to = {node: min(last, index - 1) for node, last in self._confirmed_to.items()}

    def _forget(self) -> None:
        """Forget what is agreed here by now, and all of it if something else was agreed."""
        log = self._bench.log
        while self._entries and (index := next(iter(self._entries))) <= log.agreed:
            entry = self._entries.pop(index)
            self._size_bytes -= entry.size_bytes
            if index == log.agreed and entry.hash != log.agreed_hash:
                self._truncate(index)
