"""Where the agreed records of a log lie: from the heads of records alone, bodies are not read.

Decides which record of which file belongs to which offsets of a stream. Goes on where it stopped when asked again.
Refuses to judge bodies: whoever reads one checks it, and takes a copy if it is damaged.

A node that finds a message damaged writes it again behind the end
(docs/decisions/repair-of-damaged-records.md). Such a copy is noted with the place
of the first, or is listed in its place if damage hides where that was.

Invariants: a place is listed once it is agreed, and once only; places are in the order of the log, and none is before
its beginning, as the checkpoint beside it says.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from chaplain.core import Frozen
from chaplain.errors import Malformed, Missing
from chaplain.journal.snapshots.checkpoint import HEAD_BYTES as CHECKPOINT_HEAD_BYTES
from chaplain.journal.snapshots.checkpoint import first_of
from chaplain.segment.files import OpenSegment, list_segments
from chaplain.segment.read import Agreement
from chaplain.segment.record import HEAD_BYTES, STREAM_BYTES_MAX, Head, Kind, Record, decode_body, decode_head
from chaplain.segment.scan import ScanVerdict, scan

LOG = "journal"
_HEAD_MOST = HEAD_BYTES + STREAM_BYTES_MAX + 1


class RecordPlace(Frozen, frozen=True):
    """One agreed record: where it is, and what its head says."""

    path: str
    position: int
    size_bytes: int
    kind: int
    index: int
    stream: str
    first_offset: int
    count: int
    timestamp_ns: int
    copies: tuple[tuple[str, int, int], ...] = ()
    """File, position and size of the same record, where it was written again."""


class _Again:
    """What was passed over of a message."""

    def __init__(self) -> None:
        self.places: dict[int, list[RecordPlace]] = {}
        """Of each part."""
        self._parts = 0

    def add(self, record: Record, place: RecordPlace) -> None:
        self._parts = max(self._parts, record.parts)
        self.places.setdefault(record.part, []).append(place)

    @property
    def whole(self) -> bool:
        return len(self.places) == self._parts


class Index:
    """The places of one folder's log."""

    def __init__(self, folder: Path | str, log: str = LOG) -> None:
        self._folder = Path(folder)
        self._log = log
        self.agreement = Agreement()
        self._pending: dict[int, tuple[Record, RecordPlace]] = {}
        self._again: dict[tuple[int, bytes], _Again] = {}
        """By index and hash: what was passed over, until it is known what it is good for."""
        self._first = 0
        """With which message the log begins, once that was asked."""
        self._sequence = -1
        self._position = 0
        self.places: list[RecordPlace] = []
        self.streams: dict[str, list[RecordPlace]] = {}
        self.damaged: list[tuple[str, int]] = []
        """Files and positions at which no record could be read though others follow."""

    @property
    def last(self) -> int:
        """The last agreed message; 0 if there is none."""
        return self.places[-1].index if self.places else 0

    def refresh(self) -> None:
        self._first = 0
        files = [file for file in list_segments(self._folder, self._log) if file.sequence >= self._sequence]
        for number, file in enumerate(files):
            try:
                segment = OpenSegment(file.path)
            except (FileNotFoundError, Malformed):
                if number + 1 < len(files):
                    self.damaged.append((str(file.path), 0))
                continue
            with segment:
                if segment.header.sequence != file.sequence:
                    continue
                if file.sequence != self._sequence:
                    self._sequence, self._position = file.sequence, segment.header.records_start
                for head in self._heads(segment, str(file.path), final=number + 1 < len(files)):
                    self._take(head, str(file.path))
        self._mend()

    def _heads(self, segment: OpenSegment, path: str, final: bool) -> Iterator[Head]:
        while True:
            try:
                head = decode_head(segment.read(self._position, _HEAD_MOST), segment.header.identity, self._position)
            except Malformed:
                if not self._skip(segment, path, final):
                    return
                continue
            if head.record.kind in (Kind.END, Kind.ROLL):
                return
            self._position = head.end
            yield head

    def _skip(self, segment: OpenSegment, path: str, final: bool) -> bool:
        """Go behind a stretch in which nothing is valid; False if nothing valid follows, or it may be half written."""
        whole = segment.read(segment.header.base, segment.header.size_bytes)
        found = scan(whole, segment.header, self._position).findings
        gap = next((one for one in found if one.position == self._position), None)
        if gap is None or gap.end == gap.position or not (final or gap.verdict is ScanVerdict.DAMAGED):
            return False
        self.damaged.append((path, self._position))
        self._position = gap.end
        return True

    def _take(self, head: Head, path: str) -> None:
        record = head.record
        if record.kind != Kind.MARK:
            self._pending[id(record)] = record, _place(head, path)
        for shown in self.agreement.feed(record):
            _, place = self._pending.pop(id(shown))
            self._skip_to(place.index)
            self.places.append(place)
            if place.kind == Kind.BATCH:
                self.streams.setdefault(place.stream, []).append(place)
        if self.agreement.passed >= 0:
            self._keep_passed()

    def _keep_passed(self) -> None:
        """What was not shown and will not be: written again, replaced, or without the message behind to confirm it."""
        for key, (record, place) in list(self._pending.items()):
            if record.index <= self.agreement.passed:
                self._again.setdefault((record.index, record.chain_hash), _Again()).add(record, place)
                del self._pending[key]

    def _mend(self) -> None:
        """From behind, since each message is named by the one after it."""
        for index, chain in sorted(self._again, reverse=True):
            again = self._again[index, chain]
            first = self._at(index)
            if first is not None:
                if first.chain_hash == chain:
                    self._note(index, [copy for part in again.places.values() for copy in part])
                del self._again[index, chain]
            elif again.whole and (behind := self._at(index + 1)) is not None and behind.previous_hash == chain:
                self._list(again)
                del self._again[index, chain]

    def _at(self, index: int) -> Record | None:
        """What the head of a listed message says. Few are asked for, and the hashes of all would fill memory."""
        at = bisect_left(self.places, index, key=lambda place: place.index)
        if at == len(self.places) or self.places[at].index != index:
            return None
        place = self.places[at]
        with suppress(Malformed, FileNotFoundError), OpenSegment(place.path) as segment:
            return decode_head(segment.read(place.position, _HEAD_MOST), segment.header.identity, place.position).record
        return None

    def _note(self, index: int, copies: list[RecordPlace]) -> None:
        for places in (self.places, *[self.streams.get(stream, []) for stream in {copy.stream for copy in copies}]):
            at = bisect_left(places, index, key=lambda place: place.index)
            while at < len(places) and places[at].index == index:
                places[at] = _with_copies(places[at], copies)
                at += 1

    def _list(self, again: _Again) -> None:
        """The message was never shown: damage hid it where it stood first, or the one behind it."""
        for _, (place, *copies) in sorted(again.places.items()):
            whole = _with_copies(place, copies)
            insort(self.places, whole, key=lambda place: place.index)
            if whole.kind == Kind.BATCH:
                insort(self.streams.setdefault(whole.stream, []), whole, key=lambda place: place.first_offset)

    def _skip_to(self, index: int) -> None:
        """A node that takes a checkpoint from others goes on behind it, in the file that it wrote to before.

        What is there from before is no part of its log any more. That is asked only if something is missing, and then
        what was said is true: the checkpoint is on disk before anything that follows it.
        """
        if not self.last < index - 1 or not self.places:
            return
        if not self._first:
            self._first = _beginning(self._folder / f"{self._log}.checkpoint")
        if self.last < self._first:
            self.places, self.streams = [], {}


def _beginning(checkpoint: Path) -> int:
    """The first message of a log; 1, if no checkpoint says otherwise."""
    try:
        with checkpoint.open("rb") as stream:
            return first_of(stream.read(CHECKPOINT_HEAD_BYTES))
    except (OSError, Malformed):
        return 1


def _place(head: Head, path: str) -> RecordPlace:
    record = head.record
    return RecordPlace(
        path,
        head.position,
        head.end - head.position,
        record.kind,
        record.index,
        record.stream,
        record.first_offset,
        record.count,
        record.timestamp_ns,
    )


def _with_copies(place: RecordPlace, copies: list[RecordPlace]) -> RecordPlace:
    same = [copy for copy in copies if _named(copy) == _named(place)]
    told = tuple((copy.path, copy.position, copy.size_bytes) for copy in same)
    return msgspec.structs.replace(place, copies=place.copies + told) if same else place


def _named(place: RecordPlace) -> tuple[int, int, str, int, int]:
    return place.kind, place.index, place.stream, place.first_offset, place.count


def node_folders(cluster: str | Path) -> list[Path]:
    """The segments of a cluster's nodes, as far as they are on this machine; of its folder, or of its file."""
    where = Path(cluster)
    return sorted((where.parent if where.is_file() else where).glob("node-*/segments"))


def open_index(folder: str, cluster: str, log: str = LOG) -> Index:
    """The index of a folder, or of that node of a cluster on this machine which has got furthest."""
    folders = [Path(folder)] if folder else node_folders(cluster)
    indexes = [Index(one, log) for one in folders if one.is_dir()]
    if not indexes:
        raise Missing(f"there are no segments in {folder or cluster}: give a node's segments as path")
    for index in indexes:
        index.refresh()
    return max(indexes, key=lambda index: index.last)


def read_places(places: list[RecordPlace]) -> Iterator[Record]:
    """The records at these places, checked. Raises `Malformed` for one that is not what it was, nor are its copies."""
    path = ""
    with ExitStack() as opened:
        for place in places:
            try:
                if place.path != path:
                    opened.close()
                    path = ""
                    segment, path = opened.enter_context(OpenSegment(place.path)), place.path
                record = read_place(segment, place)
            except (Malformed, FileNotFoundError):
                copy = _read_copy(place)
                if copy is None:
                    raise
                record = copy
            yield record


def _read_copy(place: RecordPlace) -> Record | None:
    for path, position, size_bytes in place.copies:
        copy = msgspec.structs.replace(place, path=path, position=position, size_bytes=size_bytes)
        with suppress(Malformed, FileNotFoundError), OpenSegment(path) as segment:
            return read_place(segment, copy)
    return None


def read_place(segment: OpenSegment, place: RecordPlace) -> Record:
    data = segment.read(place.position, place.size_bytes)
    head = decode_head(data, segment.header.identity, place.position)
    record = head.record
    if (record.index, record.stream, record.first_offset) != (place.index, place.stream, place.first_offset):
        raise Malformed(f"{place.path}: another record stands at {place.position}")
    return _with_body(record, decode_body(data, head))


def _with_body(record: Record, body: memoryview) -> Record:
    fields = {name: getattr(record, name) for name in Record.__struct_fields__}
    return Record(**{**fields, "body": body})
