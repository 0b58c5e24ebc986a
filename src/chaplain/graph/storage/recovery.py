"""Builds the streams again from what the disk holds.

Decides what of it can be used: an event whose parents were damaged waits as an orphan and is fetched again if it must
be. Invariant: whatever was shown as read before is read again.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.graph.context import GraphContext
from chaplain.graph.messages.event import Event
from chaplain.graph.storage.store import GraphStore
from chaplain.graph.storage.stored import FloorMark, ReadMark, StoredEvent
from chaplain.graph.stream import Stream
from chaplain.segment.layout import Bytes


def recover(common: GraphContext, store: GraphStore, segments: Iterable[tuple[int, Bytes]]) -> list[Event]:
    """Fill the streams. Returns events that could not be added."""
    stranded: list[Event] = []
    for found in store.recover(segments):
        name = found.event.stream if isinstance(found, StoredEvent) else found.stream
        stream = common.stream(name)
        if stream is None:
            continue
        match found:
            case StoredEvent():
                stream.offset = max(stream.offset, found.offset + 1)
                if not _load(stream, found):
                    stranded.append(found.event)
            case ReadMark():
                _mark(stream, found)
            case FloorMark():
                stream.model.raise_floor(max(stream.model.floor, found.height))
    for stream in common.streams.values():
        _confirm(common, stream)
    return stranded


def _load(stream: Stream, kept: StoredEvent) -> bool:
    if stream.model.find(kept.event.id) >= 0:
        return True  # written again after a cut
    if stream.model.missing(kept.event) or stream.model.problem(kept.event):
        return False
    stream.load(kept)
    return True


def _mark(stream: Stream, mark: ReadMark) -> None:
    for event_id, confirms in mark.ids:
        number = stream.model.find(event_id)
        if number < 0:
            continue
        for one in stream.model.mark_read(number):
            stream.unread.counts[one] = max(stream.unread.counts[one], confirms)
            stream.unread.masks.pop(one, None)


def _confirm(common: GraphContext, stream: Stream) -> None:
    """What is here is on our disk; and an event confirms its parents in its author's name."""
    for number in list(stream.unread.masks):
        stream.unread.confirm(common.identity.key, number, 1 << 30)
        author = stream.model.author_of(number)
        if author in common.members:
            for parent in stream.model.parents_of(number):
                stream.unread.confirm(author, parent, 1 << 30)
    stream.enough.update(dict.fromkeys(stream.unread.recount(common.read_at)))
