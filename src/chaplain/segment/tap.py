"""A tap: what a node saw of streams that nobody votes on, written down so that Spark can read it.

Decides offsets: dense in each stream, in the order in which this node saw the messages. Refuses to promise anything: a
tap is one node's own record, not agreed with anybody, and what was not on disk when the node died is not in it. Its
records are settled, so readers show them as they are. If it is told how much to keep, its oldest segments go; how far
each stream had come is written down before that, since nothing else may be left of it.

Invariant: the offsets of a stream go on where the log on disk ends; no offset is given twice.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from enum import IntEnum

import msgspec

from chaplain.core import Operation, Replace
from chaplain.errors import StorageError
from chaplain.segment.layout import Bytes
from chaplain.segment.pack import Pack, encode_pack
from chaplain.segment.record import Flag, Head, Kind, Record
from chaplain.segment.settings import LogSettings
from chaplain.segment.survey import Surveyor
from chaplain.segment.write import SegmentWriter


class StreamKind(IntEnum):
    """What the column `kind` says of rows that come from a tap; a journal's rows have their message type there."""

    POOL = 16
    EVENT = 17
    SEQUENCE = 18
    GRAPH = 19
    ROWS = 20


SEGMENTS_MIN = 2
"""The one that is written to, and the one before it, which has the last records if nothing is in the other yet."""


def heads_name(log: str) -> str:
    """The file beside a log that says how far its streams had come when segments last went."""
    return f"{log}.heads"


class Tap:
    """Appends to one log. `segments` are the files it has already, by sequence, `heads` is what `heads_name` holds."""

    def __init__(
        self,
        settings: LogSettings,
        chance: random.Random,
        segments: Iterable[tuple[int, Bytes]] = (),
        *,
        heads: bytes | None = None,
        keep_bytes: int = 0,
    ) -> None:
        """With `keep_bytes`, as many segments as fit in them are kept, and two at least; otherwise all of them."""
        self._settings = settings
        self._segments_max = max(SEGMENTS_MIN, keep_bytes // settings.segment_bytes) if keep_bytes else 0
        self._heads: dict[str, int] = {}
        self._index = 0
        surveyor = Surveyor(settings.log)
        held: list[Head] = []
        for sequence, data in segments:
            found = surveyor.add(sequence, data)
            held += [head for head, _ in found.records] if found is not None else []
        survey = surveyor.finish()
        for head in held:
            if survey.cut is None or head.position < survey.cut.position:
                self._see(head.record)
        # An end in doubt is cut: a tap promised nothing.
        self._writer = SegmentWriter(settings, chance, survey, cut_doubt=True)
        self._first = survey.endings[0].header.sequence if survey.endings else 0
        for stream, offset in _decoded(settings.log, heads).items():
            self.begin(stream, offset)

    def head(self, stream: str) -> int:
        """The offset of the stream's next message."""
        return self._heads.get(stream, 0)

    def begin(self, stream: str, offset: int) -> None:
        """Nothing before this offset is here: the stream goes on from there, if it has not got further."""
        self._heads[stream] = max(offset, self.head(stream))

    def write(
        self,
        kind: StreamKind,
        stream: str,
        values: Sequence[bytes],
        timestamp_ns: int,
        *,
        keys: Sequence[bytes | None] | None = None,
        writer: int = 0,
        first_id: int = 0,
    ) -> tuple[Operation, ...]:
        """The operations that put these messages behind the stream's last one.

        `writer` and `first_id` become the rows' `client_id` and `client_message_id`.
        """
        assert values, "a record holds at least one message"
        pack = Pack(writer, first_id, tuple(values), None if keys is None else tuple(keys), message_type=kind)
        record = Record(
            Kind.BATCH,
            encode_pack(pack),
            index=self._index + 1,
            first_offset=self.head(stream),
            timestamp_ns=timestamp_ns,
            count=len(values),
            stream=stream,
            flags=Flag.SETTLED,
        )
        operations = self._writer.append([record])
        self._see(record)
        return operations + self._dropping() if self._segments_max else operations

    def _dropping(self) -> tuple[Operation, ...]:
        """The operations that make the log small enough again."""
        beyond = range(self._first, self._writer.header.sequence + 1 - self._segments_max)
        if not beyond:
            return ()
        self._first = beyond.stop
        file = self._settings.folder + heads_name(self._settings.log)
        drops = [operation for sequence in beyond for operation in self._writer.release(sequence)]
        return (Replace(file, msgspec.json.encode(self._heads)), *drops)

    @property
    def written(self) -> int:
        """How far the log goes; give it to `synced` when it is known to be on disk."""
        return self._writer.written

    def synced(self, position: int) -> None:
        self._writer.synced(position)

    def _see(self, record: Record) -> None:
        if record.kind == Kind.BATCH:
            assert record.first_offset >= self.head(record.stream), "an offset is given once"
            self._heads[record.stream] = record.first_offset + record.count
            self._index = record.index


def _decoded(log: str, heads: bytes | None) -> dict[str, int]:
    try:
        return msgspec.json.decode(heads, type=dict[str, int]) if heads is not None else {}
    except msgspec.MsgspecError as error:
        raise StorageError(
            f"{heads_name(log)} says how far recorded streams had come, and is damaged ({error}): remove it; those of"
            " which nothing is left begin with offset 0 again"
        ) from None
