"""An index of a log's committed records by stream and offset, built from record headers only.

The index decides which record of which file contains which offsets of a stream. Each `refresh` continues where the last
one stopped. It does not check bodies: the reader of a record checks its body and reads a copy if the body is damaged.
The exception are VERDICT records, which assign the offsets: their head is enough for a message with one batch that was
applied whole, and otherwise the index reads the body, which is small.

A node that finds a damaged message writes it again at the end of the log (docs/decisions/repair-of-damaged-records.md).
The index lists such a copy beside the original. If damage hides the original, the copy takes its place.

Invariants: each committed record is listed exactly once; records are in the order of the log; none lies before the
beginning of the log, which the checkpoint beside it states.
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
from chaplain.segment.layout import NO_OFFSET
from chaplain.segment.read import Agreement
from chaplain.segment.record import HEAD_BYTES, STREAM_BYTES_MAX, Head, Kind, Record, decode_body, decode_head
from chaplain.segment.scan import ScanVerdict, scan
from chaplain.segment.verdicts import AppliedBatch, applied_part, batches_of, only_batch

LOG = "journal"
_HEAD_MOST = HEAD_BYTES + STREAM_BYTES_MAX + 1


class RecordPlace(Frozen, frozen=True):
    """The place of a committed record, and the fields of its header. A batch has the offset and the count that the
    verdict of its message states.
    """

    path: str
    position: int
    size_bytes: int
    kind: int
    index: int
    stream: str
    first_offset: int
    count: int
    timestamp_ns: int
    part: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    """The octets of the body that were applied, as start and end; empty: all of them."""
    copies: tuple[tuple[str, int, int], ...] = ()
    """File, position and size of further copies of the record."""


class _UnconfirmedRecords:
    """Records of one message version that the agreement did not confirm at their place."""

    def __init__(self) -> None:
        self.places: dict[int, list[RecordPlace]] = {}
        """By number of the part."""
        self._parts = 0

    def add(self, record: Record, place: RecordPlace) -> None:
        self._parts = max(self._parts, record.parts)
        self.places.setdefault(record.part, []).append(place)

    @property
    def whole(self) -> bool:
        return len(self.places) == self._parts


class OffsetIndex:
    """The index of the log in one folder."""

    def __init__(self, folder: Path | str, log: str = LOG) -> None:
        self._folder = Path(folder)
        self._log = log
        self.agreement = Agreement()
        self._pending: dict[int, tuple[Record, RecordPlace]] = {}
        self._message: list[tuple[Record, RecordPlace]] = []
        """The committed records of a message whose last part is not there yet."""
        self._unconfirmed: dict[tuple[int, bytes], _UnconfirmedRecords] = {}
        """By index and hash: unconfirmed records that may be copies of a listed message. `_assign_unconfirmed` decides
        this.
        """
        self._first = 0
        """The first message of the log, according to the checkpoint; 0 until it was read."""
        self._sequence = -1
        self._position = 0
        self.places: list[RecordPlace] = []
        self.streams: dict[str, list[RecordPlace]] = {}
        self.damaged: list[tuple[str, int]] = []
        """Files and positions at which no record can be read although records follow."""

    @property
    def last(self) -> int:
        """The index of the last committed message; 0 if there is none."""
        return self.places[-1].index if self.places else 0

    def refresh(self) -> None:
        """Add the records that were written since the last call."""
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
                    self._add(head, str(file.path))
        self._assign_unconfirmed()

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
        """Skip an unreadable range. Return False if no valid record follows, or if a record may be half written."""
        whole = segment.read(segment.header.base, segment.header.size_bytes)
        found = scan(whole, segment.header, self._position).findings
        gap = next((one for one in found if one.position == self._position), None)
        if gap is None or gap.end == gap.position or not (final or gap.verdict is ScanVerdict.DAMAGED):
            return False
        self.damaged.append((path, self._position))
        self._position = gap.end
        return True

    def _add(self, head: Head, path: str) -> None:
        record = head.record
        if record.kind != Kind.MARK:
            self._pending[id(record)] = record, _place(head, path)
        for confirmed in self.agreement.feed(record):
            self._message.append(self._pending.pop(id(confirmed)))
            if confirmed.part + 1 == confirmed.parts:
                message, self._message = self._message, []
                self._list(message)
        if self.agreement.passed >= 0:
            self._keep_unconfirmed()

    def _list(self, message: list[tuple[Record, RecordPlace]]) -> None:
        """List the records of a committed message."""
        places = _with_offsets([place for _, place in message])
        if places is None:  # the verdict is damaged: the message is listed with a copy, once a node has written one
            self.damaged.append((message[-1][1].path, message[-1][1].position))
            for record, place in message:
                self._add_unconfirmed(record, place)
            return
        self._forget_before_snapshot(places[0].index)
        self.places += places
        for place in places:
            if place.first_offset != NO_OFFSET and place.kind == Kind.BATCH:
                self.streams.setdefault(place.stream, []).append(place)

    def _add_unconfirmed(self, record: Record, place: RecordPlace) -> None:
        key = (record.index, record.chain_hash)
        self._unconfirmed.setdefault(key, _UnconfirmedRecords()).add(record, place)

    def _keep_unconfirmed(self) -> None:
        """Keep records that the agreement will not confirm any more.

        They were written again, were replaced, or the next message, which would confirm them, is unreadable.
        """
        for key, (record, place) in list(self._pending.items()):
            if record.index <= self.agreement.passed:
                self._add_unconfirmed(record, place)
                del self._pending[key]

    def _assign_unconfirmed(self) -> None:
        """Assign unconfirmed records: as copies of a listed message, or as a message that damage had hidden.

        It goes from the last index to the first, because each message states the hash of the one before it.
        """
        for index, chain in sorted(self._unconfirmed, reverse=True):
            unconfirmed = self._unconfirmed[index, chain]
            first = self._record_at(index)
            if first is not None:
                if first.chain_hash == chain:
                    self._add_copies(index, [copy for part in unconfirmed.places.values() for copy in part])
                del self._unconfirmed[index, chain]
            elif (
                unconfirmed.whole
                and (behind := self._record_at(index + 1)) is not None
                and behind.previous_hash == chain
                and self._insert(unconfirmed)
            ):
                del self._unconfirmed[index, chain]

    def _record_at(self, index: int) -> Record | None:
        """Read the header of a listed message. Few are needed, and storing the hashes of all would fill the memory."""
        at = bisect_left(self.places, index, key=lambda place: place.index)
        if at == len(self.places) or self.places[at].index != index:
            return None
        place = self.places[at]
        with suppress(Malformed, FileNotFoundError), OpenSegment(place.path) as segment:
            return decode_head(segment.read(place.position, _HEAD_MOST), segment.header.identity, place.position).record
        return None

    def _add_copies(self, index: int, copies: list[RecordPlace]) -> None:
        for places in (self.places, *[self.streams.get(stream, []) for stream in {copy.stream for copy in copies}]):
            at = bisect_left(places, index, key=lambda place: place.index)
            while at < len(places) and places[at].index == index:
                places[at] = _with_copies(places[at], copies)
                at += 1

    def _insert(self, unconfirmed: _UnconfirmedRecords) -> bool:
        """Insert a message that was never confirmed, because damage hides its first copy or the message after it.
        Return False if no copy of its verdict can be read.
        """
        places = _with_offsets(
            [_with_copies(place, copies) for _, (place, *copies) in sorted(unconfirmed.places.items())]
        )
        for whole in places or ():
            insort(self.places, whole, key=lambda place: place.index)
            if whole.first_offset != NO_OFFSET and whole.kind == Kind.BATCH:
                insort(self.streams.setdefault(whole.stream, []), whole, key=lambda place: place.first_offset)
        return places is not None

    def _forget_before_snapshot(self, index: int) -> None:
        """Forget all records if the node has installed a snapshot and continues its log after it.

        Such a node continues in the file that it wrote to before, but the older records do not belong to its log any
        more. The checkpoint is read only if messages are missing; it is up to date then, because a node writes the
        checkpoint to disk before any message after it.
        """
        if not self.last < index - 1 or not self.places:
            return
        if not self._first:
            self._first = _beginning(self._folder / f"{self._log}.checkpoint")
        if self.last < self._first:
            self.places, self.streams = [], {}


def _beginning(checkpoint: Path) -> int:
    """Return the index of the log's first message according to the checkpoint; 1 without a checkpoint."""
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
        record.part,
    )


def _with_offsets(places: list[RecordPlace]) -> list[RecordPlace] | None:
    """The places of all records of a message, its batches with the offsets of its verdict. Return None if the verdict
    cannot be read.
    """
    last = places[-1]
    if last.kind != Kind.VERDICT:
        return places
    head = Record(Kind.VERDICT, first_offset=last.first_offset, count=last.count)
    only = only_batch(head)
    batches: tuple[AppliedBatch, ...] = () if only is None else (only,)
    if only is None and any(place.kind == Kind.BATCH for place in places):
        try:
            (verdict,) = read_places([last])
            batches = batches_of(verdict)
        except (Malformed, FileNotFoundError):
            return None
    applied = {batch.part: batch for batch in batches}
    return [
        msgspec.structs.replace(place, first_offset=batch.first_offset, count=batch.count, ranges=batch.ranges)
        if place.kind == Kind.BATCH and (batch := applied.get(place.part)) is not None
        else place
        for place in places
    ]


def _with_copies(place: RecordPlace, copies: list[RecordPlace]) -> RecordPlace:
    same = [copy for copy in copies if _named(copy) == _named(place)]
    found = tuple((copy.path, copy.position, copy.size_bytes) for copy in same)
    return msgspec.structs.replace(place, copies=place.copies + found) if same else place


def _named(place: RecordPlace) -> tuple[int, int, str, int]:
    return place.kind, place.index, place.stream, place.part


def node_folders(cluster: str | Path) -> list[Path]:
    """Return the folders of segments of a cluster's nodes on this machine, given its folder or its `cluster.toml`."""
    where = Path(cluster)
    return sorted((where.parent if where.is_file() else where).glob("node-*/segments"))


def open_index(folder: str, cluster: str, log: str = LOG) -> OffsetIndex:
    """Return the index of a folder, or of the local node of a cluster that has the longest log."""
    folders = [Path(folder)] if folder else node_folders(cluster)
    indexes = [OffsetIndex(one, log) for one in folders if one.is_dir()]
    if not indexes:
        raise Missing(f"there are no segments in {folder or cluster}: give a node's segments as path")
    for index in indexes:
        index.refresh()
    return max(indexes, key=lambda index: index.last)


def read_places(places: list[RecordPlace]) -> Iterator[Record]:
    """Read and check the records at these places. Raises `Malformed` if a record and all its copies are damaged."""
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
    if (record.index, record.stream, record.part) != (place.index, place.stream, place.part):
        raise Malformed(f"{place.path}: there is another record at {place.position}")
    whole = _with_body(record, decode_body(data, head))
    if record.kind != Kind.BATCH:
        return whole
    return applied_part(whole, AppliedBatch(place.part, place.first_offset, place.count, place.ranges))


def _with_body(record: Record, body: memoryview) -> Record:
    fields = {name: getattr(record, name) for name in Record.__struct_fields__}
    return Record(**{**fields, "body": body})
