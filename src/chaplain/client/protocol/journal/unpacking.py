"""Decode packs into messages.

Sizes and ids are computed by column; only the messages that the caller gets become objects. Arbitrary bytes yield
messages or raise `Malformed`.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from chaplain.client.protocol.journal.events import ReadChunk
from chaplain.client.types.journal import Message
from chaplain.errors import Malformed
from chaplain.segment.headers import decode_headers
from chaplain.segment.layout import Octets, octets, padded
from chaplain.segment.pack import HEADERS, KEYS, NOTHING, PackHead, column_count, heads_of

_NO_NAME = ""


def messages_of(stream: str, chunk: ReadChunk, types: Collection[int] | None = None) -> list[Message]:
    """The requested messages of a chunk, in order; with `types`, only messages of these types."""
    view = octets(chunk.packs)
    found: list[Message] = []
    offset = chunk.first_offset
    for head in heads_of(view):
        first, last = max(chunk.start - offset, 0), min(chunk.stop - offset, head.count)
        if first < last and (types is None or head.message_type in types):
            found += _of_pack(stream, chunk, view, head, offset=offset, rows=range(first, last))
        offset += head.count
    if offset < chunk.stop:
        raise Malformed("chunk: contains fewer messages than announced")
    return found


def _of_pack(stream: str, chunk: ReadChunk, view: Octets, head: PackHead, *, offset: int, rows: range) -> list[Message]:
    cells = _columns(chunk.packs, view, head)
    ids, numbers = _numbers(view, head)
    place = (chunk.timestamp_ns, head.client_id)
    rest = (chunk.regime, chunk.index, chunk.ingest_node)
    values = cells[0]
    keys = cells[1] if head.columns & KEYS else None
    headers = cells[-1] if head.columns & HEADERS else None
    return [
        Message(
            stream,
            offset + row,
            None if keys is None else keys[row],
            values[row] or b"",
            {} if headers is None else _headers(headers[row]),
            *place,
            ids[row],
            numbers[row],
            *rest,
            head.message_type,
        )
        for row in rows
    ]


def _columns(raw: bytes, view: Octets, head: PackHead) -> list[list[bytes | None]]:
    """The values, then keys and headers if the pack has them."""
    words = view[head.tables_at : head.data_at].view("<u4")[head.tabled_requests :]
    sizes = words[: head.count * column_count(head.columns)].astype(np.int64)
    missing = sizes == NOTHING
    sizes[missing] = 0
    ends = head.data_at + np.cumsum(sizes)
    if padded(int(ends[-1])) != head.end or missing[: head.count].any():
        raise Malformed("pack: sizes do not add up, or a value is missing")
    starts = (ends - sizes).tolist()
    cells: list[bytes | None] = [raw[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]
    for absent in np.flatnonzero(missing).tolist():
        cells[absent] = None
    return [cells[at : at + head.count] for at in range(0, len(cells), head.count)]


def _numbers(view: Octets, head: PackHead) -> tuple[list[int], list[int]]:
    """For each message: the id of its request, and its position in that request."""
    if not head.tabled_requests:
        return list(range(head.first_id, head.first_id + head.count)), [0] * head.count
    counts = view[head.tables_at : head.data_at].view("<u4")[: head.tabled_requests].astype(np.int64)
    if int(counts.sum()) != head.count:
        raise Malformed("pack: the request table does not add up")
    ids = np.repeat(np.arange(head.first_id, head.first_id + head.requests), counts)
    numbers = np.arange(head.count) - np.repeat(np.cumsum(counts) - counts, counts)
    return ids.tolist(), numbers.tolist()


def _headers(cell: bytes | None) -> dict[str, bytes]:
    """Decode headers. Bytes in another format are returned under the empty name: they must not stop a reader."""
    if cell is None:
        return {}
    try:
        return decode_headers(cell)
    except Malformed:
        return {_NO_NAME: cell}
