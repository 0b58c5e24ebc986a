"""A checkpoint: the serialized state after one agreed message. With it, a node does not need the log up to that
message.

    file     magic 8 | first 8 | state size 8 | SHA-256 of the state 32 | checksum 4 | the serialized state

Decides which octets are a checkpoint. Refuses to know when one is made (`execution.config`, `execution.state_machine`)
and which segments it allows to drop (`retention`). Byte table and hex example: docs/protocol/checkpoints.md.
"""

from __future__ import annotations

import struct
from hashlib import sha256

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.model.records import LogPosition
from chaplain.journal.settings import ConsensusSettings
from chaplain.segment.layout import checksum

_HEAD = struct.Struct("<8sQQ32s")
_CHECK = struct.Struct("<I")
_MAGIC = b"CHAPLCKP"
HEAD_BYTES = _HEAD.size + _CHECK.size
STATE_BYTES_MAX = 1 << 30


class StateCheckpoint(Frozen, frozen=True):
    """The state after message `index`."""

    index: int
    """The last message that the state contains."""
    digest: bytes
    """SHA-256 of the state."""
    state: bytes
    first: int = 1
    """The log of this node begins with this message, or with a later one."""


class CheckpointBase(Frozen, frozen=True):
    """Facts from the checkpoint at which this node started, for components other than execution."""

    position: LogPosition
    databases: dict[str, int]
    """For each stream with a database, the last message with statements."""
    owners: dict[int, bytes]
    """The identity (ACL id) of each lane."""


def make(index: int, state: bytes, first: int = 1) -> StateCheckpoint:
    return StateCheckpoint(index, sha256(state).digest(), state, first)


def checkpoint_name(settings: ConsensusSettings) -> str:
    return f"{settings.folder}{settings.log}.checkpoint"


def encode(checkpoint: StateCheckpoint) -> bytes:
    head = _HEAD.pack(_MAGIC, checkpoint.first, len(checkpoint.state), checkpoint.digest)
    return head + _CHECK.pack(checksum(head)) + checkpoint.state


def decode(data: bytes) -> tuple[int, bytes]:
    """First message of the log, and the state. Raises `Malformed` if any octet is wrong."""
    first, size_bytes, digest = _decode_head(data)
    state = data[HEAD_BYTES:]
    if len(state) != size_bytes or sha256(state).digest() != digest:
        raise Malformed("checkpoint: its state is not the one it names")
    return first, state


def first_of(data: bytes) -> int:
    """First message of the log, decoded from the head alone."""
    return _decode_head(data)[0]


def _decode_head(data: bytes) -> tuple[int, int, bytes]:
    if len(data) < HEAD_BYTES or data[_HEAD.size : HEAD_BYTES] != _CHECK.pack(checksum(data[: _HEAD.size])):
        raise Malformed("checkpoint: its head does not hold")
    magic, first, size_bytes, digest = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise Malformed("checkpoint: its head is of something else")
    return first, size_bytes, digest
