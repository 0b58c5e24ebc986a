"""Octets that proofs read: manifests, and the first record of a message."""

from __future__ import annotations

from chaplain.errors import Malformed
from chaplain.journal.messages.cluster import decode_body
from chaplain.journal.storage import verdict
from chaplain.link.auth.identity import Identity
from chaplain.segment.record import Kind, Record
from chaplain.verification.batches import split_first
from chaplain.verification.header_scan import ScanStart
from chaplain.verification.keys import AllowedSigners, KnownSigner
from chaplain.verification.manifest import ManifestContent, decode, encode
from chaplain.verification.proof_segments import Point, ProofState, StreamTail

IDENTITY = Identity(b"m" * 32)
STATE = ProofState(Point(7, [b"h" * 32], 1, 5), {"orders": StreamTail(25, [b"c" * 32])}, {1: 26}, all_lanes=True)
SIGNERS = AllowedSigners([KnownSigner(bytes(15), IDENTITY.key, 1, admin=True)], [(1, bytes(15))])
PROVEN = ManifestContent("demo", STATE, ScanStart(0, bytes(16), 8192), 25, SIGNERS)
assert decode(encode(PROVEN, IDENTITY), IDENTITY.key) == PROVEN

SEEDS = {
    "target_manifest": [encode(PROVEN, IDENTITY).encode()],
    "target_first_record": [b"\x04\0\0\0body\x01\0\0\0\0\0\0", bytes(4)],
}


def target_manifest(data: bytes) -> None:
    """Whatever was not signed is refused; what was, says what was signed."""
    try:
        found = decode(data.decode(), IDENTITY.key)
    except (Malformed, UnicodeDecodeError):
        return
    assert found == PROVEN


def target_first_record(data: bytes) -> None:
    try:
        raw, said = split_first(Record(Kind.META, data))
        decode_body(raw)
        verdict.decode(said)
    except Malformed:
        return
