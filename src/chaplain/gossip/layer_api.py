"""The interface between a node and a layer above gossip.

Such a layer exchanges parcels with the same layer on other nodes, and answers client requests. The node routes inputs
and effects. In class attributes of `LayerCore`, a layer declares the inputs and effects that it has in addition to
those of every layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from chaplain.core import (
    Drained,
    Halt,
    Persist,
    Persisted,
    PersistFailed,
    Report,
    Requested,
    Settled,
    Stopping,
    Withdrawn,
    Woken,
)
from chaplain.gossip.events import GossipParcel, MemberChanged
from chaplain.link.events import Meet
from chaplain.mesh.events import Entered, Exited, Whisper
from chaplain.rights import RequiredRight

LayerInput: TypeAlias = (
    Woken
    | Drained
    | Stopping
    | Entered
    | Exited
    | MemberChanged
    | GossipParcel
    | Requested
    | Withdrawn
    | Persisted
    | PersistFailed
)
"""Tickets are the layer's own. `Entered` and `Exited` are about nodes, never about clients."""
LayerEffect: TypeAlias = Whisper | Meet | Settled | Persist | Report | Halt


class LayerCore(ABC):
    """A layer above gossip, as the node sees it."""

    host_requests: ClassVar[tuple[type, ...]] = ()
    """Types of effects that only this layer sends to the host."""
    host_answers: ClassVar[tuple[type, ...]] = ()
    """Types of the host's answers to them."""
    follows_journal: ClassVar[bool] = False
    """Whether the layer reads what the journal has agreed. Then it gets `Drained` whenever the journal had a step.
    Other layers get it only after steps of their own.
    """
    serves_removed_nodes: ClassVar[bool] = False
    """Whether the layer has to agree on continuing without a removed node. Then it exchanges parcels with that node
    until the session ends.
    """
    counts: Counter[str]

    @abstractmethod
    def step(self, now_ns: int, event: Any, /) -> list[Any]:
        """Process a `LayerInput` or an answer of the host. Returns `LayerEffect`s and requests to the host."""

    @abstractmethod
    def deadline(self) -> int | None:
        """When the layer wants `Woken`, if at all."""

    @abstractmethod
    def status(self) -> dict[str, object]:
        """The layer's part of `cluster status`."""

    def gauges(self) -> dict[str, float]:
        """Measurements that rise and fall, for monitoring."""
        return {}

    def required_right(self, body: bytes, /) -> RequiredRight | None:
        """The right that a client needs for a request with this body; None if it needs none."""
        return None

    def name_nodes(self, name_of: Callable[[int], int], /) -> None:  # noqa: B027
        """Set the mapping from node identifiers to node ids, which the configuration stream may change."""
