"""Signatures of packs and of configuration, and secrets wrapped for the configuration stream.

Decides whether a signature holds; refuses to know what follows. Checking packs is the costly part of taking a request,
so it is a value in (`PackCheck`) and a value out (`holds`), which a host may compute anywhere, in any thread.

Ed25519 proves to anybody who wrote a pack. HMAC-SHA256 is cheaper, but every node could have made it: it proves nothing
to third parties. Its secret is in the configuration stream, wrapped with a key that the founding configuration names,
so that every executor unwraps the same or none can.

Invariants: `holds` depends on its argument alone; a wrapped secret opens only for the identity it was wrapped for.
"""

from __future__ import annotations

import hmac
from enum import IntEnum
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages.write_request import REQUEST_LABEL, check_pack, signed_octets
from chaplain.link.auth.identity import KEY_BYTES, SIGNATURE_BYTES, Identity, verify
from chaplain.segment.pack import PACK_HEAD_BYTES, stated_digest, with_signature

CONFIG_LABEL = b"chaplain configuration 2"
SECRET_BYTES = 32
HMAC_BYTES = 32
WRAP_NONCE_BYTES = 12
WRAPPED_BYTES = WRAP_NONCE_BYTES + SECRET_BYTES + 16
WRAPPING_ID_BYTES = 8
_WRAPPING_LABEL = b"chaplain wrapping 1\0"


class SignatureType(IntEnum):
    """Numbers of journal.txt's field, ours to give. Zero, no signature, is never accepted."""

    ED25519 = 1
    HMAC_SHA256 = 2


SLOT_BYTES = {SignatureType.ED25519: SIGNATURE_BYTES, SignatureType.HMAC_SHA256: HMAC_BYTES}
"""How long a signature of each type is: encode a pack with so many zeros, then sign it."""


class PackCheck(Frozen, frozen=True):
    """One pack to be checked: is it whole, and did the holder of the key sign it for this stream of this cluster?"""

    signature_type: int
    key: bytes
    """The public key, or the secret of an HMAC."""
    cluster: str
    stream: str
    raw: bytes | memoryview


class ConfigCheck(Frozen, frozen=True):
    """One configuration request to be checked: did the holder of the key sign this message?"""

    key: bytes
    message: bytes
    signature: bytes


def holds(check: PackCheck | ConfigCheck) -> bool:
    if isinstance(check, ConfigCheck):
        return verify(check.key, CONFIG_LABEL, check.message, check.signature)
    try:
        head = check_pack(check.raw)
    except Malformed:
        return False
    if head.signature_type != check.signature_type:
        return False
    message = signed_octets(check.cluster, check.stream, stated_digest(check.raw))
    signature = bytes(check.raw[PACK_HEAD_BYTES : PACK_HEAD_BYTES + head.signature_bytes])
    return _signature_holds(check.signature_type, check.key, message, signature)


def _signature_holds(signature_type: int, key: bytes, message: bytes, signature: bytes) -> bool:
    if signature_type == SignatureType.ED25519:
        return verify(key, REQUEST_LABEL, message, signature)
    if signature_type == SignatureType.HMAC_SHA256:
        return hmac.compare_digest(_mac(key, message), signature)
    return False


def _mac(secret: bytes, message: bytes) -> bytes:
    return hmac.digest(secret, b"%b\0%b" % (REQUEST_LABEL, message), "sha256")


def sign_pack(raw: bytes, cluster: str, stream: str, identity: Identity) -> bytes:
    """The pack with its slot filled by Ed25519."""
    return with_signature(raw, identity.sign(REQUEST_LABEL, signed_octets(cluster, stream, stated_digest(raw))))


def seal_pack(raw: bytes, cluster: str, stream: str, secret: bytes) -> bytes:
    """The pack with its slot filled by HMAC-SHA256."""
    return with_signature(raw, _mac(secret, signed_octets(cluster, stream, stated_digest(raw))))


class Wrapping:
    """Keeps HMAC secrets in the configuration stream from those who may read it but are no nodes."""

    def __init__(self, key: bytes, cluster: str) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a wrapping key has {KEY_BYTES} octets, not {len(key)}")
        self._cipher = AESGCM(key)
        self._cluster = cluster.encode()
        self.id = wrapping_id(key)

    def wrap(self, secret: bytes, public_key: bytes, nonce: bytes) -> bytes:
        """The nonce must never have been used before: draw it."""
        if len(secret) != SECRET_BYTES or len(nonce) != WRAP_NONCE_BYTES:
            raise ValueError(f"a secret has {SECRET_BYTES} octets and its nonce {WRAP_NONCE_BYTES}")
        return nonce + self._cipher.encrypt(nonce, secret, self._for(public_key))

    def unwrap(self, wrapped: bytes, public_key: bytes) -> bytes | None:
        if len(wrapped) != WRAPPED_BYTES:
            return None
        nonce, sealed = wrapped[:WRAP_NONCE_BYTES], wrapped[WRAP_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, sealed, self._for(public_key))
        except InvalidTag:
            return None

    def _for(self, public_key: bytes) -> bytes:
        return b"%b%b\0%b" % (_WRAPPING_LABEL, self._cluster, public_key)


def wrapping_id(key: bytes) -> bytes:
    """Names a wrapping key without giving it away."""
    return sha256(_WRAPPING_LABEL + key).digest()[:WRAPPING_ID_BYTES]
