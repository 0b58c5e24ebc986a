"""Which of a log's records are listed, without Spark."""

from __future__ import annotations

from pathlib import Path

from chaplain.journal.snapshots import checkpoint
from chaplain.pipeline.source.backends import known_offsets
from chaplain.pipeline.source.offset_index import OffsetIndex
from chaplain.pipeline.source.rows import ranges, read_range
from tests.spark.support.scene import Scene

STREAM = "orders"
LEFT, TAKEN = 8, 19
"""The last message that the node had, and the one behind which it took a checkpoint."""


def returned(directory: Path, first: int) -> Scene:
    """The log of a node that was away: what it had, and, in the same file, what came behind the checkpoint it took."""
    scene = Scene(directory, 1)
    scene.write([*scene.groups[:LEFT], *scene.groups[TAKEN:]])
    made = checkpoint.encode(checkpoint.make(TAKEN, b"state", first))
    (scene.segments / "journal.checkpoint").write_bytes(made)
    return scene


def test_log_after_an_installed_checkpoint_begins_behind_it(tmp_path: Path) -> None:
    index = OffsetIndex(returned(tmp_path, TAKEN + 1).segments)
    index.refresh()
    assert index.places[0].index == TAKEN + 1
    found = known_offsets(index, STREAM)
    assert found.first == index.streams[STREAM][0].first_offset > 0
    (whole,) = ranges(index.streams[STREAM], STREAM, found.first, found.next, 1)
    rows = [row for batch in read_range(whole, ["offset"]) for row in batch.column(0).to_pylist()]
    assert rows == list(range(found.first, found.next)), "who reads from the first offset on meets no gap"


def test_log_hidden_by_damage_does_not_begin_later(tmp_path: Path) -> None:
    index = OffsetIndex(returned(tmp_path, 1).segments)
    index.refresh()
    assert index.places[0].index == 1
