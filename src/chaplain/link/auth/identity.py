"""Identities: an Ed25519 key, the identifier derived from it, and the instance of one process run.

This module creates, encodes and checks keys, identifiers and instances. It does not know connections.

Invariants:
- an identifier is always computed from the key, never read from a message;
- every signature covers a label first, so that a signature for one purpose proves nothing for another;
- no `repr` shows a secret.

Text format and byte tables: docs/identity.md.
"""

from __future__ import annotations

import binascii
import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from random import Random

from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import CryptoError

from chaplain.errors import Malformed

KEY_BYTES = 32
SIGNATURE_BYTES = 64
INSTANCE_BYTES = 16
ROUTE_MARK = b"\x01"
"""First octet of every routing id; ZeroMQ reserves ids that begin with zero."""
DIAL_BYTES = 8
"""Random octets at the end of each routing id. Instances are not secret, and a process that knows the whole routing id
of another's connection could occupy it."""
ROUTE_BYTES_MAX = 1 + INSTANCE_BYTES + DIAL_BYTES

NOTE_STARTS = (b"chaplain/", b"cosignature/v1\n")
"""Notes of C2SP begin with their origin or purpose. No label of ours begins like that."""

_FIRST_LINE = "chaplain identity 1"


def identifier_of(key: bytes) -> int:
    """The 32-bit name in parcels: the first four octets of the key's SHA-256."""
    return int.from_bytes(hashlib.sha256(key).digest()[:4], "big")


def new_instance(rng: Random) -> bytes:
    return rng.randbytes(INSTANCE_BYTES)


def route_of(instance: bytes) -> bytes:
    """The prefix of the ZeroMQ routing ids under which this instance connects to others."""
    return ROUTE_MARK + instance


def is_route_of(route: bytes, instance: bytes) -> bool:
    return route.startswith(route_of(instance)) and 1 + INSTANCE_BYTES <= len(route) <= ROUTE_BYTES_MAX


def verify(key: bytes, label: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the owner of the key signed this message for the purpose that the label names."""
    if len(key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        crypto_sign_open(b"%b%b\0%b" % (signature, label, message), key)
    except CryptoError:
        return False
    return True


class Identity:
    """A private key with its public key and identifier."""

    __slots__ = ("_secret", "identifier", "key")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != KEY_BYTES:
            raise ValueError(f"an identity grows from {KEY_BYTES} octets, not {len(seed)}")
        self.key, self._secret = crypto_sign_seed_keypair(seed)
        self.identifier = identifier_of(self.key)

    def __repr__(self) -> str:
        return f"Identity({self.identifier:08x})"

    @classmethod
    def generate(cls, rng: Random) -> Identity:
        return cls(rng.randbytes(KEY_BYTES))

    @classmethod
    def parse(cls, text: str) -> Identity:
        """Read the content of an identity file. The public key in it must belong to the secret."""
        lines = text.split("\n")
        if len(lines) != 4 or lines[0] != _FIRST_LINE or lines[3]:
            raise Malformed(f"identity: the first line must be {_FIRST_LINE!r}, then one of secret and one of key")
        identity = cls(_field(lines[1], "secret"))
        if _field(lines[2], "key") != identity.key:
            raise Malformed("identity: the key does not belong to the secret")
        return identity

    def text(self) -> str:
        """The content of an identity file. It contains the secret, so the file's mode must be 0600."""
        return f"{_FIRST_LINE}\nsecret {to_text(self._secret[:KEY_BYTES])}\nkey {to_text(self.key)}\n"

    def sign_note(self, octets: bytes) -> bytes:
        """Sign octets in which a format of others takes the place of the label: checkpoints and cosignatures."""
        assert octets.startswith(NOTE_STARTS), "a signature without a purpose"
        signed: bytes = crypto_sign(octets, self._secret)
        return signed[:SIGNATURE_BYTES]

    def sign(self, label: bytes, message: bytes) -> bytes:
        signed: bytes = crypto_sign(b"%b\0%b" % (label, message), self._secret)
        return signed[:SIGNATURE_BYTES]


def to_text(data: bytes) -> str:
    """Octets as base64url without padding: visible ASCII, as HELLO's headers require."""
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def from_text(text: str, octets: int, what: str) -> bytes:
    """Decode the text of `to_text`; exactly one spelling is accepted."""
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise Malformed(f"{what}: not base64url") from None
    if len(data) != octets or to_text(data) != text:
        raise Malformed(f"{what}: not {octets} octets of base64url in their one spelling")
    return data


def _field(line: str, name: str) -> bytes:
    word, _, value = line.partition(" ")
    if word != name:
        raise Malformed(f"identity: a line of {name} is missing")
    return from_text(value, KEY_BYTES, f"identity: {name}")
