"""Catch-up: fetches agreed messages that this node lacks from its peers.

Decides which peer to ask for which messages, and which messages of its answer to append. Does not know elections or
proposals. `vote_recovery` uses it, too, and describes the states of a node that lost its vote.

Invariants: a fetched message is appended only if it continues this node's agreed chain, its payloads match their
digests, and either other nodes confirm that it is agreed (`unconfirmed`) or this log contains its hash in a later
message. At most one fetch is under way.
"""

from __future__ import annotations

from collections.abc import Collection

from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.consensus.election import Election
from chaplain.journal.consensus.unconfirmed import SuppliedMessage, UnconfirmedSupplies, read_supplied
from chaplain.journal.messages.consensus import Fetch, Supply
from chaplain.journal.model.log_entry import LogEntry

_HOLDER_PROBABILITY = 0.75
"""With index-only serializers: the probability of asking a data holder instead of any peer."""


class Fetcher:
    """Fetches messages from one peer at a time."""

    def __init__(self, context: ConsensusContext, election: Election) -> None:
        self._context = context
        self._supplies = UnconfirmedSupplies(context, election)
        self._asked: int = 0
        """The peer that was asked last."""
        self._silent: set[int] = set()
        """Connected peers that did not answer the last fetch in time. They are asked again when the others have nothing
        new. Otherwise a member that never answers would delay every few fetches by `retry_ns`."""
        self._last_useful: int = 0
        """The peer whose last answer contained messages that were appended; 0 if it contained none."""
        self._probe_ns = 0
        """Until when no further probe is sent."""
        self.due_ns: int | None = None
        """When to give up on the peer that was asked; None if no fetch is under way."""
        self._awaits_answer = False
        """The peer that was asked has not answered yet."""
        self.include_tail = False
        """Fetch the tail, too: the last message of the peer that is not known to be agreed."""

    def fetch(self, now_ns: int, preferred: int = 0) -> None:
        """Ask a peer for the messages after the agreed prefix, unless an answer is still expected."""
        context = self._context
        if self.due_ns is not None and now_ns < self.due_ns:
            return
        if self._awaits_answer:
            self._silent.add(self._asked)
        self._silent.intersection_update(context.connected)
        next_index, ranges = context.log.agreed + 1, context.peer_log_ranges
        able = [peer for peer in context.connected if ranges.get(peer, (1, 0))[0] <= next_index]
        able = [peer for peer in able if self._supplies.may_confirm(peer) or peer in context.data_holders]
        able = [peer for peer in able if not self._supplies.has_confirmed_all(peer)] or able
        able = [peer for peer in able if peer not in self._silent] or able
        peers = [peer for peer in able if peer != self._asked] or able
        if not peers or not context.has_space:
            self.due_ns = None
            return
        first_time = self.due_ns is None
        if first_time and self._last_useful in able:
            # Its last answer was useful, so it probably has the next messages, with payloads.
            chosen = self._last_useful
        elif first_time and preferred in able:
            chosen = preferred
        else:
            chosen = context.chance.choice(self._prefer_useful(peers))
        self._asked, self._awaits_answer = chosen, True
        self.due_ns = now_ns + context.settings.retry_ns
        tail = self.include_tail or context.log.expected_next_hash() is not None
        context.barrier.send_now(chosen, Fetch(self._supplies.next_index_for(chosen), tail))

    def probe(self, now_ns: int) -> None:
        """Ask one serializer whether it has more messages, at most once in `retry_ns`. The caller has only the
        statement of an untrusted node that there are more; if it is false, the probe costs little.
        """
        context = self._context
        if self.due_ns is not None or now_ns < self._probe_ns:
            return
        peers = [peer for peer in context.connected if self._supplies.may_confirm(peer)]
        if peers and context.has_space:
            self._probe_ns = now_ns + context.settings.retry_ns
            context.barrier.send_now(context.chance.choice(peers), Fetch(context.log.agreed + 1, False))

    def _prefer_useful(self, peers: list[int]) -> list[int]:
        """With index-only serializers, return those that can send what is missing. If the next message only has to be
        confirmed, these are the serializers. Otherwise they are mostly the data holders: only they have the payloads.
        """
        holders = [peer for peer in peers if peer in self._context.data_holders]
        if holders and self._supplies.awaits_confirmation():
            # A data holder could only repeat the message. Asking it first takes long if a message fills an answer
            # (seed 31 of `indexonly`, liveness).
            return [peer for peer in peers if self._supplies.may_confirm(peer)] or peers
        return holders if holders and self._context.chance.random() < _HOLDER_PROBABILITY else peers

    def stop(self) -> None:
        """Forget the fetch under way. A late answer is still used."""
        self.due_ns, self._awaits_answer = None, False

    def is_confirmed_by(self, nodes: Collection[int]) -> bool:
        return self._supplies.is_confirmed_by(nodes)

    def note_mark(self, index: int, digest: bytes) -> None:
        """A proven master reports this message as agreed, and this node lacks it."""
        self._supplies.note_mark(index, digest)

    def on_supply(self, now_ns: int, node: int, supply: Supply, floor: int = 0) -> None:
        """Append the messages of an answer that continue the agreed prefix and are confirmed. `floor` is the lowest
        ballot under which they may be stored; `vote_recovery` sets it.
        """
        agreed = supply.messages[:-1] if supply.tail_ballot else supply.messages
        taken: list[LogEntry] = []
        news = self._supplies.add(node, supply.index, supply.agreed, agreed)
        while (first := self._supplies.next_confirmed()) is not None and self._append_confirmed(first, floor, taken):
            pass
        if supply.tail_ballot:
            self._take_tail(node, supply, floor, taken)
        self._silent.discard(node)
        if node == self._asked:
            self._awaits_answer = False
            if not (taken or news):
                self._silent.clear()
            self._last_useful = node if taken else 0
            # A peer without useful messages is not asked again at once.
            self.due_ns = None if taken or news else now_ns + self._context.settings.retry_ns
        if taken:
            self._context.emit_agreed(now_ns, taken)
            self._context.barrier.write((), self._context.log_synced_proof())

    def hold_unconfirmed(self, index: int, ballot: int) -> None:
        """Store the message of this index as the tail: only one serializer reports it as agreed."""
        log, first = self._context.log, self._supplies.first()
        if first is None or index != log.agreed + 1 or (index, ballot) < log.last():
            return
        message = self._log_entry(first, ballot, allow_without_payloads=log.index_only)
        if message is not None and message.ballot == ballot and (log.tail is None or log.tail.ballot < ballot):
            self._context.barrier.write(log.store(message), self._context.log_synced_proof())

    def _append_confirmed(self, supplied: SuppliedMessage, floor: int, taken: list[LogEntry]) -> bool:
        """Append a confirmed message. Return False if its payloads are missing."""
        message = self._log_entry(supplied, floor)
        if message is None:
            return False
        self._context.barrier.write(self._context.log.append_agreed(message))
        taken.append(message)
        taken += self._context.log.apply_own_copies()
        return True

    def _take_tail(self, node: int, supply: Supply, floor: int, taken: list[LogEntry]) -> None:
        """Use the tail of an answer. Its sender does not know whether the tail is agreed. If a later message of this
        log contains its hash, it is agreed, and is appended; otherwise it may be stored as this node's tail.
        """
        log = self._context.log
        supplied = read_supplied(self._context, node, supply.messages[-1])
        if supplied is None:
            return
        message = self._log_entry(supplied, supply.tail_ballot, allow_without_payloads=log.index_only)
        if message is None:
            return
        if message.hash == log.expected_next_hash():
            self._append_confirmed(supplied, floor, taken)
        elif (
            self.include_tail
            and (message.index, message.ballot) > log.last()
            # Only voters: with index-only serializers, a data holder may have a tail that no serializer has ever seen.
            and node in self._context.latest_known_quorum.voters
        ):
            self._context.barrier.write(log.store(message), self._context.log_synced_proof())

    def _log_entry(
        self, supplied: SuppliedMessage, floor: int, *, allow_without_payloads: bool = False
    ) -> LogEntry | None:
        """Return the log entry for a supplied message, or None if the message is not the next one here or its payloads
        are missing. With `allow_without_payloads` the payloads may be missing.

        The ballot of the entry is the regime in its body, under which it was first proposed; `floor` if that is higher;
        and never lower than the ballot under which this node already stores the same message, because it may have
        acknowledged it under that ballot.
        """
        log, body = self._context.log, supplied.body
        if (body.index, body.previous) != (log.agreed + 1, log.agreed_hash):
            return None
        ballot, tail = max(floor, body.regime), log.tail
        if tail is not None and (tail.index, tail.hash) == (body.index, supplied.hash):
            ballot = max(ballot, tail.ballot)
        absent = supplied.without_payloads and not allow_without_payloads
        payloads = self._context.gather_payloads(body.data_entries, 0) if absent else supplied.payloads
        return None if payloads is None else LogEntry(body, supplied.raw, supplied.hash, ballot, payloads)
