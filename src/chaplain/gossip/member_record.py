"""The member record, called a *card* in docs/protocol/gossip.md: a member's statement about itself, signed by its key.

    identifier 4 | key 32 | incarnation 8 | major 1 | minor 1 | uri string | signature 64

Any node may forward a card. The identifier is the first four octets of SHA-256 of the key, so that a card proves its
own identifier. A card cannot prove that it is the newest. The incarnation serves for that, and only the owner can raise
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from chaplain.core import Frozen
from chaplain.link.auth.identity import KEY_BYTES, SIGNATURE_BYTES, identifier_of
from chaplain.wire.primitives import ByteReader, put_number, put_string

INCARNATION_MAX = (1 << 64) - 1
VERSION = (1, 0)
"""Major and minor version of the gossip protocol.
Nodes with the same major version interoperate; see docs/protocol/gossip.md."""

_LABEL = b"gossip card"

Verify: TypeAlias = Callable[[bytes, bytes, bytes, bytes], bool]
"""Checks (key, label, message, signature): `link.auth.identity.verify`, or a cheap substitute in simulations."""


class GossipSigner(Protocol):
    """The part of this node's identity that gossip needs."""

    @property
    def identifier(self) -> int: ...

    @property
    def key(self) -> bytes: ...

    def sign(self, label: bytes, message: bytes, /) -> bytes: ...


class MemberRecord(Frozen, frozen=True):
    identifier: int
    key: bytes
    incarnation: int
    version: tuple[int, int]
    uri: str
    signature: bytes


def make(signer: GossipSigner, uri: str, incarnation: int) -> MemberRecord:
    assert 0 < incarnation <= INCARNATION_MAX
    unsigned = MemberRecord(signer.identifier, signer.key, incarnation, VERSION, uri, b"")
    signature = signer.sign(_LABEL, _fields(unsigned))
    return MemberRecord(signer.identifier, signer.key, incarnation, VERSION, uri, signature)


def is_genuine(card: MemberRecord, check: Verify) -> bool:
    """Whether the key owns both the identifier and the signature."""
    return (
        card.identifier != 0
        and card.identifier == identifier_of(card.key)
        and check(card.key, _LABEL, _fields(card), card.signature)
    )


def encode(card: MemberRecord) -> bytes:
    return _fields(card) + card.signature


def take(cursor: ByteReader) -> MemberRecord:
    """Decode one card from the cursor; raises `Malformed`. Does not check whether it is genuine."""
    return MemberRecord(
        identifier=cursor.number(4, "card identifier"),
        key=cursor.take(KEY_BYTES, "card key"),
        incarnation=cursor.number(8, "card incarnation"),
        version=(cursor.number(1, "card major"), cursor.number(1, "card minor")),
        uri=cursor.string("card uri"),
        signature=cursor.take(SIGNATURE_BYTES, "card signature"),
    )


def _fields(card: MemberRecord) -> bytes:
    return b"".join(
        (
            put_number(card.identifier, 4),
            card.key,
            put_number(card.incarnation, 8),
            bytes(card.version),
            put_string(card.uri),
        )
    )
