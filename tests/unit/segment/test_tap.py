"""What a tap writes is read back as rows, and goes on after a restart."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaplain.errors import StorageError
from chaplain.segment import arrow
from chaplain.segment.layout import parse_name
from chaplain.segment.read import agreed
from chaplain.segment.settings import LogSettings
from chaplain.segment.tap import SEGMENTS_MIN, StreamKind, Tap, heads_name
from tests.support.segment_stage import Disk

SETTINGS = LogSettings("tap", 7, segment_bytes=16 * 1024, free_max=0)
COLUMNS = ("value", "key", "topic", "offset", "kind", "client_id", "client_message_id")


HEADS = heads_name("tap")


def reopened(disk: Disk, keep_bytes: int = 0) -> Tap:
    files = [(parse_name(name)[1], bytes(disk.files[name])) for name in sorted(disk.files) if name != HEADS]
    heads = bytes(disk.files[HEADS]) if HEADS in disk.files else None
    return Tap(SETTINGS, random.Random(len(files)), files, heads=heads, keep_bytes=keep_bytes)


def rows(disk: Disk) -> list[dict[str, object]]:
    _, records = disk.survey("tap")
    return [row for batch in arrow.to_record_batches(agreed(records), COLUMNS) for row in batch.to_pylist()]


def test_recorded_rows_contain_sender_and_content() -> None:
    disk = Disk()
    tap = reopened(disk)
    disk.perform(tap.write(StreamKind.POOL, "chat", [b"a", b"b"], 5, keys=[b"k", None], writer=9, first_id=3))
    disk.perform(tap.write(StreamKind.EVENT, "deployed", [b"v2"], 6))
    assert rows(disk) == [
        dict(zip(COLUMNS, row, strict=True))
        for row in (
            (b"a", b"k", "chat", 0, StreamKind.POOL, 9, 3),
            (b"b", None, "chat", 1, StreamKind.POOL, 9, 4),
            (b"v2", None, "deployed", 0, StreamKind.EVENT, 0, 0),
        )
    ]


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 40), st.booleans()), max_size=30))
def test_offsets_continue_over_restarts_and_new_segments(writes: list[tuple[str, int, bool]]) -> None:
    disk = Disk()
    tap = reopened(disk)
    for stream, count, restart in writes:
        disk.perform(tap.write(StreamKind.POOL, stream, [bytes(100)] * count, 1))
        tap.synced(tap.written)
        tap = reopened(disk) if restart else tap
    for stream in "xyz":
        expected = sum(count for name, count, _ in writes if name == stream)
        assert [row["offset"] for row in rows(disk) if row["topic"] == stream] == list(range(expected))
        assert tap.head(stream) == expected


def test_torn_end_is_cut_and_its_offsets_are_given_again() -> None:
    disk = Disk()
    tap = reopened(disk)
    disk.perform(tap.write(StreamKind.POOL, "chat", [b"kept"], 1))
    tap.synced(tap.written)
    kept = tap.written
    disk.perform(tap.write(StreamKind.POOL, "chat", [b"torn"], 2))
    (name,) = disk.files
    disk.files[name][kept + 150] ^= 1
    tap = reopened(disk)
    assert tap.head("chat") == 1
    disk.perform(tap.write(StreamKind.POOL, "chat", [b"new"], 3))
    assert [(row["offset"], row["value"]) for row in rows(disk)] == [(0, b"kept"), (1, b"new")]


KEPT = 3 * SETTINGS.segment_bytes


@given(
    st.lists(
        st.tuples(st.sampled_from("xyz"), st.integers(1, 40), st.sampled_from([None, 0, 1, 2, 3, 4, 5])), max_size=60
    )
)
def test_bounded_recording_keeps_the_end_and_repeats_no_offset(writes: list[tuple[str, int, int | None]]) -> None:
    """Now and then the node dies after some of the operations of a write; what it had not written may come again."""
    disk, written = Disk(), dict.fromkeys("xyz", 0)
    tap = reopened(disk, KEPT)
    for stream, count, done in writes:
        operations = tap.write(StreamKind.POOL, stream, [bytes(100)] * count, 1)
        disk.perform(operations[:done])
        if done is None:
            tap.synced(tap.written)
            written[stream] += count
            survey, _ = disk.survey("tap")
            assert len(survey.endings) <= 3
            assert len(disk.files) - (HEADS in disk.files) <= 3 + 1, "beside them, what a roll that was cut short began"
        else:
            tap = reopened(disk, KEPT)
            assert written[stream] <= tap.head(stream) <= written[stream] + count
            written[stream] = tap.head(stream)
    tap = reopened(disk, KEPT)
    for stream in "xyz":
        assert tap.head(stream) == written[stream]
        offsets = [row["offset"] for row in rows(disk) if row["topic"] == stream]
        assert offsets == list(range(written[stream] - len(offsets), written[stream]))


def test_stream_without_retained_rows_continues_its_offsets() -> None:
    """Wherever among the operations of a write the node dies."""
    disk = Disk()
    tap = reopened(disk, 1)
    disk.perform(tap.write(StreamKind.POOL, "rare", [b"once"] * 7, 1))
    for _ in range(20):
        for operation in tap.write(StreamKind.POOL, "busy", [bytes(100)] * 40, 1):
            disk.perform((operation,))
            assert reopened(disk, 1).head("rare") == 7
        tap.synced(tap.written)
    assert "rare" not in {row["topic"] for row in rows(disk)}
    assert len(disk.files) == SEGMENTS_MIN + 1


def test_recording_without_a_bound_keeps_everything() -> None:
    disk = Disk()
    tap = reopened(disk)
    for _ in range(20):
        disk.perform(tap.write(StreamKind.POOL, "busy", [bytes(100)] * 40, 1))
    assert len(rows(disk)) == 800
    assert HEADS not in disk.files


def test_damaged_heads_file_is_named() -> None:
    with pytest.raises(StorageError, match=r"tap\.heads .* is damaged .* remove it"):
        Tap(SETTINGS, random.Random(1), heads=b"{")
