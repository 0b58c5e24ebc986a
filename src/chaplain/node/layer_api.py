"""The interface between a node and a layer above gossip.

Such a layer exchanges parcels with the same layer on other nodes, and answers client requests.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from chaplain.gossip.layer_api import UpperInput


class UpperCore(Protocol):
    """A layer above gossip. Besides the methods below, a layer may have these attributes:

    - `errands` and `answers`: the types of effects that only this layer sends to the host, and of the host's answers;
    - `wants`: for requests about streams, returns the right that each needs; the node refuses requests of clients that
      lack it;
    - `follows_journal`: the layer reads what the journal has agreed. It gets `Drained` whenever the journal had a step;
      other layers get it only after steps of their own;
    - `name_nodes`: the node passes it a function from identifier to node id, which the configuration stream may change;
    - `patient`: the layer has to agree on continuing without a removed node. It exchanges parcels with that node until
      the session ends.
    """

    counts: Counter[str]

    def step(self, now_ns: int, event: UpperInput, /) -> list[Any]:
        """Return `UpperEffect`s and the layer's own errands."""
        ...

    def deadline(self) -> int | None: ...

    def status(self) -> dict[str, object]:
        """The layer's part of `cluster status`."""
        ...
