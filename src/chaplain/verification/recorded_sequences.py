"""Verifies the sequence streams that a node recorded (`record.sequence`): each record continues the one before.

    record    one run of events of one publisher; its header has the stream's hash before and after the run

A run is intact if its hash follows from the hash before it, its number, publisher and values. It continues the run
before it if the numbers are consecutive, and if its hash before equals that run's hash after. A recording may lack
events: a node leaves out events while its disk is too slow, or while it is down. The numbers then show a gap, which is
no break. A stream may begin with 1 again, in a new history of the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.segment.layout import NO_HASH
from chaplain.segment.pack import decode_pack
from chaplain.segment.record import Kind, Record
from chaplain.sequence.messages.entry import values_hash
from chaplain.verification.access import access_errors
from chaplain.verification.batches import Damage
from chaplain.verification.header_scan import Gap, ScannedRecord, scan_headers
from chaplain.verification.record_reader import RecordReader
from chaplain.verification.violations import Break

RECORDED_LOG = "sequence"
KIND = "sequence chain"


class RecordedResult(Frozen, frozen=True):
    breaks: list[Break]
    events: int
    streams: int


class _End(Frozen, frozen=True):
    number: int
    """The next number."""
    hash: bytes


def verify_recorded(folders: Sequence[Path]) -> RecordedResult:
    """Verify the recordings in folders of segments. Raises `Inaccessible` if a file cannot be read."""
    breaks: list[Break] = []
    events = 0
    streams: set[str] = set()
    for folder in folders:
        name = folder.resolve().parent.name
        node = int(name.removeprefix("node-")) if name.removeprefix("node-").isdecimal() else 0
        checker = _Checker(node)
        with access_errors(), RecordReader() as reader:
            for found in _records(folder, reader):
                checker.take(found)
        breaks += checker.breaks
        events += checker.events
        streams |= checker.ends.keys()
    return RecordedResult(breaks, events, len(streams))


def _records(folder: Path, reader: RecordReader) -> Iterator[Record | Damage]:
    for step in scan_headers(folder, RECORDED_LOG):
        match step:
            case Gap():
                yield Damage(step.reason, file=step.file)
            case ScannedRecord(kind=Kind.BATCH):
                yield reader.read([(step.path, step.position, step.size_bytes)], "")
            case _:
                pass


class _Checker:
    """The state of one node's recordings."""

    def __init__(self, node: int) -> None:
        self._node = node
        self.ends: dict[str, _End] = {}
        self.breaks: list[Break] = []
        self.events = 0

    def take(self, found: Record | Damage) -> None:
        if isinstance(found, Damage):
            stream = found.head.stream if found.head is not None else ""
            self._break(stream, self._next(stream), "damaged", "a record that can be read", found.reason)
            for lost in [stream] if stream else list(self.ends):
                self.ends.pop(lost, None)
            return
        try:
            pack = decode_pack(bytes(found.body))
        except Malformed as error:
            self._break(found.stream, self._next(found.stream), "malformed", "a pack", str(error))
            self.ends.pop(found.stream, None)
            return
        stream, first = found.stream, pack.first_id
        keys = pack.keys or (None,)
        publisher = (keys[0] or b"").decode("ascii", "replace")
        self.events += len(pack.values)
        before = self._before(stream, first)
        if before is not None and found.previous_hash != before:
            self._break(stream, first, KIND, before.hex(), found.previous_hash.hex())
        real = NO_HASH if set(keys) != {keys[0]} else _hash_of(found.previous_hash, first, publisher, pack.values)
        if found.chain_hash != real:
            self._break(stream, first, KIND, found.chain_hash.hex(), real.hex())
        self.ends[stream] = _End(first + len(pack.values), found.chain_hash)

    def _before(self, stream: str, first: int) -> bytes | None:
        """The hash that a run must continue; None if events before it were not recorded."""
        end = self.ends.get(stream)
        if first == 1:
            return NO_HASH
        if end is not None and first < end.number:
            self._break(stream, first, "repeated", f"number {end.number}", f"number {first}")
        return end.hash if end is not None and end.number == first else None

    def _next(self, stream: str) -> int:
        end = self.ends.get(stream)
        return 0 if end is None else end.number

    def _break(self, stream: str, number: int, kind: str, expected: str, found: str) -> None:
        self.breaks.append(Break(stream, number, kind, expected, found, node=self._node))


def _hash_of(before: bytes, first: int, publisher: str, values: Sequence[bytes]) -> bytes:
    try:
        return values_hash(before, first, publisher, values)
    except ValueError:
        return NO_HASH  # this name of a publisher was never recorded
