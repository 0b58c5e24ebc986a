"""Rebuilds the streams from the log at start-up.

Decides which stored events can be used: an event whose parents were damaged becomes an orphan, and its parents are
fetched again. Invariant: every event that was shown as read before the restart is read afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.graph.context import GraphContext
from chaplain.graph.messages.event import SignedEvent
from chaplain.graph.storage.store import GraphStore
from chaplain.graph.storage.stored import FloorMark, ReadMark, StoredEvent
from chaplain.graph.stream import Stream
from chaplain.segment.layout import Bytes


def recover(context: GraphContext, store: GraphStore, segments: Iterable[tuple[int, Bytes]]) -> list[SignedEvent]:
    """Fill the streams. Return the events that could not be added."""
    stranded: list[SignedEvent] = []
    for found in store.recover(segments):
        name = found.event.stream if isinstance(found, StoredEvent) else found.stream
        stream = context.stream(name)
        if stream is None:
            continue
        match found:
            case StoredEvent():
                stream.offset = max(stream.offset, found.offset + 1)
                if not _load_event(stream, found):
                    stranded.append(found.event)
            case ReadMark():
                _restore_read_mark(stream, found)
            case FloorMark():
                stream.model.raise_floor(max(stream.model.floor, found.height))
    for stream in context.streams.values():
        _confirm(context, stream)
    return stranded


def _load_event(stream: Stream, kept: StoredEvent) -> bool:
    if stream.model.find(kept.event.id) >= 0:
        return True  # the log contains it twice: it was fetched and written again after the log was cut
    if stream.model.missing(kept.event) or stream.model.problem(kept.event):
        return False
    stream.load(kept)
    return True


def _restore_read_mark(stream: Stream, mark: ReadMark) -> None:
    for event_id, confirms in mark.ids:
        number = stream.model.find(event_id)
        if number < 0:
            continue
        for one in stream.model.mark_read(number):
            stream.unread.counts[one] = max(stream.unread.counts[one], confirms)
            stream.unread.masks.pop(one, None)


def _confirm(context: GraphContext, stream: Stream) -> None:
    """Confirm all recovered events for this node, and their parents for their authors."""
    for number in list(stream.unread.masks):
        stream.unread.confirm(context.identity.key, number, 1 << 30)
        author = stream.model.author_of(number)
        if author in context.members:
            for parent in stream.model.parents_of(number):
                stream.unread.confirm(author, parent, 1 << 30)
    stream.confirmed_enough.update(dict.fromkeys(stream.unread.recount(context.read_at)))
