"""What a node wrote again behind the end stands in for what is damaged: in proofs, and for who reads segments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from chaplain.errors import StorageError
from chaplain.pipeline.source.backends import known_offsets
from chaplain.pipeline.source.offset_index import OffsetIndex
from chaplain.pipeline.source.rows import ranges, read_range
from chaplain.segment.files import OpenSegment, list_segments, scan_file
from chaplain.segment.pack import decode_pack
from chaplain.verification.header_scan import ScannedRecord, scan_headers
from chaplain.verification.plan import _first as first_of
from tests.spark.support.scene import Scene, find, flip, split

STREAM = "orders"
Damage = Callable[[Scene, int], None]


def in_the_body(scene: Scene, index: int) -> None:
    part, record = scene.batch(index)
    flip(scene, index, part, decode_pack(split(record)[0][0]).values[0])


def in_the_first_body(scene: Scene, index: int) -> None:
    flip(scene, index, 0, bytes(scene.group(index)[0].body)[8:40])


def in_the_head(scene: Scene, index: int) -> None:
    _blot(scene, index, scene.batch(index)[0])


def in_all_heads(scene: Scene, index: int) -> None:
    for part in reversed(range(len(scene.group(index)))):
        _blot(scene, index, part)


def in_two_messages(scene: Scene, index: int) -> None:
    in_all_heads(scene, index + 1)
    in_all_heads(scene, index)


def _blot(scene: Scene, index: int, part: int) -> None:
    _blot_at(*find(scene, index, part))


def _blot_at(file: Path, position: int) -> None:
    with file.open("r+b") as stream, OpenSegment(file) as segment:
        stream.seek(position - segment.header.base + 40)
        stream.write(b"\xff")


def in_the_verdict(scene: Scene, index: int) -> None:
    _blot(scene, index, scene.group(index)[-1].part)


def in_the_body_of_the_verdict(scene: Scene, index: int) -> None:
    last = scene.group(index)[-1]
    flip(scene, index, last.part, bytes(last.body)[-32:])


WHERE = (
    in_the_body,
    in_the_first_body,
    in_the_head,
    in_all_heads,
    in_two_messages,
    in_the_verdict,
    in_the_body_of_the_verdict,
)


def repaired(directory: Path, damage: Damage, *, copies: int = 1, behind: int = 4) -> tuple[Scene, int]:
    """A log in which a message is damaged, and stands again further on; so does the one behind it."""
    scene = Scene(directory, 1)
    index = scene.index(within=(6, -behind - 3))
    at = len(scene.groups) - behind
    again = scene.groups[index - 1 : index + 1] * copies
    scene.write([*scene.groups[:at], *again, *scene.groups[at:]])
    damage(scene, index)
    return scene, index


def rows(scene: Scene) -> list[int]:
    index = OffsetIndex(scene.segments)
    index.refresh()
    there = known_offsets(index, STREAM)
    (whole,) = ranges(index.streams[STREAM], STREAM, there.first, there.next, 1)
    return [row for batch in read_range(whole, ["offset"]) for row in batch.column(0).to_pylist()]


@pytest.mark.parametrize("damage", WHERE)
@pytest.mark.parametrize("copies", [1, 2])
def test_repaired_log_has_no_violation(tmp_path: Path, damage: Damage, copies: int) -> None:
    scene, _ = repaired(tmp_path, damage, copies=copies)
    for scene.signatures, tasks in ((False, 1), (True, 4), (False, 1000)):
        assert scene.breaks(tasks) == []


@pytest.mark.parametrize("damage", WHERE)
def test_verification_continues_from_a_repaired_manifest(tmp_path: Path, damage: Damage) -> None:
    scene, _ = repaired(tmp_path, damage)
    scene.manifest = tmp_path / "manifest"
    assert scene.breaks(1) == scene.breaks(1) == []


@pytest.mark.parametrize("damage", WHERE)
def test_repaired_messages_are_read(tmp_path: Path, damage: Damage) -> None:
    whole, _ = repaired(tmp_path / "whole", lambda scene, index: None)
    scene, _ = repaired(tmp_path / "mended", damage)
    assert rows(scene) == rows(whole) != []


def test_index_update_finds_later_repairs(tmp_path: Path) -> None:
    scene, damaged = repaired(tmp_path, in_all_heads, behind=1)
    later = [file for file in sorted(scene.segments.iterdir()) if file.name > find(scene, damaged + 2, 0)[0].name]
    held = {file: file.read_bytes() for file in later}
    for file in later:
        file.unlink()
    index = OffsetIndex(scene.segments)
    index.refresh()
    assert damaged not in {place.index for place in index.places}
    for file, data in held.items():
        file.write_bytes(data)
    index.refresh()
    assert [place.index for place in index.places] == sorted(place.index for place in index.places)
    assert {place.index for place in index.places} == set(range(1, len(scene.groups) + 1))


def test_partly_written_append_is_no_damage(tmp_path: Path) -> None:
    """Of an append whose front is not there yet, nothing says that it was on disk."""
    scene = Scene(tmp_path, 1)
    scene.write(scene.groups[:8])
    _blot(scene, 8, 0)
    file = list_segments(scene.segments)[-1].path
    found = scan_file(file)
    with file.open("r+b") as stream:  # the mark behind it was written when it was on disk
        stream.truncate(found.records[-1][0].position - found.header.base)
    index = OffsetIndex(scene.segments)
    index.refresh()
    assert index.last < 8
    assert not index.damaged


def test_another_message_does_not_repair_a_damaged_one(tmp_path: Path) -> None:
    """A proposal for the same place, which was never agreed."""
    scene = Scene(tmp_path, 1)
    index = scene.index(within=(6, -8))
    other = [msgspec.structs.replace(one, chain_hash=b"\7" * 32) for one in scene.group(index)]
    scene.write([*scene.groups[:-3], other, *scene.groups[-3:]])
    in_the_body(scene, index)
    assert [one.kind for one in scene.breaks(4)] == ["damaged"]
    with pytest.raises(StorageError):
        rows(scene)


def test_repaired_copy_that_differs_is_a_violation(tmp_path: Path) -> None:
    """With right checksums: which of the two a reader takes must not matter."""
    scene = Scene(tmp_path, 1)
    index = scene.index(within=(6, -8))
    part, record = scene.batch(index)
    packs, _ = split(record)
    forged = list(scene.group(index))
    forged[part] = msgspec.structs.replace(record, body=b"".join([*packs[:-1], packs[-1][:-16] + b"\1" * 16]))
    scene.write([*scene.groups[:-3], forged, *scene.groups[-3:]])
    (found,) = scene.breaks(4)
    assert (found.stream, found.kind) == (record.stream, "damaged")
    assert "written again" in found.found


def test_log_without_its_start_does_not_begin_with_a_repaired_copy(tmp_path: Path) -> None:
    """A copy of a message that went stands before what is kept."""
    scene = Scene(tmp_path, 1)
    scene.write([scene.groups[2], scene.groups[3], scene.groups[6], *scene.groups[12:]])
    assert first_of(scan_headers(scene.segments)) == 13


@pytest.mark.parametrize("part", [0, 1, 2])
def test_damaged_copy_is_repaired_by_the_next_copy(tmp_path: Path, part: int) -> None:
    """Its head alone tells what it was; the records around it tell as much."""
    scene = Scene(tmp_path, 1)
    index = scene.index(within=(6, -8))
    copy = scene.group(index)
    scene.write([*scene.groups[:-5], copy, *scene.groups[-5:-3], copy, *scene.groups[-3:]])
    _blot(scene, index, 1)
    found = [one for one in spots(scene) if (one.index, one.part) == (index, part)]
    _blot_at(Path(found[-2].path), found[-2].position)
    assert scene.breaks(4) == []
    assert rows(scene) == list(range(len(rows(scene))))


def spots(scene: Scene) -> list[ScannedRecord]:
    return [step for step in scan_headers(scene.segments) if isinstance(step, ScannedRecord)]
