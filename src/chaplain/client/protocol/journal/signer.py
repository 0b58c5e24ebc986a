"""Signing of packs."""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.journal.messages.signing import SignatureType, seal_pack, sign_pack
from chaplain.link.auth.identity import Identity


class PackSigner(Frozen, frozen=True):
    """Signs packs with one identity for one cluster. `repr` shows no secret."""

    identity: Identity
    cluster: str
    secret: bytes = b""
    """The HMAC secret; without one, packs are signed with Ed25519."""

    def __repr__(self) -> str:
        return f"Signer({self.identity!r}, {self.cluster!r})"

    @property
    def type(self) -> SignatureType:
        return SignatureType.HMAC_SHA256 if self.secret else SignatureType.ED25519

    def sign(self, raw: bytes, stream: str) -> bytes:
        """Return the pack with its signature filled in."""
        if self.secret:
            return seal_pack(raw, self.cluster, stream, self.secret)
        return sign_pack(raw, self.cluster, stream, self.identity)
