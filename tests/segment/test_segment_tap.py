"""What a tap writes is read back as rows, and goes on after a restart."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from segment_stage import Disk

from chaplain.segment import arrow
from chaplain.segment.layout import parse_name
from chaplain.segment.read import agreed
from chaplain.segment.settings import LogSettings
from chaplain.segment.tap import StreamKind, Tap

SETTINGS = LogSettings("tap", 7, segment_bytes=16 * 1024)
COLUMNS = ("value", "key", "topic", "offset", "kind", "client_id", "client_message_id")


def reopened(disk: Disk) -> Tap:
    files = [(parse_name(name)[1], bytes(disk.files[name])) for name in sorted(disk.files)]
    return Tap(SETTINGS, random.Random(len(files)), files)


def rows(disk: Disk) -> list[dict[str, object]]:
    _, records = disk.survey("tap")
    return [row for batch in arrow.to_record_batches(agreed(records), COLUMNS) for row in batch.to_pylist()]


def test_rows_say_who_and_what() -> None:
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
def test_offsets_go_on_over_restarts_and_rolls(writes: list[tuple[str, int, bool]]) -> None:
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


def test_a_torn_end_is_cut_and_its_offsets_are_given_again() -> None:
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
