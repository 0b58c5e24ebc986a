"""Decides whether the conditions of a write hold, and stores what is necessary to decide it.

    next offset     compared with the head of the stream, which is always known
    key unchanged   compared with the last offset of the key: tracked from the first such condition on a stream
    tag unchanged   as for keys
    fence           compared with the highest token that was seen under the name

A pack whose conditions do not hold is not written, and uses up its request id: if another copy of it was still under
way, that copy would otherwise be written later, when the conditions may hold, although its writer was told that they do
not. Knows neither packs nor lanes.

A condition about a key or a tag that cannot be decided is refused with a reason of its own, never granted. It starts or
continues the tracking of the stream all the same, so that the next one can be decided.

Invariants: a key or tag that is not tracked has no message at or after the floor. The state is bounded by
`STREAMS_MAX`, `KEYS_MAX` and `FENCES_MAX`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TypeAlias, assert_never

from msgspec.structs import replace

from chaplain.journal.messages.conditions import Condition, Fence, KeyUnchanged, NextOffset, TagUnchanged
from chaplain.journal.model.conditions import ConditionsRecord, FenceState, TrackedStream
from chaplain.journal.model.reason import Reason
from chaplain.journal.model.set_hash import MappingHash
from chaplain.segment.layout import Bytes
from chaplain.segment.pack import keys_from_the_end
from chaplain.units import SECOND_NS

STREAMS_MAX = 64
"""Bound of the streams whose keys are tracked. At the bound, a new one replaces the one that was unused for longest."""
STREAM_SPARE_NS = 24 * 3600 * SECOND_NS
"""The least time for which the replaced stream had no condition on a key. If there is none, the condition is refused.
"""
KEYS_MAX = 4096
"""Bound of the tracked keys and tags of one stream. At the bound, the one with the lowest offset is forgotten, and the
floor rises behind that offset.
"""
FENCES_MAX = 1024
"""Bound of fences. At the bound, a new one replaces the one that was unused for the longest time."""
FENCE_SPARE_NS = 30 * 24 * 3600 * SECOND_NS
"""The least time for which the replaced fence was unused. If there is none, the condition is refused."""
_DIGEST_BYTES = 16

FenceKey: TypeAlias = tuple[str, str]
"""Stream, and name of the fence."""
Ruling: TypeAlias = tuple[Reason, int]
"""APPLIED; or the reason for the refusal, and the offset that violates the condition."""
_HOLDS: Ruling = (Reason.APPLIED, 0)


class ConditionsState:
    """Tracked keys and fences. Only `ConditionsDraft.commit` changes them."""

    def __init__(self, record: ConditionsRecord | None = None) -> None:
        record = record or ConditionsRecord()
        self.streams = {one.stream: one for one in record.streams}
        self.fences: dict[FenceKey, FenceState] = {(one.stream, one.name): one for one in record.fences}
        self.streams_hash: MappingHash[str, TrackedStream] = MappingHash(lambda: self.streams)
        self.fences_hash: MappingHash[FenceKey, FenceState] = MappingHash(lambda: self.fences)
        for stream in record.streams:
            self.streams_hash.add((stream.stream, stream))
        for key, fence in self.fences.items():
            self.fences_hash.add((key, fence))

    def export(self) -> ConditionsRecord:
        streams = tuple(self.streams[name] for name in sorted(self.streams))
        return ConditionsRecord(streams, tuple(self.fences[key] for key in sorted(self.fences)))


class ConditionsDraft:
    """The changes that one message would make."""

    def __init__(self, base: ConditionsState) -> None:
        self._base = base
        self._streams: dict[str, TrackedStream | None] = {}
        """Changed streams, whose keys are copies that this draft may change; None for a stream that is forgotten."""
        self._fences: dict[FenceKey, FenceState | None] = {}

    # Keys.

    def tracks(self, stream: str) -> bool:
        return self._stream(stream) is not None

    def _stream(self, stream: str) -> TrackedStream | None:
        return self._streams[stream] if stream in self._streams else self._base.streams.get(stream)

    def _all_streams(self) -> list[TrackedStream]:
        return [one for one in ({**self._base.streams, **self._streams}).values() if one is not None]

    def _own(self, stream: str) -> TrackedStream:
        """The tracked stream, with keys that this draft may change."""
        own = self._streams.get(stream)
        if own is None:
            before = self._base.streams[stream]
            own = self._streams[stream] = replace(before, keys={**before.keys})
        return own

    def track(self, stream: str, head: int, now_ns: int) -> TrackedStream | None:
        """The tracked stream. Tracking begins at the head; None if no other stream can be tracked."""
        if not self.tracks(stream):
            if not self._make_room(now_ns):
                return None
            self._streams[stream] = TrackedStream(stream, head, now_ns, {})
        tracked = self._streams[stream] = replace(self._own(stream), used_ns=now_ns)
        return tracked

    def _make_room(self, now_ns: int) -> bool:
        tracked = self._all_streams()
        if len(tracked) < STREAMS_MAX:
            return True
        oldest = min(tracked, key=lambda one: (one.used_ns, one.stream))
        if now_ns - oldest.used_ns < STREAM_SPARE_NS:
            return False
        self._streams[oldest.stream] = None
        return True

    def written(self, stream: str, raw: Bytes, base: int) -> None:
        """Note the keys of a pack that was written to the stream at this offset."""
        if not self.tracks(stream):
            return
        own = self._own(stream)
        last: dict[bytes, int] = {}
        floor = own.floor
        for number, key in keys_from_the_end(raw):  # so that a large pack costs no more than its latest keys
            if key in last:
                continue
            if len(last) >= KEYS_MAX:
                floor = base + number + 1
                own.keys.clear()
                break
            last[key] = base + number
        for key, offset in reversed(last.items()):
            _put_last(own.keys, _digest_of_key(key), offset)
        self._streams[stream] = _bounded(replace(own, floor=floor))

    def tagged(self, stream: str, tags: Sequence[str], offset: int) -> None:
        """Note the tags of a request whose last message has this offset."""
        if tags and self.tracks(stream):
            own = self._own(stream)
            for tag in tags:
                _put_last(own.keys, _digest_of_tag(tag), offset)
            self._streams[stream] = _bounded(own)

    # Fences.

    def fence(self, key: FenceKey) -> FenceState | None:
        return self._fences[key] if key in self._fences else self._base.fences.get(key)

    def put_fence(self, fence: FenceState, now_ns: int) -> bool:
        """Store a fence. False if no other one can be stored."""
        key = (fence.stream, fence.name)
        if self.fence(key) is None:
            present = [one for one in ({**self._base.fences, **self._fences}).values() if one is not None]
            if len(present) >= FENCES_MAX:
                oldest = min(present, key=lambda one: (one.used_ns, one.stream, one.name))
                if now_ns - oldest.used_ns < FENCE_SPARE_NS:
                    return False
                self._fences[oldest.stream, oldest.name] = None
        self._fences[key] = fence
        return True

    def commit(self) -> None:
        for name, stream in self._streams.items():
            self._base.streams_hash.note(name)
            if stream is None:
                self._base.streams.pop(name, None)
            else:
                self._base.streams[name] = stream
        for key, fence in self._fences.items():
            self._base.fences_hash.note(key)
            if fence is None:
                self._base.fences.pop(key, None)
            else:
                self._base.fences[key] = fence


def _put_last(keys: dict[bytes, int], digest: bytes, offset: int) -> None:
    """Store the last offset of a key, which is the highest one: it moves to the end."""
    keys.pop(digest, None)
    keys[digest] = offset


def _bounded(tracked: TrackedStream) -> TrackedStream:
    """Forget the keys with the lowest offsets beyond the bound."""
    floor = tracked.floor
    while len(tracked.keys) > KEYS_MAX:
        floor = max(floor, tracked.keys.pop(next(iter(tracked.keys))) + 1)
    return replace(tracked, floor=floor)


def check(draft: ConditionsDraft, stream: str, head: int, conditions: Sequence[Condition], now_ns: int) -> Ruling:
    """The ruling on a write to this stream, whose next offset is `head`.

    Fences come first: a token counts as seen even if another condition does not hold.
    """
    ordered = sorted(conditions, key=lambda one: not isinstance(one, Fence))
    for condition in ordered:
        ruling = _check(draft, stream, head, condition, now_ns)
        if ruling[0] is not Reason.APPLIED:
            return ruling
    return _HOLDS


def _check(draft: ConditionsDraft, stream: str, head: int, condition: Condition, now_ns: int) -> Ruling:
    match condition:
        case NextOffset():
            return _HOLDS if condition.offset == head else (Reason.CONFLICT, head)
        case KeyUnchanged():
            tracked = draft.track(stream, head, now_ns)
            return _check_last(tracked, head, _digest_of_key(condition.key), condition.since)
        case TagUnchanged():
            tracked = draft.track(stream, head, now_ns)
            return _check_last(tracked, head, _digest_of_tag(condition.tag), condition.since)
        case Fence():
            return _check_fence(draft, stream, head, condition, now_ns)
        case _:
            assert_never(condition)


def _check_last(tracked: TrackedStream | None, head: int, digest: bytes, since: int) -> Ruling:
    """The ruling on a condition about the last offset of a key or tag."""
    if tracked is None:
        return Reason.CONDITIONS_FULL, head
    if since > head:
        return Reason.CONFLICT, head  # nobody can have read so far
    last = tracked.keys.get(digest)
    if last is not None:
        return _HOLDS if last < since else (Reason.CONFLICT, last)
    return _HOLDS if since >= tracked.floor else (Reason.OUTSIDE_WINDOW, tracked.floor)


def _check_fence(draft: ConditionsDraft, stream: str, head: int, condition: Fence, now_ns: int) -> Ruling:
    known = draft.fence((stream, condition.name))
    if known is not None and condition.token < known.token:
        return Reason.STALE_TOKEN, head
    stored = draft.put_fence(FenceState(stream, condition.name, condition.token, now_ns), now_ns)
    return _HOLDS if stored else (Reason.CONDITIONS_FULL, head)


def _digest_of_key(key: bytes) -> bytes:
    return sha256(b"key\0" + key).digest()[:_DIGEST_BYTES]


def _digest_of_tag(tag: str) -> bytes:
    return sha256(b"tag\0" + tag.encode()).digest()[:_DIGEST_BYTES]
