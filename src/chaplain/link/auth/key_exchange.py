"""The key exchange of a greeting: a nonce and an X25519 share from each side give the session keys.

This module derives the keys from two offers. Invariants: an offer completes at most one greeting (its owner ensures
that); both sides derive the same two keys, and each key belongs to one direction between two instances.
"""

from __future__ import annotations

from random import Random

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from chaplain.core import Frozen
from chaplain.link.errors import GreetingRefused

NONCE_BYTES = 16
SHARE_BYTES = 32

_LABEL = b"chaplain session 1"


class KeyOffer:
    """Our nonce and share, with the private key. `cluster_key` is the key of our greetings, empty towards clients."""

    __slots__ = ("_private", "cluster_key", "made_ns", "nonce", "share", "turn")

    def __init__(self, rng: Random, turn: int, cluster_key: bytes, made_ns: int = 0) -> None:
        self.nonce = rng.randbytes(NONCE_BYTES)
        self._private = X25519PrivateKey.from_private_bytes(rng.randbytes(SHARE_BYTES))
        self.share = self._private.public_key().public_bytes_raw()
        self.turn = turn
        self.cluster_key = cluster_key
        self.made_ns = made_ns

    def __repr__(self) -> str:
        return f"Offer(turn {self.turn})"

    def secret_with(self, share: bytes) -> bytes:
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(share))
        except ValueError:
            raise GreetingRefused("share of low order") from None


class Party(Frozen, frozen=True):
    """The contribution of one side to the session's keys."""

    instance: bytes
    key: bytes
    nonce: bytes
    share: bytes
    cluster_key: bytes


def derive(secret: bytes, algorithm: str, sender: Party, receiver: Party) -> bytes:
    """The key for frames from `sender` to `receiver`."""
    first, second = sorted((sender, receiver), key=lambda party: party.instance)
    parts = [_LABEL, algorithm.encode()]
    for party in (sender, receiver):
        parts += [party.instance, party.key, party.nonce, party.share]
    # Every part but the algorithm has a fixed size, and the algorithm's name is one of two. So different inputs never
    # give the same `info`.
    kdf = HKDF(SHA256(), length=32, salt=first.cluster_key + second.cluster_key, info=b"\0".join(parts))
    return kdf.derive(secret)
