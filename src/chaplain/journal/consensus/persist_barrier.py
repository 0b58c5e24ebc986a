"""Collects the effects of one step, and delays messages that claim durability until the disk has synced.

Messages without such a claim leave before the step's write starts, so peers process them during the write. All writes
of a step become one `Persist`. A delayed message leaves when everything that was written before it is on disk.

Invariant: no message sent with `send_after_sync` leaves while a write before it is not on disk. Votes and
acknowledgements therefore survive a crash.
"""

from __future__ import annotations

from collections import deque

from chaplain.core import Operation, Persist
from chaplain.journal.consensus.events import ConsensusEffect, SendMessage, SyncProof
from chaplain.journal.messages.consensus import OrderMessage, encode


class PersistBarrier:
    """The only way by which parts of the serializer emit effects, write and send."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._ticket = 0
        self._effects: list[ConsensusEffect] = []
        self._operations: list[Operation] = []
        """Writes of the current step."""
        self._after_sync: list[SendMessage | SyncProof] = []
        """Messages and reports that wait for the writes of the current step."""
        self._syncing: deque[tuple[int, list[SendMessage | SyncProof]]] = deque()
        """Started writes by ticket, each with the messages and reports that wait for it."""

    @property
    def busy(self) -> bool:
        """True while a write is not yet on disk."""
        return bool(self._syncing)

    def emit(self, effect: ConsensusEffect) -> None:
        """Emit an effect in this step."""
        self._effects.append(effect)

    def send_now(self, node: int, message: OrderMessage) -> None:
        """Send a message that claims nothing about this disk."""
        self._effects.append(SendMessage(node, encode(message, self._node)))

    def send_now_to_all(self, nodes: tuple[int, ...], message: OrderMessage) -> None:
        """As `send_now`, to several nodes; the message is encoded once."""
        encoded = encode(message, self._node)
        self._effects += [SendMessage(node, encoded) for node in nodes]

    def send_after_sync(self, node: int, message: OrderMessage) -> None:
        """Send a message that claims durability (a vote, an acknowledgement) after all writes so far are on disk."""
        promise = SendMessage(node, encode(message, self._node))
        if self._operations:
            self._after_sync.append(promise)
        elif self._syncing:
            # This step writes nothing, but an earlier write is under way, and the claim may depend on it.
            self._syncing[-1][1].append(promise)
        else:
            self._effects.append(promise)

    def write(self, operations: tuple[Operation, ...], *proofs: SyncProof) -> None:
        """Add operations to this step's write. When the write is on disk, `persisted` returns `proofs`: the events that
        report this to the parts.
        """
        self._operations += operations
        self._after_sync += proofs

    def persisted(self, ticket: int) -> list[SyncProof]:
        """All writes up to this ticket are on disk: send the messages that waited, and return the proofs."""
        proofs: list[SyncProof] = []
        while self._syncing and self._syncing[0][0] <= ticket:
            for due in self._syncing.popleft()[1]:
                if isinstance(due, SendMessage):
                    self._effects.append(due)
                else:
                    proofs.append(due)
        return proofs

    def finish(self) -> list[ConsensusEffect]:
        """Return the effects of this step and start a new one."""
        effects, self._effects = self._effects, []
        if self._operations:
            self._ticket += 1
            effects.append(Persist(self._ticket, tuple(self._operations)))
            self._syncing.append((self._ticket, self._after_sync))
            self._operations, self._after_sync = [], []
        assert not self._after_sync, "a message waits for a write that this step does not make"
        return effects

    def abandon(self) -> None:
        """The disk failed: discard all messages that wait for it."""
        self._syncing.clear()
        self._operations.clear()
        self._after_sync.clear()
