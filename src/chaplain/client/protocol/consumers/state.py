"""The state of a consumer, as a node describes it (docs/protocol/consumers.md)."""

from __future__ import annotations

from chaplain.core import Frozen


class MemberState(Frozen, frozen=True):
    """A worker of the consumer."""

    token: int
    client: str
    nonce: str
    active: int
    challenged: bool
    slots: int


class ConsumerState(Frozen, frozen=True):
    """One consumer. The fields after `dropped` are there only if the consumer was asked for by its name."""

    stream: str
    name: str
    mode: str
    position: int
    head: int
    lag: int
    workers: int
    leased: int
    waiting: int
    dropped: int
    members: tuple[MemberState, ...] = ()
    owner: str = ""
    lease_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str = ""
    next_offset: int = 0
    epoch: int = 0
    slots: tuple[tuple[int, int, int, int], ...] = ()
    """For each slot: position, holder, target, and the epoch in which the holder got it."""
    spans: tuple[tuple[int, int, int, int, int], ...] = ()
    """First offset, last offset, worker, due time, and deliveries."""
    due: int = 0
    """Queue: when the first message that this worker does not have may be delivered again; 0 if there is none."""

    def member_of(self, nonce: bytes) -> MemberState | None:
        return next((one for one in self.members if one.nonce == nonce.hex()), None)


class ConsumerPage(Frozen, frozen=True):
    """One page of consumers."""

    index: int
    """The last cluster message that the node has executed."""
    timestamp: int
    consumers: tuple[ConsumerState, ...]
    after: tuple[str, str] = ("", "")
