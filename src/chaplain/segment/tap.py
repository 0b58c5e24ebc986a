"""A tap: one node's record of streams that are not ordered by consensus, for Spark.

It assigns offsets: dense in each stream, in the order in which this node saw the messages. It makes no promise: a tap
is one node's own record, not agreed with other nodes, and messages that were not on disk when the node died are
missing. Its records have the flag SETTLED, so that readers show them at once. With a size limit the oldest segments are
deleted. Before that, the next offset of each stream is written to a file, because the remaining segments may contain no
record of the stream.

Invariant: the offsets of a stream continue where the log on disk ends; no offset is assigned twice.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from enum import IntEnum

import msgspec

from chaplain.core import Operation, Replace
from chaplain.errors import StorageError
from chaplain.segment.layout import NO_HASH, Bytes
from chaplain.segment.pack import Pack, encode_pack
from chaplain.segment.record import Flag, Head, Kind, Record
from chaplain.segment.settings import LogSettings
from chaplain.segment.survey import Surveyor
from chaplain.segment.write import SegmentWriter


class StreamKind(IntEnum):
    """The value of the column `kind` for rows of a tap. Rows of a journal have their message type there."""

    POOL = 16
    EVENT = 17
    SEQUENCE = 18
    GRAPH = 19
    ROWS = 20


SEGMENTS_MIN = 2
"""The current segment and the one before it, which has the last records while the current one is still empty."""


def heads_name(log: str) -> str:
    """The file beside a log with the next offset of each stream at the last deletion of segments."""
    return f"{log}.heads"


class Tap:
    """Appends to one log.

    `segments` are its existing files by sequence; `heads` is the content of the `heads_name` file.
    """

    def __init__(
        self,
        settings: LogSettings,
        chance: random.Random,
        segments: Iterable[tuple[int, Bytes]] = (),
        *,
        heads: bytes | None = None,
        keep_bytes: int = 0,
    ) -> None:
        """With `keep_bytes`, as many segments are retained as fit in it, at least two; otherwise all of them."""
        self._settings = settings
        self._segments_max = max(SEGMENTS_MIN, keep_bytes // settings.segment_bytes) if keep_bytes else 0
        self._heads: dict[str, int] = {}
        self._index = 0
        surveyor = Surveyor(settings.log)
        heads_found: list[Head] = []
        for sequence, data in segments:
            found = surveyor.add(sequence, data)
            heads_found += [head for head, _ in found.records] if found is not None else []
        survey = surveyor.finish()
        for head in heads_found:
            if survey.cut is None or head.position < survey.cut.position:
                self._advance(head.record)
        # An end in doubt is cut, because a tap promises nothing about it.
        self._writer = SegmentWriter(settings, chance, survey, cut_doubt=True)
        self._first = survey.endings[0].header.sequence if survey.endings else 0
        for stream, offset in _decoded(settings.log, heads).items():
            self.begin(stream, offset)

    def head(self, stream: str) -> int:
        """The offset of the stream's next message."""
        return self._heads.get(stream, 0)

    def begin(self, stream: str, offset: int) -> None:
        """The stream has no messages here before this offset. It continues from this offset, unless it has a higher one
        already.
        """
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
        hashes: tuple[bytes, bytes] = (NO_HASH, NO_HASH),
    ) -> tuple[Operation, ...]:
        """Return the operations that append these messages to the stream.

        `writer` and `first_id` become the rows' `client_id` and `client_message_id`. `hashes` are those of the stream
        before and after these messages, if it has any.
        """
        assert values, "a record contains at least one message"
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
            previous_hash=hashes[0],
            chain_hash=hashes[1],
        )
        operations = self._writer.append([record])
        self._advance(record)
        return operations + self._drop_oldest() if self._segments_max else operations

    def _drop_oldest(self) -> tuple[Operation, ...]:
        """Return the operations that reduce the log to its limit."""
        beyond = range(self._first, self._writer.header.sequence + 1 - self._segments_max)
        if not beyond:
            return ()
        self._first = beyond.stop
        file = self._settings.folder + heads_name(self._settings.log)
        drops = [operation for sequence in beyond for operation in self._writer.release(sequence)]
        return (Replace(file, msgspec.json.encode(self._heads)), *drops)

    @property
    def written(self) -> int:
        """The end of the log. The caller passes it to `synced` when it is on disk."""
        return self._writer.written

    def synced(self, position: int) -> None:
        self._writer.synced(position)

    def _advance(self, record: Record) -> None:
        if record.kind == Kind.BATCH:
            assert record.first_offset >= self.head(record.stream), "an offset is assigned once"
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
