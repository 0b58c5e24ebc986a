"""Signed votes, and the check that a quorum of serializers elected a master.

A voter signs (cluster, regime, candidate) with its node key. A master shows the votes that elected it. A node follows a
master only if a majority of the serializers that the node knows signed for it. Without this check any member could name
a higher regime, and other nodes would store its messages and treat them as agreed (docs/decisions/elections.md).

Decides whether a vote's signature is valid, and whether a proof is sufficient. Does not know how votes are collected
(`election`) and what follows from a proof (`core`).

Invariants: a vote counts for one cluster, one regime and one candidate. Each voter counts once, and only if it is in
the set. If one of the checked signatures is invalid, the whole proof is rejected, so a forged proof costs one
verification.
"""

from __future__ import annotations

from collections.abc import Callable

from chaplain.core import Frozen
from chaplain.journal.messages.consensus import SignedVotes
from chaplain.journal.model.quorum import Quorum
from chaplain.link.auth.identity import Identity, verify
from chaplain.wire.primitives import put_number

VOTE_LABEL = b"chaplain vote 1"


class Candidacy(Frozen, frozen=True):
    """The cluster, regime and candidate that a vote is for."""

    genesis: bytes
    """Identifies the cluster."""
    regime: int
    candidate: int

    @property
    def signed_octets(self) -> bytes:
        return self.genesis + put_number(self.regime, 4) + put_number(self.candidate, 1)


def sign_vote(identity: Identity, candidacy: Candidacy) -> bytes:
    return identity.sign(VOTE_LABEL, candidacy.signed_octets)


def is_vote_valid(key: bytes, candidacy: Candidacy, signature: bytes) -> bool:
    """True if the owner of the key signed a vote for this candidacy."""
    return verify(key, VOTE_LABEL, candidacy.signed_octets, signature)


def proves_election(quorum: Quorum, candidacy: Candidacy, votes: SignedVotes, key_of: Callable[[int], bytes]) -> bool:
    """True if a quorum signed for this candidacy. The voters are counted before any signature is checked, because a
    check takes 54 us.
    """
    voters = [voter for voter in quorum.voters if voter in votes]
    if not quorum.reached(voters):
        return False
    return all(is_vote_valid(key_of(voter), candidacy, votes[voter]) for voter in voters)
