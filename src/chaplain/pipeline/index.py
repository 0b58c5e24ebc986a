"""Where the agreed records of a log lie: from the heads of records alone, bodies are not read.

Decides which record of which file belongs to which offsets of a stream. Goes on where it stopped when asked again.
Refuses to judge bodies: whoever reads one checks it.

Invariants: a place is listed once it is agreed, and once only; places are in the order of the log, and none is before
its beginning, as the checkpoint beside it says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from chaplain.core import Frozen
from chaplain.errors import Malformed, Missing
from chaplain.journal.checkpoint import HEAD_BYTES as CHECKPOINT_HEAD_BYTES
from chaplain.journal.checkpoint import first_of
from chaplain.segment.files import OpenSegment, list_segments
from chaplain.segment.read import Agreement
from chaplain.segment.record import HEAD_BYTES, STREAM_BYTES_MAX, Head, Kind, Record, decode_body, decode_head
from chaplain.segment.scan import scan

LOG = "journal"
_HEAD_MOST = HEAD_BYTES + STREAM_BYTES_MAX + 1


class Place(Frozen, frozen=True):
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


class Index:
    """The places of one folder's log."""

    def __init__(self, folder: Path | str, log: str = LOG) -> None:
        self._folder = Path(folder)
        self._log = log
        self.agreement = Agreement()
        self._pending: dict[int, Place] = {}
        self._first = 0
        """With which message the log begins, once that was asked."""
        self._sequence = -1
        self._position = 0
        self.places: list[Place] = []
        self.streams: dict[str, list[Place]] = {}
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

    def _heads(self, segment: OpenSegment, path: str, final: bool) -> Iterator[Head]:
        while True:
            try:
                head = decode_head(segment.read(self._position, _HEAD_MOST), segment.header.identity, self._position)
            except Malformed:
                if not final or not self._skip(segment, path):
                    return
                continue
            if head.record.kind in (Kind.END, Kind.ROLL):
                return
            self._position = head.end
            yield head

    def _skip(self, segment: OpenSegment, path: str) -> bool:
        """Go behind a stretch in which nothing is valid; False if nothing valid follows."""
        whole = segment.read(segment.header.base, segment.header.size_bytes)
        later = [head.position for head, _ in scan(whole, segment.header, self._position).records]
        if not later:
            return False
        self.damaged.append((path, self._position))
        self._position = later[0]
        return True

    def _take(self, head: Head, path: str) -> None:
        record = head.record
        if record.kind != Kind.MARK:
            self._pending[id(record)] = _place(head, path)
        for shown in self.agreement.feed(record):
            place = self._pending.pop(id(shown))
            self._skip_to(place.index)
            self.places.append(place)
            if place.kind == Kind.BATCH:
                self.streams.setdefault(place.stream, []).append(place)

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


def _place(head: Head, path: str) -> Place:
    record = head.record
    return Place(
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


def open_index(folder: str, cluster: str, log: str = LOG) -> Index:
    """The index of a folder, or of that node of a cluster on this machine which has got furthest."""
    folders = [Path(folder)] if folder else sorted(Path(cluster).glob("node-*/segments"))
    indexes = [Index(one, log) for one in folders if one.is_dir()]
    if not indexes:
        raise Missing(f"there are no segments in {folder or cluster}: give a node's segments as path")
    for index in indexes:
        index.refresh()
    return max(indexes, key=lambda index: index.last)


def read_places(places: list[Place]) -> Iterator[Record]:
    """The records at these places, checked. Raises `Malformed` for one that is not what it was."""
    opened: OpenSegment | None = None
    path = ""
    try:
        for place in places:
            if opened is None or place.path != path:
                if opened is not None:
                    opened.__exit__()
                opened, path = OpenSegment(place.path), place.path
            yield read_place(opened, place)
    finally:
        if opened is not None:
            opened.__exit__()


def read_place(segment: OpenSegment, place: Place) -> Record:
    data = segment.read(place.position, place.size_bytes)
    head = decode_head(data, segment.header.identity, place.position)
    record = head.record
    if (record.index, record.stream, record.first_offset) != (place.index, place.stream, place.first_offset):
        raise Malformed(f"{place.path}: another record stands at {place.position}")
    return _with_body(record, decode_body(data, head))


def _with_body(record: Record, body: memoryview) -> Record:
    fields = {name: getattr(record, name) for name in Record.__struct_fields__}
    return Record(**{**fields, "body": body})
