"""Damage to one message: the proof names the range of its pack, and with another node's copy the message itself."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from chaplain.segment.pack import decode_pack
from chaplain.segment.record import HEAD_BYTES
from chaplain.verification.plan import VerifyRequest
from chaplain.verification.verify import verify_here
from chaplain.verification.violations import Break, break_fields
from tests.spark.support.scene import Scene, decode_count, find, split, whole_batches

ROW = 1


def target(scene: Scene) -> tuple[int, int, int, bytes]:
    """Message, part, offset of the first pack of at least three messages, and that pack."""
    for group in scene.groups[6:-3]:
        for record in whole_batches(group):
            packs, offsets = split(record)
            for raw, offset in zip(packs, offsets, strict=True):
                if decode_count(raw) >= 3 and decode_pack(raw).values[ROW]:
                    return record.index, record.part, offset, raw
    raise AssertionError("no pack has three messages")


def damage(scene: Scene, index: int, part: int, raw: bytes, at: int) -> None:
    """Flip a bit of an octet of this pack in the log of node 1."""
    file, _ = find(scene, index, part)
    data = bytearray(file.read_bytes())
    place = bytes(data).index(raw)
    data[place + at] ^= 1
    file.write_bytes(data)


def value_at(raw: bytes, row: int) -> int:
    """Where a message's value stands in its pack: values come first behind the tables."""
    pack = decode_pack(raw)
    return raw.index(b"".join(pack.values), HEAD_BYTES // 2) + sum(map(len, pack.values[:row]))


def breaks_of(scene: Scene, copies: int) -> list[Break]:
    asked = VerifyRequest(cluster=str(scene.directory)) if copies > 1 else VerifyRequest(str(scene.segments))
    return verify_here(asked, 3)[0].breaks


@pytest.mark.parametrize("copies", [1, 2])
def test_flipped_bit_in_a_value_is_named_by_pack_or_by_message_with_a_copy(tmp_path: Path, copies: int) -> None:
    scene = Scene(tmp_path, 1)
    for node in range(1, copies + 1):
        scene.write(node=node)
    index, part, offset, raw = target(scene)
    damage(scene, index, part, raw, value_at(raw, ROW))
    [found] = breaks_of(scene, copies)
    last = offset + decode_count(raw) - 1
    assert (found.kind, found.offset, found.last) == (
        ("damaged", offset + ROW, offset + ROW) if copies > 1 else ("damaged", offset, last)
    )
    assert break_fields(found).get("last") == (None if copies > 1 else last)
    assert (f"offsets {offset} to {last}" in found.expected) == (copies == 1)


def test_flipped_bit_outside_messages_is_named_by_pack(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 1)
    scene.write(node=1)
    scene.write(node=2)
    index, part, offset, raw = target(scene)
    damage(scene, index, part, raw, struct.calcsize("<IIII"))  # the count of requests, in the pack's head
    assert offset in {one.offset for one in breaks_of(scene, 2)}
