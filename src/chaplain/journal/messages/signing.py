"""Signatures of packs and of configuration requests, and the encryption of HMAC secrets.

Decides whether a signature is valid. Refuses to know what follows from that. Verifying packs is the most expensive part
of accepting a request. It is therefore a pure function from a value (`PackCheck`) to a boolean (`holds`), which a host
may run in any thread.

An Ed25519 signature proves to third parties who wrote a pack. HMAC-SHA256 is cheaper, but every node has the secret and
could have made the code, so it proves nothing to third parties. The configuration stream contains the HMAC secret,
encrypted with a wrapping key that the cluster's initial configuration names. Either all executors can decrypt it or
none can.

Invariants: the result of `holds` depends on its argument alone. A wrapped secret can be decrypted only for the identity
for which it was wrapped.
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
    """Values of journal.txt's signature type field, which leaves them to the implementation. Type 0, no signature, is
    never accepted.
    """

    ED25519 = 1
    HMAC_SHA256 = 2


SLOT_BYTES = {SignatureType.ED25519: SIGNATURE_BYTES, SignatureType.HMAC_SHA256: HMAC_BYTES}
"""Length of a signature of each type. A writer encodes a pack with this many zeros, then signs it."""


class PackCheck(Frozen, frozen=True):
    """A pack to verify: its tables and digest, and that the holder of the key signed it for this stream of this
    cluster.
    """

    signature_type: int
    key: bytes
    """The public key, or the HMAC secret."""
    cluster: str
    stream: str
    raw: bytes | memoryview


class ConfigCheck(Frozen, frozen=True):
    """A configuration request to verify: that the holder of the key signed this message."""

    key: bytes
    message: bytes
    signature: bytes


def holds(check: PackCheck | ConfigCheck) -> bool:
    """True if the pack or the configuration request is intact and its signature is valid."""
    if isinstance(check, ConfigCheck):
        return verify(check.key, CONFIG_LABEL, check.message, check.signature)
    try:
        head = check_pack(check.raw)
    except Malformed:
        return False
    if head.signature_type != check.signature_type:
        return False
    message = signed_octets(check.cluster, check.stream, head.digest)
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
    """The pack with an Ed25519 signature in its signature slot."""
    return with_signature(raw, identity.sign(REQUEST_LABEL, signed_octets(cluster, stream, stated_digest(raw))))


def seal_pack(raw: bytes, cluster: str, stream: str, secret: bytes) -> bytes:
    """The pack with an HMAC-SHA256 code in its signature slot."""
    return with_signature(raw, _mac(secret, signed_octets(cluster, stream, stated_digest(raw))))


class Wrapping:
    """Encrypts HMAC secrets, so that clients that may read the configuration stream cannot read the secrets."""

    def __init__(self, key: bytes, cluster: str) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a wrapping key has {KEY_BYTES} octets, not {len(key)}")
        self._cipher = AESGCM(key)
        self._cluster = cluster.encode()
        self.id = wrapping_id(key)

    def wrap(self, secret: bytes, public_key: bytes, nonce: bytes) -> bytes:
        """Encrypt a secret. Draw the nonce at random: it must never have been used before."""
        if len(secret) != SECRET_BYTES or len(nonce) != WRAP_NONCE_BYTES:
            raise ValueError(f"a secret has {SECRET_BYTES} octets and its nonce {WRAP_NONCE_BYTES}")
        return nonce + self._cipher.encrypt(nonce, secret, self._for(public_key))

    def unwrap(self, wrapped: bytes, public_key: bytes) -> bytes | None:
        """Decrypt a secret; None if it was wrapped with another key, or for another identity."""
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
    """A name for a wrapping key that does not reveal the key."""
    return sha256(_WRAPPING_LABEL + key).digest()[:WRAPPING_ID_BYTES]
