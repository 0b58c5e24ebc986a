"""Proof that an identity is compromised: two different requests that it signed for one request id.

Decides what a proof contains and whether it holds. The node that returns it is not trusted: only the signatures count.
Every node could have computed an HMAC, so a proof with two HMACs proves nothing outside the cluster.
"""

from __future__ import annotations

import msgspec

from chaplain.client.types.results import ResultRecord
from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages.client import ProofIs
from chaplain.journal.messages.signing import PackCheck, SignatureType, holds
from chaplain.journal.messages.write_request import read_heading, request_digest

PACKS = 2
"""Packs in a proof."""


class SignedRequest(ResultRecord, frozen=True):
    """One of the two conflicting requests: a signed pack, verbatim."""

    stream: str
    client_id: int
    first_id: int
    requests: int
    digest: str
    pack: bytes

    @property
    def end_id(self) -> int:
        """The first id after the pack."""
        return self.first_id + self.requests


class EquivocationProof(ResultRecord, frozen=True):
    """Two requests that one key signed for the same request id."""

    cluster: str
    key: bytes
    requests: tuple[SignedRequest, ...]

    @property
    def holds(self) -> bool:
        """True if the key signed both requests, they share an id, and their contents differ. Trusts no node."""
        if len(self.requests) != PACKS:
            return False
        first, second = self.requests
        signed = all(
            holds(PackCheck(SignatureType.ED25519, self.key, self.cluster, one.stream, one.pack))
            for one in self.requests
        )
        ids = range(max(first.first_id, second.first_id), min(first.end_id, second.end_id))
        return signed and bool(ids) and first.client_id == second.client_id and first.digest != second.digest


class _ProofAnswer(Frozen, frozen=True, array_like=True):
    answer: tuple[str, bytes, str, int, str]
    packs: bytes


_proof_answers = msgspec.msgpack.Decoder(_ProofAnswer)


def pack_proof(message: ProofIs, packs: bytes) -> bytes:
    """Encode a node's answer for the caller."""
    answer = (message.cluster, message.key, message.first_stream, message.first_bytes, message.second_stream)
    return msgspec.msgpack.encode(_ProofAnswer(answer, packs))


def read_proof(encoded: bytes) -> EquivocationProof:
    """Decode a proof. Raises `Malformed` if the node did not return two packs."""
    found = _proof_answers.decode(encoded)
    cluster, key, first_stream, first_bytes, second_stream = found.answer
    if not 0 <= first_bytes <= len(found.packs):
        raise Malformed("proof: not two packs")
    first = _request(cluster, first_stream, found.packs[:first_bytes])
    return EquivocationProof(cluster, key, (first, _request(cluster, second_stream, found.packs[first_bytes:])))


def _request(cluster: str, stream: str, pack: bytes) -> SignedRequest:
    heading = read_heading(pack)
    digest = request_digest(cluster, stream, heading.digest)
    return SignedRequest(stream, heading.client_id, heading.first_id, heading.requests, digest.hex(), pack)
