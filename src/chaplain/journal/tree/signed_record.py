"""The file `tree/signed`, which contains the checkpoint that this node signed last.

    slot    magic 8 | size 8 | root 32 | time 8 | CRC-32C 4, in a sector of its own

There are two slots. The slot with the larger size counts. A write replaces the other one, also after a restart, so a
torn write never damages the slot that counts.
"""

from __future__ import annotations

import struct

from chaplain.core import Frozen, WriteAt
from chaplain.segment.layout import checksum

_SLOT = struct.Struct(">8sQ32sQ")
_CHECK = struct.Struct(">I")
_MAGIC = b"CHAPSIGN"
SLOT_BYTES = 512


class SignedRecord(Frozen, frozen=True):
    """A checkpoint that this node signed."""

    size: int
    root: bytes
    time_s: int
    """The time that the signature states: that of the last message in the tree."""


def write(file: str, record: SignedRecord, slot_number: int) -> WriteAt:
    """The write of the record to this slot."""
    slot = _SLOT.pack(_MAGIC, record.size, record.root, record.time_s)
    return WriteAt(file, slot_number * SLOT_BYTES, (slot + _CHECK.pack(checksum(slot))).ljust(SLOT_BYTES, b"\0"))


def read(data: bytes | None) -> SignedRecord | None:
    """The record with the largest size; None if there is none."""
    return max((one for one in _slots(data) if one is not None), key=lambda record: record.size, default=None)


def free_slot(data: bytes | None) -> int:
    """The slot that the next write may replace."""
    return int(_slots(data)[0] is not None and _slots(data)[0] == read(data))


def _slots(data: bytes | None) -> list[SignedRecord | None]:
    return [_read_slot((data or b"")[at : at + _SLOT.size + _CHECK.size]) for at in (0, SLOT_BYTES)]


def _read_slot(slot: bytes) -> SignedRecord | None:
    if len(slot) < _SLOT.size + _CHECK.size or slot[_SLOT.size :] != _CHECK.pack(checksum(slot[: _SLOT.size])):
        return None
    magic, size, root, time_s = _SLOT.unpack_from(slot)
    return SignedRecord(size, root, time_s) if magic == _MAGIC else None
