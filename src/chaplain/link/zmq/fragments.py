"""Splits long frames into pieces that ZeroMQ may allocate for an unauthenticated peer, and reassembles them.

ZeroMQ allocates a whole frame as soon as a peer announces its size, even before authentication, and its high-water
marks count frames, not bytes. So the sockets refuse frames above `PIECE_BYTES_MAX`, and a longer frame is sent as
several: an octet for first, middle or last, then the bytes. A frame that fits is sent unchanged.
Byte table and hex example: docs/protocol/fragments.md.

Invariants: the pieces of one channel are reassembled in order or not at all; incomplete frames never exceed
`FRAME_BYTES_MAX` on a channel, nor `bytes_max` in all.
"""

from __future__ import annotations

from collections import Counter

from chaplain.core import Channel
from chaplain.wire.limits import FRAME_BYTES_MAX

PIECE_BYTES_MAX = 64 * 1024
"""Octets that ZeroMQ may allocate for one connection before authentication, and for one queued message afterwards."""

FIRST, MIDDLE, LAST = b"\xf1", b"\xf2", b"\xf3"
_MARKS = (FIRST, MIDDLE, LAST)
_MARK_OCTETS = frozenset(mark[0] for mark in _MARKS)
_STEP = PIECE_BYTES_MAX - 1


def is_piece(message: bytes) -> bool:
    return message != b"" and message[0] in _MARK_OCTETS


def cut(frame: bytes) -> list[bytes]:
    """The messages that carry the frame, in order."""
    if len(frame) > FRAME_BYTES_MAX:
        raise ValueError(f"a frame holds at most {FRAME_BYTES_MAX} octets, not {len(frame)}")
    if is_piece(frame):
        raise ValueError(f"no frame begins with {frame[0]:#04x}: that octet marks a piece")
    if len(frame) <= PIECE_BYTES_MAX:
        return [frame]
    view = memoryview(frame)
    starts = range(0, len(frame), _STEP)
    marks = [FIRST, *[MIDDLE] * (len(starts) - 2), LAST]
    return [b"".join((mark, view[at : at + _STEP])) for mark, at in zip(marks, starts, strict=True)]


def carried_bytes(message: bytes) -> int:
    """The number of octets of its frame that a message carries."""
    return len(message) - is_piece(message)


class Reassembler:
    """Reassembles the pieces of all channels."""

    def __init__(self, counts: Counter[str], bytes_max: int) -> None:
        self._counts = counts
        self._bytes_max = bytes_max
        self._waiting_bytes = 0
        self._waiting: dict[Channel, list[memoryview]] = {}
        self._sizes: Counter[Channel] = Counter()

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    def take(self, channel: Channel, message: bytes | memoryview) -> bytes | None:
        """Return the frame that this message completes, if any. Most messages are whole frames.

        A piece is copied once, when its frame is complete: a caller that has it in a buffer passes a view.
        """
        if not message or message[0] not in _MARK_OCTETS:
            return bytes(message)
        if message[:1] == FIRST:
            self.forget(channel)
            self._waiting[channel] = []
        elif channel not in self._waiting:
            self._counts["link_pieces_stray"] += 1
            return None
        self._add(channel, message)
        if message[:1] != LAST or channel not in self._waiting:
            return None
        frame = b"".join(self._waiting[channel])
        self.forget(channel)
        return frame

    def forget(self, channel: Channel) -> None:
        self._waiting.pop(channel, None)
        self._waiting_bytes -= self._sizes.pop(channel, 0)
        assert self._waiting_bytes >= 0

    def _add(self, channel: Channel, message: bytes | memoryview) -> None:
        # The mark counts, too: otherwise empty pieces would make the list grow without any counted bytes.
        self._waiting[channel].append(memoryview(message)[1:])
        self._sizes[channel] += len(message)
        self._waiting_bytes += len(message)
        if self._sizes[channel] > FRAME_BYTES_MAX + FRAME_BYTES_MAX // _STEP + 1:
            self._counts["link_frames_too_long"] += 1
            self.forget(channel)
        while self._waiting_bytes > self._bytes_max:
            self._counts["link_frames_crowded_out"] += 1
            self.forget(next(iter(self._waiting)))
