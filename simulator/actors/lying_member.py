"""A malicious member that lies to the serializers of a simulated order, mostly one without a vote.

It receives what every member receives, and sends each node something different: proposals and marks under the regime of
the master or a later one, supplies, tails, vote requests, and proofs of elections that never happened. Some of its
proofs contain votes that it was given, or votes that elected another node. None of this may change what honest nodes
agree on, or keep them from agreeing.

A liar with a vote uses it only for forged proofs and supplies. If it requested votes it would get them, and a lying
master can split the others: no checker could demand otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

from chaplain.journal.consensus.election_proof import Candidacy, sign_vote
from chaplain.journal.consensus.events import PeerUp, Received
from chaplain.journal.messages.cluster import Body, chain_hash, encode_body
from chaplain.journal.messages.consensus import (
    KNOWN_AGREED,
    AgreedMark,
    AskVote,
    Canvass,
    Canvassed,
    ElectionProof,
    Handover,
    MarkHeard,
    OrderMessage,
    Propose,
    SignedVotes,
    Supplied,
    Supply,
    Vote,
    decode,
    encode,
)
from chaplain.link.auth.identity import SIGNATURE_BYTES, Identity
from chaplain.units import MILLISECOND_NS
from simulator.world.machine import Host

if TYPE_CHECKING:
    from simulator.world.world import World

_PAUSE_NS = 600 * MILLISECOND_NS


class Liar:
    def __init__(self, rng: Random, number: int, identity: Identity, genesis: bytes, *, votes: bool) -> None:
        self._rng = rng
        self.number = number
        self.votes = votes
        """True if it is one of the serializers."""
        self._identity = identity
        self._genesis = genesis
        self._given: dict[int, SignedVotes] = {}
        """Votes that it was given, by regime."""
        self._seen: ElectionProof | None = None
        """The last genuine proof of an election."""

    def begin(self, world: World) -> None:
        world.after(self._rng.randrange(_PAUSE_NS), self._lie, world)

    def told(self, node: int, message: bytes) -> None:
        """Receive a node's message."""
        said = decode(message)
        if isinstance(said, Vote) and said.granted:
            self._given.setdefault(said.regime, {})[node] = said.signature
        elif isinstance(said, ElectionProof):
            self._seen = said

    def _lie(self, world: World) -> None:
        world.after(self._rng.randrange(_PAUSE_NS), self._lie, world)
        hosts = [host for host in world.hosts.values() if host.core is not None]
        if not hosts:
            return
        regime = max(_serializer(host).regime for host in hosts)
        regime += self._rng.choice((0, 1, 1, 1, 2, 1000, 1 << 31))
        campaign = self._rng.random() < 0.4 and not self.votes
        for host in hosts:
            world.tell(host, PeerUp(self.number))
            for message in self._campaign(host, regime) if campaign else self._messages(host, regime):
                world.tell(host, Received(self.number, encode(message, self.number)))
        if campaign and self._given.get(regime):
            for host in hosts:
                for message in (ElectionProof(regime, self._given[regime]), *self._rule(host, regime)):
                    world.tell(host, Received(self.number, encode(message, self.number)))

    def _campaign(self, host: Host, regime: int) -> Iterator[OrderMessage]:
        index = _serializer(host).agreed[0] + self._rng.choice((0, 1, 1 << 40))
        yield Canvass(regime, index, KNOWN_AGREED)
        yield AskVote(regime, index, KNOWN_AGREED, self._rng.random() < 0.7)

    def _messages(self, host: Host, regime: int) -> Iterator[OrderMessage]:
        serializer, rng = _serializer(host), self._rng
        index = serializer.agreed[0]
        match rng.randrange(3 if self.votes else 6):
            case 0:
                yield from self._rule(host, regime)
            case 1:
                yield self._proof(host, regime)
                yield from self._rule(host, regime)
            case 2:
                yield from self._supply(host)
            case 3:
                yield MarkHeard(regime, index + 5, index + rng.choice((0, 1, 1 << 40)))
                yield Canvassed(regime, rng.random() < 0.5, regime)
            case 4:
                votes = _serializer(host).context.quorum.voters
                yield Vote(regime, True, regime, 0, dict.fromkeys(votes, 9), rng.randbytes(SIGNATURE_BYTES))
            case _:
                yield Handover(regime, index)

    def _proof(self, host: Host, regime: int) -> ElectionProof:
        """Votes of all serializers: forged, signed by the liar in their names, or those that elected another node."""
        voters = _serializer(host).context.quorum.voters
        own = sign_vote(self._identity, Candidacy(self._genesis, regime, self.number))
        match self._rng.randrange(3):
            case 0:
                return ElectionProof(regime, {voter: self._rng.randbytes(SIGNATURE_BYTES) for voter in voters})
            case 1:
                return ElectionProof(regime, {self.number: own, **dict.fromkeys(voters, own)})
            case _:
                return self._seen or ElectionProof(regime, {self.number: own})

    def _rule(self, host: Host, regime: int) -> Iterator[OrderMessage]:
        """What a master of this regime might send: another message to each node, each called agreed."""
        index, digest = _serializer(host).agreed
        body = self._body(index + 1, regime, digest)
        yield Propose(regime, index + 1, body)
        yield AgreedMark(regime, index + 1, chain_hash(digest, body))

    def _supply(self, host: Host) -> Iterator[OrderMessage]:
        index, digest = _serializer(host).agreed
        regime, messages, first = _serializer(host).regime, [], index + 1
        for _ in range(self._rng.randint(1, 3)):
            index += 1
            body = self._body(index, regime, digest)
            digest = chain_hash(digest, body)
            messages.append(Supplied(body, ()))
        ballot = self._rng.choice((0, 0, regime, 1 << 31))
        yield Supply(first, index, tuple(messages), ballot)

    def _body(self, index: int, regime: int, previous: bytes) -> bytes:
        time_ns = self._rng.randrange(1 << 62)
        return encode_body(Body(regime, index, self.number, time_ns, previous, (), self._rng.random() < 0.2))


def _serializer(host: Host) -> Any:
    core: Any = host.core
    return core.serializer
