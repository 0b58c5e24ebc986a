"""Proof that an identity is compromised: two requests that it signed for one id. Anybody can check it.

Decides what a proof shows and whether it holds. Refuses to believe the node that gives it: only signatures count. An
HMAC could have been made by every node, so a proof made of two of them holds for nobody but the cluster.
"""

from __future__ import annotations

import msgspec

from chaplain.client.types.results import Record
from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages.client import ProofIs
from chaplain.journal.messages.signing import PackCheck, SignatureType, holds
from chaplain.journal.messages.write_request import read_heading, request_digest

HOW_MANY = 2


class SignedRequest(Record, frozen=True):
    """One of the two: a pack of requests, verbatim."""

    stream: str
    client_id: int
    first_id: int
    requests: int
    digest: str
    pack: bytes

    @property
    def end_id(self) -> int:
        return self.first_id + self.requests


class EquivocationProof(Record, frozen=True):
    """What the cluster keeps against an identity that signed twice for one id."""

    cluster: str
    key: bytes
    requests: tuple[SignedRequest, ...]

    @property
    def holds(self) -> bool:
        """Whether it proves anything to somebody who trusts no node: both are signed by the key, for one id."""
        if len(self.requests) != HOW_MANY:
            return False
        first, second = self.requests
        signed = all(
            holds(PackCheck(SignatureType.ED25519, self.key, self.cluster, one.stream, one.pack))
            for one in self.requests
        )
        ids = range(max(first.first_id, second.first_id), min(first.end_id, second.end_id))
        return signed and bool(ids) and first.client_id == second.client_id and first.digest != second.digest


class _Carried(Frozen, frozen=True, array_like=True):
    answer: tuple[str, bytes, str, int, str]
    packs: bytes


_carried = msgspec.msgpack.Decoder(_Carried)


def pack_proof(message: ProofIs, packs: bytes) -> bytes:
    """What a node said, on its way to whoever asked."""
    answer = (message.cluster, message.key, message.first_stream, message.first_bytes, message.second_stream)
    return msgspec.msgpack.encode(_Carried(answer, packs))


def read_proof(carried: bytes) -> EquivocationProof:
    """Raises `Malformed` if the node did not give two packs."""
    found = _carried.decode(carried)
    cluster, key, first_stream, first_bytes, second_stream = found.answer
    if not 0 <= first_bytes <= len(found.packs):
        raise Malformed("proof: not two packs")
    first = _request(cluster, first_stream, found.packs[:first_bytes])
    return EquivocationProof(cluster, key, (first, _request(cluster, second_stream, found.packs[first_bytes:])))


def _request(cluster: str, stream: str, pack: bytes) -> SignedRequest:
    heading = read_heading(pack)
    digest = request_digest(cluster, stream, heading.digest)
    return SignedRequest(stream, heading.client_id, heading.first_id, heading.requests, digest.hex(), pack)
