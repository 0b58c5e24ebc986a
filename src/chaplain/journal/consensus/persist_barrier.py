"""Collects what one step of the serializer says and writes, and holds promises back until their proof has come.

Decides the order of effects: what is told at once goes before what is written, so peers work while our disk does. All
that one step writes is one `Persist`. A promise made in a step leaves with the `Persisted` of everything written
until then.

Invariant: no promise leaves while anything written before it is not on disk.
"""

from __future__ import annotations

from collections import deque

from chaplain.core import Operation, Persist
from chaplain.journal.consensus.events import OrderEffect, SyncProof, Tell
from chaplain.journal.messages.consensus import OrderMessage, encode


class PersistBarrier:
    def __init__(self, node: int) -> None:
        self._node = node
        self._ticket = 0
        self._effects: list[OrderEffect] = []
        self._operations: list[Operation] = []
        self._due: list[Tell | SyncProof] = []
        self._waiting: deque[tuple[int, list[Tell | SyncProof]]] = deque()

    @property
    def busy(self) -> bool:
        """The disk still owes us an answer."""
        return bool(self._waiting)

    def say(self, effect: OrderEffect) -> None:
        self._effects.append(effect)

    def tell(self, node: int, message: OrderMessage) -> None:
        """Binds us to nothing: goes at once."""
        self._effects.append(Tell(node, encode(message, self._node)))

    def tell_all(self, nodes: tuple[int, ...], message: OrderMessage) -> None:
        said = encode(message, self._node)
        self._effects += [Tell(node, said) for node in nodes]

    def promise(self, node: int, message: OrderMessage) -> None:
        """Claims that something is on disk: goes when all that was written so far is."""
        self._owe(Tell(node, encode(message, self._node)))

    def write(self, operations: tuple[Operation, ...], *proofs: SyncProof) -> None:
        self._operations += operations
        self._due += proofs

    def _owe(self, promise: Tell) -> None:
        if self._operations:
            self._due.append(promise)
        elif self._waiting:
            self._waiting[-1][1].append(promise)
        else:
            self._effects.append(promise)

    def persisted(self, ticket: int) -> list[SyncProof]:
        """Everything up to the ticket is on disk: promises go, and these proofs have come."""
        proofs: list[SyncProof] = []
        while self._waiting and self._waiting[0][0] <= ticket:
            for due in self._waiting.popleft()[1]:
                if isinstance(due, Tell):
                    self._effects.append(due)
                else:
                    proofs.append(due)
        return proofs

    def finish(self) -> list[OrderEffect]:
        """The effects of this step."""
        effects, self._effects = self._effects, []
        if self._operations:
            self._ticket += 1
            effects.append(Persist(self._ticket, tuple(self._operations)))
            self._waiting.append((self._ticket, self._due))
            self._operations, self._due = [], []
        assert not self._due, "a promise without a write must not wait for one"
        return effects

    def abandon(self) -> None:
        """The disk failed: nothing that waited for it may ever leave."""
        self._waiting.clear()
        self._operations.clear()
        self._due.clear()
