"""Cosignatures (C2SP tlog-cosignature, `cosignature/v1`): a node or a witness states that a checkpoint extends every
checkpoint that it signed before.

The signature covers a time. No check uses it, because clocks may be wrong.
"""

from __future__ import annotations

from chaplain.proofs.note import COSIGNATURE, SIGNATURE_BYTES, Signature, Signer, VerifierKey, key_id, verifies

_HEADER = "cosignature/v1\ntime "
_TIME_BYTES = 8
TIME_MAX = (1 << 63) - 1


def signed_octets(time_s: int, text: str) -> bytes:
    """Return the octets that are signed. No other content that a node's key signs begins in the same way."""
    return f"{_HEADER}{time_s}\n{text}".encode()


def sign(text: str, name: str, key: bytes, signer: Signer, time_s: int) -> Signature:
    """Cosign the text of a checkpoint."""
    if not 0 < time_s <= TIME_MAX:
        raise ValueError(f"the time of a cosignature is in seconds since 1970, not {time_s}")
    octets = time_s.to_bytes(_TIME_BYTES, "big") + signer(signed_octets(time_s, text))
    return Signature(name, key_id(name, COSIGNATURE, key), octets)


def time_of(signature: Signature) -> int:
    """Return the time that a cosignature states."""
    return int.from_bytes(signature.octets[:_TIME_BYTES], "big")


def holds(key: VerifierKey, text: str, signature: Signature) -> bool:
    """Return whether this line is a valid cosignature of this key over the text."""
    assert key.algorithm == COSIGNATURE
    time_s = time_of(signature)
    if not signature.is_by(key) or len(signature.octets) != _TIME_BYTES + SIGNATURE_BYTES or time_s > TIME_MAX:
        return False
    return verifies(key.key, signed_octets(time_s, text), signature.octets[_TIME_BYTES:])
