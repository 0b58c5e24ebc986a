"""The graph's log on disk: one sequence of segments for all streams of a node.

An event is a message of a BATCH record, the format of all chaplain logs. The value is the content, the key is the id,
and the only header contains the bytes before the content. So the exact event can be reassembled, and Spark sees rows. A
READ record lists events that became read, together with all their ancestors. A FLOOR record contains the height below
which a stream was pruned. Byte tables: docs/protocol/graph.md.

Decides the record layout, and which records are valid at start-up. This log has no quorum: events that were cut off or
damaged are fetched again from peers. Invariant: the store returns positions only for records in `written`, and never
for records that were cut off at start-up.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from chaplain.core import Operation
from chaplain.errors import Malformed
from chaplain.graph.messages.event import ID_BYTES, SignedEvent, decode
from chaplain.graph.settings import GraphSettings
from chaplain.graph.storage.stored import EventPosition, FloorMark, ReadMark, StoredEvent
from chaplain.segment.header import read_headers
from chaplain.segment.headers import decode_headers, encode_headers
from chaplain.segment.layout import Bytes, octets
from chaplain.segment.pack import Pack, decode_pack, encode_pack
from chaplain.segment.record import Flag, Kind, Record, decode_body, decode_head, size_of
from chaplain.segment.scan import Found, ScanVerdict
from chaplain.segment.settings import LogSettings
from chaplain.segment.survey import Survey, Surveyor
from chaplain.segment.tap import StreamKind
from chaplain.segment.write import SegmentWriter

LOG_KIND = 3
"""The log kind in the segment header."""
READ, FLOOR = 0x0301, 0x0302
"""Record kinds of the graph."""
HEADER = "event"
BATCH_EVENTS_MAX = 1024
BATCH_BYTES_MAX = 256 * 1024
_BESIDE_BYTES = 80
"""Bytes that an event takes in a record in addition to its own: id and sizes."""
_READ_BYTES = ID_BYTES + 1


class GraphStore:
    """Writes the log. Call `recover` with the segments on disk before the first write."""

    def __init__(self, settings: GraphSettings, chance: random.Random) -> None:
        self._settings = LogSettings(
            settings.log, LOG_KIND, settings.folder, segment_bytes=settings.segment_bytes, free_max=0
        )
        self._chance = chance
        self._writer = SegmentWriter(self._settings, chance)
        self._index = 0
        self.ends: list[tuple[int, int, int]] = []
        """Existing segments: sequence number, first position, end position."""
        self.damage: list[str] = []
        """Damaged positions found at start-up."""

    @property
    def written(self) -> int:
        return self._writer.written

    def synced(self, position: int) -> None:
        self._writer.synced(position)

    # Writing.

    def batches(
        self, stream: str, offset: int, events: Sequence[SignedEvent], now_ns: int
    ) -> tuple[list[Operation], list[EventPosition]]:
        """The operations that append these events, starting at `offset`, and the position of each event."""
        operations: list[Operation] = []
        places: list[EventPosition] = []
        for run in _runs(events, min(BATCH_BYTES_MAX, self._settings.record_bytes_max // 2)):
            record = self._record(_batch(stream, offset + len(places), run, now_ns))
            operations += self._append(record)
            position = self._writer.written - size_of(record)
            places += [EventPosition(position, index) for index in range(len(run))]
        return operations, places

    def read(self, stream: str, ids: Sequence[tuple[bytes, int]]) -> list[Operation]:
        """The operations that append a READ record: event ids with their confirmation counts."""
        body = b"".join([event_id + bytes((confirms,)) for event_id, confirms in ids])
        return self._append(self._record(Record(READ, body, count=len(ids), stream=stream, flags=Flag.SETTLED)))

    def floor(self, stream: str, height: int) -> list[Operation]:
        """The operations that append a FLOOR record."""
        body = height.to_bytes(4, "big")
        return self._append(self._record(Record(FLOOR, body, count=1, stream=stream, flags=Flag.SETTLED)))

    def _record(self, record: Record) -> Record:
        self._index += 1
        fields = {name: getattr(record, name) for name in Record.__struct_fields__}
        return Record(**{**fields, "index": self._index})

    def _append(self, record: Record) -> list[Operation]:
        operations = list(self._writer.append([record]))
        header = self._writer.header
        if not self.ends or self.ends[-1][0] != header.sequence:
            self.ends.append((header.sequence, header.base, header.end))
        return operations

    def release_below(self, position: int) -> list[Operation]:
        """The operations that delete segments which end at or before this position, except the current one."""
        operations: list[Operation] = []
        while len(self.ends) > 1 and self.ends[0][2] <= position:
            operations += self._writer.release(self.ends.pop(0)[0])
        return operations

    # Start-up.

    def recover(self, segments: Iterable[tuple[int, Bytes]]) -> Iterator[StoredEvent | ReadMark | FloorMark]:
        """The contents of the log in log order. Afterwards the writer appends behind them."""
        surveyor = Surveyor(self._settings.log)
        found: list[Found] = []
        for sequence, data in segments:
            scan = surveyor.add(sequence, data)
            found += scan.records if scan is not None else ()
        survey = surveyor.finish()
        damaged = (finding for finding in survey.findings if finding.verdict is ScanVerdict.DAMAGED)
        self.damage = [f"position {finding.position}: {finding.reason}" for finding in damaged]
        self._writer = SegmentWriter(self._settings, self._chance, survey, cut_doubt=True)
        self.ends = [(one.header.sequence, one.header.base, one.header.end) for one in survey.endings]
        yield from self._believed(found, survey)

    def _believed(self, found: list[Found], survey: Survey) -> Iterator[StoredEvent | ReadMark | FloorMark]:
        """The contents before the cut, if the survey found one."""
        end = survey.cut.position if survey.cut is not None else None
        if end is not None:
            self.ends = [one for one in self.ends if one[1] <= end]
        for head, record in found:
            if end is None or head.position < end:
                self._index = max(self._index, record.index)
                yield from _contents(head.position, record)


def _runs(events: Sequence[SignedEvent], bytes_max: int) -> Iterator[Sequence[SignedEvent]]:
    """Split into runs, one per record: at most `BATCH_EVENTS_MAX` events and `bytes_max` bytes, or one larger event."""
    start, size = 0, 0
    for place, event in enumerate(events):
        if place > start and (place - start >= BATCH_EVENTS_MAX or size + len(event.raw) > bytes_max):
            yield events[start:place]
            start, size = place, 0
        size += len(event.raw) + _BESIDE_BYTES
    if events:
        yield events[start:]


def _batch(stream: str, offset: int, events: Sequence[SignedEvent], now_ns: int) -> Record:
    pack = Pack(
        client_id=0,
        first_id=0,
        values=tuple(event.content for event in events),
        keys=tuple(event.id for event in events),
        headers=tuple(encode_headers({HEADER: event.head}) for event in events),
        message_type=StreamKind.GRAPH,
    )
    return Record(
        Kind.BATCH,
        encode_pack(pack),
        first_offset=offset,
        timestamp_ns=now_ns,
        count=len(events),
        stream=stream,
        flags=Flag.SETTLED,
    )


def _contents(position: int, record: Record) -> Iterator[StoredEvent | ReadMark | FloorMark]:
    """The contents of a record; nothing if it is malformed or of an unknown kind."""
    try:
        if record.kind == Kind.BATCH:
            for index, raw in enumerate(_raws(record.body)):
                yield StoredEvent(decode(raw), EventPosition(position, index), record.first_offset + index)
        elif record.kind == READ:
            yield ReadMark(record.stream, _read_ids(bytes(record.body)))
        elif record.kind == FLOOR:
            yield FloorMark(record.stream, int.from_bytes(bytes(record.body), "big"))
    except Malformed:
        return


def _raws(body: bytes | memoryview) -> list[bytes]:
    pack = decode_pack(body)
    if pack.headers is None:
        raise Malformed("graph record: no heads of events")
    return [
        decode_headers(head or b"").get(HEADER, b"") + content
        for head, content in zip(pack.headers, pack.values, strict=True)
    ]


def _read_ids(body: bytes) -> tuple[tuple[bytes, int], ...]:
    if len(body) % _READ_BYTES:
        raise Malformed("graph record: no whole read marks")
    return tuple((body[at : at + ID_BYTES], body[at + ID_BYTES]) for at in range(0, len(body), _READ_BYTES))


def events_at(files: Iterable[Bytes], places: Sequence[EventPosition]) -> tuple[bytes, ...]:
    """The events at these positions, given segment files: how a host answers `ReadEvents`. Empty bytes if one is
    missing.
    """
    wanted = {place.position: None for place in places}
    bodies: dict[int, memoryview] = {}
    for data in files:
        header = read_headers(data).header
        if header is None:
            continue
        view = octets(data)
        for position in [one for one in wanted if header.base <= one < header.end]:
            try:
                rest = view[position - header.base :]
                head = decode_head(rest, header.identity, position)
                bodies[position] = decode_body(rest, head)
            except Malformed:
                continue
    return events_of(bodies, places)


def events_of(bodies: Mapping[int, memoryview], places: Sequence[EventPosition]) -> tuple[bytes, ...]:
    """The events at these positions, given record bodies by position. Empty bytes if one is missing."""
    records: dict[int, list[bytes]] = {}
    for position, body in bodies.items():
        with suppress(Malformed):
            records[position] = _raws(body)
    empty: list[bytes] = []
    found = [(records.get(place.position, empty), place.index) for place in places]
    return tuple(raws[index] if index < len(raws) else b"" for raws, index in found)
