"""The greeting: a HELLO in an envelope that authenticates its sender.

This module encodes and decodes greetings. `hello_checks.py` decides whether a well-formed greeting is acceptable.

    node to node      0x11 | key id 4 | HELLO | signature 64 | MAC 32
    client and node   0x12 | key 32   | HELLO | signature 64

Invariants: the signature and the MAC cover everything before them, each under a label of its own; the proof that needs
no decoding (the MAC, or the client's signature) can be checked before HELLO is decoded.
Byte tables and hex examples: docs/connection.md.
"""

from __future__ import annotations

import hmac
import re

import msgspec

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.link.auth.identity import INSTANCE_BYTES, KEY_BYTES, SIGNATURE_BYTES, Identity, from_text, to_text, verify
from chaplain.link.auth.key_exchange import NONCE_BYTES, SHARE_BYTES, KeyOffer
from chaplain.link.auth.keyring import KEY_ID_BYTES, key_id_of
from chaplain.wire import command as commands
from chaplain.wire.command import Hello

GREETING_NODE = 0x11
GREETING_CLIENT = 0x12
GREETING_BYTES_MAX = 132 * 1024
"""More than the largest HELLO that the grammar permits, with its envelope."""
RESERVED = "chaplain."
MAC_BYTES = 32

_LABEL = b"chaplain greeting 1"
_VERSION = re.compile(r"(0|[1-9][0-9]{0,4})\.(0|[1-9][0-9]{0,4})")
_TURN = re.compile(r"[1-9][0-9]{0,18}")
_ROLES = ("node", "client")


class HelloClaims(Frozen, frozen=True):
    """The content of the header names that are reserved for the link."""

    version: tuple[int, int]
    cluster: str
    role: str
    instance: bytes
    key: bytes
    identifier: int
    turn: int
    """Counts the key offers of one instance. A greeting whose turn is not later than the session's is a replay."""
    nonce: bytes
    share: bytes
    seal: str
    echo: bytes = b""
    to: bytes = b""


class Envelope(Frozen, frozen=True):
    """A greeting split into its parts; none of them is authenticated yet."""

    octet: int
    prover: bytes
    """The cluster key's id, or the sender's public key."""
    hello: bytes
    signed: bytes
    signature: bytes
    mac: bytes
    maced: bytes


def claim_headers(claim: HelloClaims) -> dict[str, str]:
    headers = {
        "version": f"{claim.version[0]}.{claim.version[1]}",
        "cluster": claim.cluster,
        "role": claim.role,
        "instance": to_text(claim.instance),
        "key": to_text(claim.key),
        "identifier": f"{claim.identifier:08x}",
        "turn": str(claim.turn),
        "nonce": to_text(claim.nonce),
        "share": to_text(claim.share),
        "seal": claim.seal,
    }
    if claim.echo:
        headers["echo"] = to_text(claim.echo)
    if claim.to:
        headers["to"] = to_text(claim.to)
    return {RESERVED + name: value for name, value in headers.items()}


def encode(identity: Identity, offer: KeyOffer, hello: Hello) -> bytes:
    """Wrap, sign, and (between nodes) MAC a HELLO that already contains its claim."""
    prover = key_id_of(offer.cluster_key) if offer.cluster_key else identity.key
    octet = GREETING_NODE if offer.cluster_key else GREETING_CLIENT
    signed = b"%c%b%b" % (octet, prover, commands.encode(hello))
    frame = signed + identity.sign(_LABEL, signed)
    return frame + _mac(offer.cluster_key, frame) if offer.cluster_key else frame


def open_envelope(frame: bytes) -> Envelope:
    """Split the frame at its fixed positions."""
    octet = frame[0] if frame else 0
    if octet not in (GREETING_NODE, GREETING_CLIENT):
        raise Malformed("greeting: the first octet is neither 0x11 nor 0x12")
    if len(frame) > GREETING_BYTES_MAX:
        raise Malformed(f"greeting: {len(frame)} octets, at most {GREETING_BYTES_MAX} allowed")
    start = 1 + (KEY_ID_BYTES if octet == GREETING_NODE else KEY_BYTES)
    mac_at = len(frame) - (MAC_BYTES if octet == GREETING_NODE else 0)
    signature_at = mac_at - SIGNATURE_BYTES
    if signature_at <= start:
        raise Malformed(f"greeting: {len(frame)} octets are too few")
    return Envelope(
        octet=octet,
        prover=frame[1:start],
        hello=frame[start:signature_at],
        signed=frame[:signature_at],
        signature=frame[signature_at:mac_at],
        mac=frame[mac_at:],
        maced=frame[:mac_at],
    )


def mac_holds(envelope: Envelope, cluster_key: bytes) -> bool:
    return hmac.compare_digest(_mac(cluster_key, envelope.maced), envelope.mac)


def signature_holds(envelope: Envelope, key: bytes) -> bool:
    return verify(key, _LABEL, envelope.signed, envelope.signature)


def open_hello(data: bytes) -> tuple[HelloClaims, Hello]:
    """Return the claim, and HELLO without the reserved names."""
    hello = commands.decode(data)
    if not isinstance(hello, Hello):
        raise Malformed("greeting: holds another command than HELLO")
    if hello.sequence != 1:
        raise Malformed("greeting: numbering starts at 1")
    plain = {name: value for name, value in hello.headers.items() if not name.startswith(RESERVED)}
    return _read_claim(hello.headers), msgspec.structs.replace(hello, headers=plain)


def read_version(text: str) -> tuple[int, int]:
    found = _VERSION.fullmatch(text)
    if not found:
        raise Malformed("version: major.minor wanted")
    return int(found[1]), int(found[2])


def _read_claim(headers: dict[str, str]) -> HelloClaims:
    def text(name: str) -> str:
        value = headers.get(RESERVED + name)
        if value is None:
            raise Malformed(f"greeting: {name} is missing")
        return value

    def octets(name: str, size: int) -> bytes:
        return from_text(text(name), size, name)

    def optional(name: str, size: int) -> bytes:
        return octets(name, size) if RESERVED + name in headers else b""

    turn, identifier, role = text("turn"), text("identifier"), text("role")
    if not _TURN.fullmatch(turn):
        raise Malformed("turn: a positive number wanted")
    if not re.fullmatch(r"[0-9a-f]{8}", identifier):
        raise Malformed("identifier: eight hexadecimal digits wanted")
    if role not in _ROLES:
        raise Malformed("role: node or client wanted")
    return HelloClaims(
        version=read_version(text("version")),
        cluster=text("cluster"),
        role=role,
        instance=octets("instance", INSTANCE_BYTES),
        key=octets("key", KEY_BYTES),
        identifier=int(identifier, 16),
        turn=int(turn),
        nonce=octets("nonce", NONCE_BYTES),
        share=octets("share", SHARE_BYTES),
        seal=text("seal"),
        echo=optional("echo", NONCE_BYTES),
        to=optional("to", INSTANCE_BYTES),
    )


def _mac(key: bytes, frame: bytes) -> bytes:
    return hmac.digest(key, b"%b\0%b" % (_LABEL, frame), "sha256")
