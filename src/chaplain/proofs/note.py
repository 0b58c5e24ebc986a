"""Signed notes (C2SP signed-note): a text, and lines with signatures of keys that have names.

Reads and writes notes and verifier keys, and makes and checks Ed25519 signatures (type 1). The caller decides which
keys are trusted. A signature of an unknown key is ignored, but its line must be readable.

Invariants: a note has exactly one encoding (base64 is canonical, no line is ignored), and every size is bounded. No
`repr` shows a secret.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from hashlib import sha256

from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import CryptoError

from chaplain.core import Frozen
from chaplain.errors import Malformed

NOTE_BYTES_MAX = 128 << 10
SIGNATURES_MAX = 300
"""A cluster has at most 254 nodes; the rest is for witnesses."""
KEY_NAME_BYTES_MAX = 1024
KEY_BYTES = 32
SIGNATURE_BYTES = 64
ED25519 = 0x01
COSIGNATURE = 0x04
_DASH = "\u2014 "
_ID_BYTES = 4
_SECRET = "PRIVATE+KEY"  # noqa: S105  the words with which such a file begins

Signer = Callable[[bytes], bytes]
"""Returns the Ed25519 signature of these octets."""


class VerifierKey(Frozen, frozen=True):
    """A public key with its name and the type of its signatures."""

    name: str
    algorithm: int
    key: bytes

    @property
    def id(self) -> bytes:
        return key_id(self.name, self.algorithm, self.key)

    def text(self) -> str:
        """Return the key as policies contain it."""
        return f"{self.name}+{self.id.hex()}+{to_base64(bytes((self.algorithm,)) + self.key)}"


class Signature(Frozen, frozen=True):
    """One signature line of a note."""

    name: str
    key_id: bytes
    octets: bytes

    def line(self) -> str:
        return f"{_DASH}{self.name} {to_base64(self.key_id + self.octets)}\n"

    def is_by(self, key: VerifierKey) -> bool:
        """Return whether the line names this key; the signature may still be wrong."""
        return self.name == key.name and self.key_id == key.id


class Note(Frozen, frozen=True):
    text: str
    """Including its last line feed."""
    signatures: tuple[Signature, ...]

    def encode(self) -> str:
        return f"{self.text}\n{''.join(signature.line() for signature in self.signatures)}"


class SecretKey:
    """The secret of a named key."""

    __slots__ = ("_seed", "_signer", "algorithm", "key", "name")

    def __init__(self, name: str, seed: bytes, algorithm: int = ED25519) -> None:
        check_name(name)
        if len(seed) != KEY_BYTES:
            raise ValueError(f"a key grows from {KEY_BYTES} octets, not {len(seed)}")
        self.name = name
        self.algorithm = algorithm
        self.key, self._signer = signer_of(seed)
        self._seed = seed

    def __repr__(self) -> str:
        return f"SecretKey({self.name!r})"

    def sign(self, octets: bytes) -> bytes:
        return self._signer(octets)

    @property
    def verifier(self) -> VerifierKey:
        return VerifierKey(self.name, self.algorithm, self.key)

    def text(self) -> str:
        """Return the content of a key file, as Go's note package writes it. It contains the secret."""
        return f"{_SECRET}+{self.name}+{self.verifier.id.hex()}+{to_base64(bytes((self.algorithm,)) + self._seed)}\n"

    @classmethod
    def parse(cls, text: str) -> SecretKey:
        prefix = f"{_SECRET}+"
        parts = text.removeprefix(prefix).removesuffix("\n").split("+", 2)
        if not text.startswith(prefix) or len(parts) != 3:
            raise Malformed(f"secret key: one line {_SECRET}+name+id+key wanted")
        name, stated, encoded = parts
        check_name(name)
        octets = from_base64(encoded, "secret key")
        if len(octets) != 1 + KEY_BYTES or octets[0] not in {ED25519, COSIGNATURE}:
            raise Malformed(f"secret key of {name!r}: not an Ed25519 key")
        secret = cls(name, octets[1:], octets[0])
        if stated != secret.verifier.id.hex():
            raise Malformed(f"secret key of {name!r}: the id does not belong to the name and the key")
        return secret


def signer_of(seed: bytes) -> tuple[bytes, Signer]:
    """Return the public key of this seed, and the function that signs with it."""
    public, secret = crypto_sign_seed_keypair(seed)

    def sign(octets: bytes) -> bytes:
        signed: bytes = crypto_sign(octets, secret)
        return signed[:SIGNATURE_BYTES]

    return public, sign


def verifies(key: bytes, octets: bytes, signature: bytes) -> bool:
    """Return whether the owner of the key signed exactly these octets."""
    if len(key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        crypto_sign_open(signature + octets, key)
    except CryptoError:
        return False
    return True


def key_id(name: str, algorithm: int, key: bytes) -> bytes:
    return sha256(name.encode("utf-8", "surrogateescape") + b"\n" + bytes((algorithm,)) + key).digest()[:_ID_BYTES]


def parse_key(text: str) -> VerifierKey:
    """Read a verifier key: name, key id and key. The id must follow from the name and the key."""
    parts = text.split("+", 2)
    if len(parts) != 3:
        raise Malformed("verifier key: name+id+key wanted")
    name, stated, encoded = parts
    check_name(name)
    octets = from_base64(encoded, "verifier key")
    if not octets or stated != key_id(name, octets[0], octets[1:]).hex():
        raise Malformed(f"verifier key of {name!r}: the id does not belong to the name and the key")
    if octets[0] not in {ED25519, COSIGNATURE}:
        raise Malformed(f"verifier key of {name!r}: signatures of type {octets[0]} are not supported")
    if len(octets) != 1 + KEY_BYTES:
        raise Malformed(f"verifier key of {name!r}: {KEY_BYTES} octets wanted, not {len(octets) - 1}")
    return VerifierKey(name, octets[0], octets[1:])


def check_name(name: str) -> None:
    """Raise `Malformed` unless this can be the name of a key."""
    if not name or "+" in name or any(letter.isspace() or letter < " " for letter in name):
        raise Malformed(f"the name of a key has no spaces and no '+', not {name[:80]!r}")
    if len(name.encode("utf-8", "surrogateescape")) > KEY_NAME_BYTES_MAX:
        raise Malformed(f"the name of a key has at most {KEY_NAME_BYTES_MAX} octets")


def parse(data: bytes) -> Note:
    """Read a note. Signatures are not checked."""
    if len(data) > NOTE_BYTES_MAX:
        raise Malformed(f"note: at most {NOTE_BYTES_MAX} octets, not {len(data)}")
    try:
        whole = data.decode()
    except UnicodeDecodeError:
        raise Malformed("note: not UTF-8") from None
    if any(letter < " " and letter != "\n" for letter in whole):
        raise Malformed("note: contains control characters")
    text, blank, lines = whole.rpartition("\n\n")
    if not blank or not lines.endswith("\n"):
        raise Malformed("note: a text, an empty line and signature lines wanted, each with its line feed")
    return Note(text + "\n", parse_signatures(lines))


def parse_signatures(lines: str) -> tuple[Signature, ...]:
    """Read signature lines, at least one."""
    found = lines.split("\n")
    if found.pop() or not 1 <= len(found) <= SIGNATURES_MAX:
        raise Malformed(f"note: 1 to {SIGNATURES_MAX} signature lines wanted, each with its line feed")
    return tuple(_parse_signature(line) for line in found)


def _parse_signature(line: str) -> Signature:
    name, space, encoded = line.removeprefix(_DASH).partition(" ")
    if not line.startswith(_DASH) or not space:
        raise Malformed(f"note: {line[:80]!r} is not a signature line")
    check_name(name)
    octets = from_base64(encoded, f"signature of {name!r}")
    if len(octets) <= _ID_BYTES:
        raise Malformed(f"signature of {name!r}: only {len(octets)} octets")
    return Signature(name, octets[:_ID_BYTES], octets[_ID_BYTES:])


def encode(text: str, signatures: Iterable[Signature]) -> str:
    return Note(text, tuple(signatures)).encode()


def sign(text: str, name: str, key: bytes, signer: Signer) -> Signature:
    """Sign a note's text with the Ed25519 key of this name."""
    return Signature(name, key_id(name, ED25519, key), signer(text.encode()))


def holds(key: VerifierKey, text: str, signature: Signature) -> bool:
    """Return whether this line is a valid signature of this key over the text."""
    assert key.algorithm == ED25519
    return signature.is_by(key) and verifies(key.key, text.encode(), signature.octets)


def to_base64(octets: bytes) -> str:
    return b64encode(octets).decode("ascii")


def from_base64(text: str, what: str) -> bytes:
    """Decode base64 of RFC 4648; exactly one spelling is accepted."""
    try:
        octets = b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise Malformed(f"{what}: not base64") from None
    if to_base64(octets) != text:
        raise Malformed(f"{what}: not base64 in its one spelling")
    return octets
