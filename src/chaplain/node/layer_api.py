"""What a layer above gossip is to its node: it talks with its like on other nodes, and answers clients."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from chaplain.gossip.layer_api import UpperInput


class UpperCore(Protocol):
    """One that wants more of its host than others do has the types of it in `errands`, and of the answers in
    `answers`. One whose requests are about streams says in `wants` which right each takes; it is given none that its
    client has no right to. One that looks at what the journal has agreed says so by `follows_journal`; it gets
    `Drained` whenever the journal had something to do, the others only when they had. One that names nodes to people
    has `name_nodes`, and is given what tells a node's id, which the configuration stream may change, by identifier.
    One that has to agree on doing without a node that was removed is `patient`: it goes on to talk with such a node
    until that one's session ends.
    """

    counts: Counter[str]

    def step(self, now_ns: int, event: UpperInput, /) -> list[Any]:
        """Gives `UpperEffect`s and its own errands."""
        ...

    def deadline(self) -> int | None: ...

    def status(self) -> dict[str, object]:
        """What `cluster status` says of it, beside what others say of the node."""
        ...
