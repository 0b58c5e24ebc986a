"""The messages that a worker of a single or keyed consumer has delivered and acknowledged.

Decides which messages of the stream are delivered here, from which offset to read, and which acknowledgement to send.
Knows neither the connection nor the application. All messages of the stream pass through `offer`, in order of offsets.

Invariants: a message is delivered only if the worker holds its slot. The messages of a slot are delivered in order. An
acknowledgement covers no message that was not acknowledged or that `offer` did not see.
"""

from __future__ import annotations

from collections import deque
from zlib import crc32

from chaplain.client.protocol.consumers.state import ConsumerState
from chaplain.journal.messages.consumer import Acknowledge, Release

PAIR_GAP = 1000
"""A slot is acknowledged by itself if it is this many offsets ahead of the others."""


def slot_of(key: bytes | None, offset: int, slots: int) -> int:
    """The slot of a message. Messages without a key have no order, so they are spread over all slots."""
    return offset % slots if key is None else crc32(key) % slots


class _Slot:
    """A slot that this worker holds."""

    __slots__ = ("acknowledged", "behind", "moving", "next", "outstanding", "paused_until_s", "sent", "since")

    def __init__(self, position: int, since: int) -> None:
        self.since = since
        self.next = position
        """The next offset to deliver."""
        self.sent = position
        """The offset up to which acknowledgements were sent."""
        self.outstanding: deque[int] = deque()
        """Delivered offsets that are not acknowledged, and those behind them."""
        self.acknowledged: set[int] = set()
        """Acknowledged offsets behind one that is not."""
        self.behind = True
        """The reader has passed messages that are still to be delivered."""
        self.moving = False
        """The slot is meant for another worker: nothing more is delivered from it."""
        self.paused_until_s = 0.0


class SlotProgress:
    """The slots of one worker."""

    def __init__(self, name: str, token: int, slots: int) -> None:
        self.name = name
        self.token = token
        self._count = slots
        self._held: dict[int, _Slot] = {}
        self._epoch = 0
        self._read_next = 0
        """Every message below this offset was seen or does not matter."""
        self._reading = False
        self._fresh = False
        """Something was acknowledged since the last acknowledgement was sent."""
        self.lost = 0
        """Delivered messages whose slot was lost before they were acknowledged."""

    @property
    def holds(self) -> bool:
        return bool(self._held)

    @property
    def in_hand(self) -> bool:
        """True if the application has messages that it has not acknowledged."""
        return any(held.outstanding for held in self._held.values())

    def assign(self, state: ConsumerState) -> None:
        """Apply the cluster's decision about the slots of this worker."""
        self._epoch = state.epoch
        for number, (position, holder, target, since) in enumerate(state.slots):
            held = self._held.get(number)
            if held is not None and (holder != self.token or held.since != since):
                self.lost += len(held.outstanding) - len(held.acknowledged)
                del self._held[number]
                held = None
            if holder != self.token:
                continue
            if held is None:
                held = self._held[number] = _Slot(position, since)
            held.moving = target != self.token
            held.sent = max(held.sent, position)

    def refused(self, state: ConsumerState) -> None:
        """An acknowledgement may not have counted: send again what the state does not contain."""
        self.assign(state)
        for number, held in self._held.items():
            held.sent = state.slots[number][0]
        self._fresh = True

    # Reading.

    def seek(self, now_s: float) -> int | None:
        """The offset at which the reader must start or continue; None if it may read on."""
        ready = [held for held in self._held.values() if not held.moving and held.paused_until_s <= now_s]
        if not self._reading:
            return min((held.next for held in ready), default=None)
        behind: list[int] = []
        for held in ready:
            if held.behind and held.next >= self._read_next:
                held.behind = False  # the reader is not there yet
            elif held.behind:
                behind.append(held.next)
        return min(behind, default=None)

    def seeked(self, offset: int, now_s: float) -> None:
        """The reader continues at this offset."""
        self._reading, self._read_next = True, offset
        for held in self._held.values():
            if held.next >= offset and held.paused_until_s <= now_s:
                held.behind = False

    def stopped(self) -> None:
        """There is no reader."""
        self._reading = False

    def next_seek_s(self) -> float | None:
        """When a paused slot continues."""
        return min((held.paused_until_s for held in self._held.values() if held.behind), default=None)

    def offer(self, key: bytes | None, offset: int) -> tuple[int, int] | None:
        """Return the slot of this message and the slot's epoch if the worker delivers the message here, otherwise
        None.
        """
        self._read_next = offset + 1
        number = slot_of(key, offset, self._count) if self._count > 1 else 0
        held = self._held.get(number)
        if held is None or offset < held.next or held.behind:
            return None
        if held.moving:
            held.behind = True
            return None
        held.next = offset + 1
        if offset in held.acknowledged:
            held.acknowledged.discard(offset)
            return None  # it was acknowledged before an earlier message of the slot was returned
        held.outstanding.append(offset)
        return number, held.since

    # Acknowledgements.

    def acknowledge(self, number: int, since: int, offset: int) -> bool:
        """The application has processed a message. False if its slot was lost."""
        held = self._held.get(number)
        if held is None or held.since != since or offset not in held.outstanding or offset in held.acknowledged:
            return False
        held.acknowledged.add(offset)
        self._drop_front(held)
        self._fresh = True
        return True

    def _drop_front(self, held: _Slot) -> None:
        while held.outstanding and held.outstanding[0] in held.acknowledged:
            held.acknowledged.discard(held.outstanding.popleft())

    def pause(self, number: int, since: int, offset: int, until_s: float) -> bool:
        """The application returned a message: after a while, deliver it and the messages after it in its slot again."""
        held = self._held.get(number)
        if held is None or held.since != since or offset not in held.outstanding:
            return False
        while held.outstanding and held.outstanding[-1] >= offset:
            held.outstanding.pop()
        held.next, held.behind, held.paused_until_s = offset, True, until_s
        return True

    def together(self, number: int, since: int, offset: int) -> Acknowledge | None:
        """The acknowledgement of one message, to be sent with statements; None if its slot was lost, or if an earlier
        message of the slot is not acknowledged.
        """
        held = self._held.get(number)
        if held is None or held.since != since or not held.outstanding or held.outstanding[0] != offset:
            return None
        return Acknowledge(self.name, self.token, self._epoch, 0, ((number, offset + 1),))

    def _done(self, held: _Slot) -> int:
        """Everything of this slot below the returned offset is acknowledged."""
        if held.outstanding:
            return held.outstanding[0]
        return held.next if held.behind else max(held.next, self._read_next)

    @property
    def pending(self) -> bool:
        """True if something was acknowledged since the last acknowledgement was sent."""
        return self._fresh

    def report_skipped(self) -> None:
        """Send the position even if nothing was acknowledged: the messages after the last acknowledged one may all be
        for other workers, or a former worker may have processed them.
        """
        if self._held and min(map(self._done, self._held.values())) > min(held.sent for held in self._held.values()):
            self._fresh = True

    def to_send(self, final: bool = False) -> Acknowledge | None:
        """The acknowledgement to send now. With `final`, it covers every slot as far as possible."""
        if not self._held:
            self._fresh = False
            return None
        done = {number: self._done(held) for number, held in self._held.items()}
        through = min(done.values())
        sent = min(held.sent for held in self._held.values())
        if not self._fresh and not final:
            return None
        gap = 1 if final else PAIR_GAP
        pairs = tuple(
            (number, offset)
            for number, offset in sorted(done.items())
            if offset - max(through, self._held[number].sent) >= gap
        )
        self._fresh = False
        if through <= sent and not pairs:
            return None
        for held in self._held.values():
            held.sent = max(held.sent, through)
        for number, offset in pairs:
            self._held[number].sent = offset
        return Acknowledge(self.name, self.token, self._epoch, through, pairs)

    def to_release(self) -> Release | None:
        """The slots that the cluster wants to move to other workers, and whose delivered messages are all
        acknowledged.
        """
        free = tuple(sorted(number for number, held in self._held.items() if held.moving and not held.outstanding))
        return Release(self.name, self.token, free) if free else None
