"""The seal: authenticates (and with AES-GCM encrypts) a frame for one receiver.

It defines the bytes of a sealed frame under one key. It does not know sessions: they choose the counter and decide
which counters are acceptable.

    octet 1 | counter 8 | heard 8 | command or bundle, encrypted | tag

Invariants: a key seals in one direction only; the caller never uses a counter twice; the tag is checked before anything
of the command is read. Byte table and hex examples: docs/connection.md.
"""

from __future__ import annotations

import hmac
import struct
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from chaplain.link.settings import GCM, HMAC

SEAL_GCM = 0x21
SEAL_HMAC = 0x22
HEADER = struct.Struct(">BQQ")
HEADER_BYTES = HEADER.size
GCM_TAG_BYTES = 16
HMAC_TAG_BYTES = 32

BUNDLED = 0x10
"""Added to the first octet if the frame contains a bundle instead of one command."""

SEAL_OCTETS = {GCM: SEAL_GCM, HMAC: SEAL_HMAC}

_NONCE_HEAD = b"\0\0\0\0"


class Seal(Protocol):
    """The key of one direction."""

    @property
    def octet(self) -> int: ...

    @property
    def overhead_bytes(self) -> int: ...

    def close(self, counter: int, heard: int, command: bytes, kind: int = 0) -> bytes:
        """Seal a command. `kind` is 0, or `BUNDLED`."""
        ...

    def open(self, frame: bytes) -> bytes | None:
        """Return the command, or None if another key sealed the frame. The frame has at least a header and a tag."""
        ...


class GcmSeal:
    """AES-256-GCM: authenticates the header and encrypts the command; the nonce is four zeros and the counter."""

    __slots__ = ("_decrypt", "_encrypt")

    octet = SEAL_GCM
    overhead_bytes = HEADER_BYTES + GCM_TAG_BYTES

    def __init__(self, key: bytes) -> None:
        aead = AESGCM(key)
        self._encrypt, self._decrypt = aead.encrypt, aead.decrypt

    def close(self, counter: int, heard: int, command: bytes, kind: int = 0) -> bytes:
        header = HEADER.pack(SEAL_GCM | kind, counter, heard)
        return header + self._encrypt(_NONCE_HEAD + header[1:9], command, header)

    def open(self, frame: bytes) -> bytes | None:
        try:
            return self._decrypt(_NONCE_HEAD + frame[1:9], memoryview(frame)[HEADER_BYTES:], frame[:HEADER_BYTES])
        except InvalidTag:
            return None


class HmacSeal:
    """HMAC-SHA256 over header and command: authenticated but not encrypted."""

    __slots__ = ("_key",)

    octet = SEAL_HMAC
    overhead_bytes = HEADER_BYTES + HMAC_TAG_BYTES

    def __init__(self, key: bytes) -> None:
        self._key = key

    def close(self, counter: int, heard: int, command: bytes, kind: int = 0) -> bytes:
        body = HEADER.pack(SEAL_HMAC | kind, counter, heard) + command
        return body + hmac.digest(self._key, body, "sha256")

    def open(self, frame: bytes) -> bytes | None:
        body = frame[:-HMAC_TAG_BYTES]
        if hmac.compare_digest(hmac.digest(self._key, body, "sha256"), frame[-HMAC_TAG_BYTES:]):
            return body[HEADER_BYTES:]
        return None


def make_seal(algorithm: str, key: bytes) -> Seal:
    return GcmSeal(key) if algorithm == GCM else HmacSeal(key)
