"""Recorded sequences: intact ones, gaps, and every change of a record."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from chaplain.segment.layout import NO_HASH
from chaplain.segment.settings import LogSettings
from chaplain.segment.tap import StreamKind, Tap
from chaplain.sequence.messages.entry import values_hash
from chaplain.verification.recorded_sequences import verify_recorded
from simulator.world.disk import apply


class Recording:
    """What a node records of streams, run by run, and the files that it writes."""

    def __init__(self) -> None:
        self._files: dict[str, bytearray] = {}
        self._tap = Tap(LogSettings("sequence", StreamKind.SEQUENCE, folder="", free_max=0), Random(1))
        self._ends: dict[str, tuple[int, bytes]] = {}

    def publish(self, stream: str, publisher: str, *values: bytes, recorded: bool = True) -> None:
        number, before = self._ends.get(stream, (1, NO_HASH))
        after = values_hash(before, number, publisher, values)
        self._ends[stream] = number + len(values), after
        if recorded:
            self.write(stream, publisher, values, number, (before, after))

    def write(
        self, stream: str, publisher: str, values: tuple[bytes, ...], number: int, hashes: tuple[bytes, bytes]
    ) -> None:
        keys = (publisher.encode(),) * len(values)
        kind = StreamKind.SEQUENCE
        for operation in self._tap.write(kind, stream, values, 1, keys=keys, first_id=number, hashes=hashes):
            apply(self._files, operation)

    def begin_anew(self) -> None:
        self._ends = {}

    def folder(self, folder: Path) -> Path:
        segments = folder / "node-2" / "segments"
        segments.mkdir(parents=True, exist_ok=True)
        for name, data in self._files.items():
            (segments / name).write_bytes(data)
        return segments


def breaks(recording: Recording, tmp_path: Path) -> list[tuple[str, int, str]]:
    return [(one.stream, one.offset, one.kind) for one in verify_recorded([recording.folder(tmp_path)]).breaks]


@pytest.fixture
def recording() -> Recording:
    recording = Recording()
    for number in range(5):
        recording.publish("ticks", "ann", b"%d" % number, b"again")
        recording.publish("tocks", "bob", b"%d" % number)
    return recording


def test_intact_recording_has_no_breaks(recording: Recording, tmp_path: Path) -> None:
    assert breaks(recording, tmp_path) == []
    found = verify_recorded([recording.folder(tmp_path)])
    assert (found.events, found.streams) == (15, 2)


def test_events_that_were_left_out_and_a_new_history_are_no_breaks(recording: Recording, tmp_path: Path) -> None:
    recording.publish("ticks", "ann", b"left out", recorded=False)
    recording.publish("ticks", "ann", b"after the gap")
    recording.begin_anew()
    recording.publish("ticks", "ann", b"first of a new history")
    recording.publish("ticks", "ann", b"second")
    assert breaks(recording, tmp_path) == []


@pytest.mark.parametrize("field", ["value", "publisher", "number", "hash"])
def test_changed_run_is_found(recording: Recording, tmp_path: Path, field: str) -> None:
    """An attacker repairs the digest of the pack and the checksums, because these are part of every new record."""
    number, before = recording._ends["ticks"]
    values, publisher = (b"value",), "ann"
    after = values_hash(before, number, publisher, values)
    recording._ends["ticks"] = number + 1, after
    match field:
        case "value":
            values = (b"other",)
        case "publisher":
            publisher = "bob"
        case "number":
            number += 1
        case _:
            after = bytes(32)
    recording.write("ticks", publisher, values, number, (before, after))
    recording.publish("ticks", "ann", b"after it")
    assert {kind for _, _, kind in breaks(recording, tmp_path)} <= {"sequence chain", "repeated"}
    assert ("ticks", number, "sequence chain") in breaks(recording, tmp_path)


def test_run_that_was_changed_with_its_own_hashes_is_found_by_the_next_run(
    recording: Recording, tmp_path: Path
) -> None:
    number, before = recording._ends["ticks"]
    recording._ends["ticks"] = number + 1, values_hash(before, number, "ann", [b"value"])
    recording.write("ticks", "ann", (b"other",), number, (before, values_hash(before, number, "ann", [b"other"])))
    recording.publish("ticks", "ann", b"after it")
    assert breaks(recording, tmp_path) == [("ticks", number + 1, "sequence chain")]


def test_flipped_octet_is_reported_as_damage(recording: Recording, tmp_path: Path) -> None:
    segments = recording.folder(tmp_path)
    [file] = segments.glob("sequence-*.segment")
    data = bytearray(file.read_bytes())
    data[data.index(b"again") + 2] ^= 1
    file.write_bytes(data)
    found = verify_recorded([segments]).breaks
    assert [(one.kind, one.node) for one in found] == [("damaged", 2)]
