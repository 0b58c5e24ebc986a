"""The state of named consumers, as execution stores it.

A consumer belongs to one stream. Its workers are identified by tokens, which increase over all consumers and are never
reused. In the modes `single` and `keyed`, the keys of the stream are divided into slots. A slot has one holder, and a
position: everything below it is processed. In the mode `queue`, spans are messages that are delivered and not
processed, or that wait to be delivered again.

Positions, leases and acknowledgements are decided at execution (`execution.consumers`). Times are cluster time.
"""

from __future__ import annotations

from typing import TypeAlias

from chaplain.core import Frozen

ConsumerKey: TypeAlias = tuple[str, str]
"""Stream, and name of the consumer."""


class Worker(Frozen, frozen=True, array_like=True):
    """A program that processes messages of the consumer, from its `Join` until it leaves or is removed."""

    token: int
    acl: bytes
    """The identity that joined. Only this identity may use the token."""
    nonce: bytes
    active_ns: int
    """Time of the last command of this worker."""
    challenged_until_ns: int = 0
    """If the worker sends no command until this time, the next challenge removes it; 0 if no worker has challenged
    it.
    """


class Slot(Frozen, frozen=True, array_like=True):
    """A part of the keys."""

    position: int
    """All messages of the slot below this offset are processed."""
    holder: int = 0
    """Token of the worker that processes the slot; 0 if there is none."""
    target: int = 0
    """Token of the worker that gets the slot when the holder releases it."""
    since: int = 0
    """The epoch in which the holder got the slot."""


class Span(Frozen, frozen=True, array_like=True):
    """Consecutive messages of a queue that were delivered and are not processed. Both ends are included."""

    first: int
    last: int
    token: int
    """The worker that has the messages; 0 if they wait for another delivery."""
    due_ns: int
    """When the lease of the worker ends, or when the messages may be delivered again."""
    deliveries: int


class Consumer(Frozen, frozen=True, array_like=True):
    """One named consumer of a stream."""

    stream: str
    name: str
    owner: bytes
    """The identity that created it."""
    mode: int
    lease_ns: int
    max_deliveries: int
    dead_letter: str
    next_offset: int = 0
    """Queue: the first offset that was never delivered."""
    epoch: int = 0
    """Changes with every change of a slot's holder."""
    balanced_ns: int = 0
    """When slots last got another worker as target."""
    dropped: int = 0
    """Queue: dead messages without a dead-letter stream."""
    workers: tuple[Worker, ...] = ()
    slots: tuple[Slot, ...] = ()
    spans: tuple[Span, ...] = ()
    """In the order of their offsets."""

    @property
    def key(self) -> ConsumerKey:
        return self.stream, self.name

    @property
    def position(self) -> int:
        """Everything below this offset is processed."""
        if self.slots:
            return min(slot.position for slot in self.slots)
        return min((span.first for span in self.spans), default=self.next_offset)

    def worker(self, token: int) -> Worker | None:
        return next((worker for worker in self.workers if worker.token == token), None)


class ConsumersRecord(Frozen, frozen=True, array_like=True):
    """The serialized form of all consumers."""

    consumers: tuple[Consumer, ...] = ()
    """In the order of their streams and names."""
    next_token: int = 1
