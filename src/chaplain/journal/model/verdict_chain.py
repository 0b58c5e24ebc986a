"""The hash chain through the verdicts on all agreed messages, and the check of a verdict that a peer sent.

    verdict = protocol 1 | hash of the previous verdict 32 | what execution decided about this message

Execution computes a verdict from the agreed prefix. A node that repairs or backfills an old message no longer has the
state before that message, so it cannot compute the verdict again. It does not have to trust the peer either: the state
contains the hash of the last verdict, and every verdict contains the hash of the previous one. From a known verdict
backwards, each hash admits exactly one predecessor.

The state's digest covers the hash of the last verdict. A quorum that confirms a checkpoint therefore confirms all
earlier verdicts. See docs/decisions/repair-of-damaged-records.md.
"""

from __future__ import annotations

from hashlib import sha256

from chaplain.errors import Malformed
from chaplain.segment.layout import HASH_BYTES

VERDICT_PROTOCOL = 2
NO_VERDICT = bytes(HASH_BYTES)
"""The hash before the first verdict."""
_LABEL = b"chaplain verdict\0"
_HEAD_BYTES = 1 + HASH_BYTES


def verdict_hash(verdict: bytes) -> bytes:
    """The hash that the next verdict, or the state, contains for this one."""
    return sha256(_LABEL + verdict).digest()


def put_head(previous: bytes) -> bytes:
    """The first octets of a verdict whose predecessor has this hash."""
    assert len(previous) == HASH_BYTES, "a verdict is named by its hash"
    return bytes((VERDICT_PROTOCOL,)) + previous


def previous_of(verdict: bytes) -> bytes:
    """The hash of the previous verdict."""
    if len(verdict) < _HEAD_BYTES or verdict[0] != VERDICT_PROTOCOL:
        raise Malformed(f"verdict: this program reads and writes protocol {VERDICT_PROTOCOL}")
    return verdict[1:_HEAD_BYTES]


def check(verdict: bytes, expected: bytes) -> None:
    """Raise `Malformed` unless the verdict has the expected hash."""
    if verdict_hash(verdict) != expected:
        raise Malformed("not the verdict that was decided: its hash is not the one that the next verdict contains")
