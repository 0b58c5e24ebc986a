"""Installs a checkpoint from peers when no connected node's log contains the next message any more.

    next message unavailable ──▶ choose a trusted checkpoint ──▶ fetch it piece by piece ──▶ verify its digest
    ──▶ write it to disk ──▶ restart this node from it

Decides which checkpoint is trusted. A checkpoint is trusted if a quorum of other nodes offers it. If no such quorum is
reachable for `patience_ns`, weaker evidence is enough: the statement of one serializer that a quorum confirmed it, or
offers of nodes that form a quorum together with this node. These nodes may be the only remaining ones, and they may
have forgotten earlier confirmations. The installer verifies the octets against the trusted digest, so any node may send
them. It takes all octets from one node. If the state does not fit, it therefore knows which node sent it, and does not
ask that node again. Refuses to know what a state contains.

The restart is deliberate. After it, the node derives all data from the state on its disk, with the same code as at any
other start.

Invariants: a state is installed only if it is ahead of this node's agreed prefix, has the trusted digest and belongs to
this cluster. It is on disk before the node uses it.

Bounds: one checkpoint at a time, of at most `STATE_BYTES_MAX` octets, and one outstanding request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from hashlib import sha256
from typing import NamedTuple, TypeAlias

from chaplain.core import Halt, Persist, Replace, Report
from chaplain.errors import Malformed
from chaplain.journal.events import ToPeer
from chaplain.journal.execution.state import load
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.peer import AskState, SnapshotOffer, StatePiece
from chaplain.journal.model.quorum import Quorum
from chaplain.journal.settings import JournalSettings
from chaplain.journal.snapshots import checkpoint
from chaplain.journal.snapshots.checkpoint import STATE_BYTES_MAX, StateCheckpoint, checkpoint_name
from chaplain.journal.snapshots.checkpointer import Checkpointer
from chaplain.journal.storage.log import ReplicatedLog

TRIES_COUNTED_MAX = 8
"""The wait for an answer grows up to this multiple of `retry_ns`."""
InstallEffect: TypeAlias = ToPeer | Persist | Report | Halt


class _CheckpointId(NamedTuple):
    covers: int
    """Index of the last message that the checkpoint covers."""
    digest: bytes
    size_bytes: int


class SnapshotInstaller:
    """Fetches and installs one checkpoint at a time."""

    def __init__(
        self,
        settings: JournalSettings,
        execution: JournalExecution,
        checkpointer: Checkpointer,
        log: ReplicatedLog,
        *,
        teachers: Callable[[], Quorum] | None = None,
        confirms: Callable[[Collection[int]], bool] | None = None,
    ) -> None:
        """`teachers` returns the voters whose offers count, if they are not the voters of the cluster configuration.
        `confirms` returns whether these nodes are enough for this node to accept a message as agreed.
        """
        self._settings = settings
        self._execution = execution
        self._checkpointer = checkpointer
        self._log = log
        self._quorum = teachers or (lambda: execution.cluster_config.quorum)
        self._target: _CheckpointId | None = None
        self._data = bytearray()
        self._source = 0
        """The node that is asked for the state. Pieces of other nodes are ignored: they would delay the next attempt,
        or spoil the state."""
        self._tries = 0
        """Requests since the last piece. The wait grows with them, so that not every answer of a slow node is late."""
        self._liars: set[int] = set()
        """Nodes that sent a state without the trusted digest."""
        self._accepts_messages_of = confirms or bool
        self._too_few_since_ns: int | None = None
        """The time since which too few serializers offer the next message for this node to accept it."""
        self._needed_since_ns: int | None = None
        """Since when this node needs a checkpoint."""
        self._writing = False
        self.due_ns: int | None = None
        self.effects: list[InstallEffect] = []

    def update(self, now_ns: int) -> None:
        """Look again whether a checkpoint is needed and which one is trusted, after an offer or a change of
        connections.
        """
        if self._writing:
            return
        if not self._is_needed(now_ns):
            patience_ns = self._settings.order.patience_ns
            self.due_ns = None if self._too_few_since_ns is None else self._too_few_since_ns + patience_ns
            self._target, self._needed_since_ns = None, None
            return
        if self._needed_since_ns is None:
            self._needed_since_ns = now_ns
        wanted = self._trusted(now_ns)
        if wanted is not None and wanted != self._target:
            self._target, self._data, self._liars = wanted, bytearray(), set()
            self._ask(now_ns)
        elif self.due_ns is None:
            self.due_ns = now_ns + self._settings.order.retry_ns

    def on_timer(self, now_ns: int) -> None:
        if self.due_ns is None or now_ns < self.due_ns:
            return
        self.due_ns = None
        if self._target is not None and self._is_needed(now_ns) and self._trusted(now_ns) == self._target:
            self._ask(now_ns)
        else:
            self.update(now_ns)

    def _is_needed(self, now_ns: int) -> bool:
        """True if other nodes are ahead and this node cannot get the next message from them.

        That is the case if none of them has the next message, or if only members without a vote have it, whose word
        this node does not accept. It is also the case if too few serializers have had it for `patience_ns` although a
        quorum is connected.

        Where serializers are index-only, only nodes with payloads count: no node may skip a message because its
        payloads cannot be found.
        """
        next_index, copies, cluster_config = (
            self._log.agreed + 1,
            self._execution.copies,
            self._execution.cluster_config,
        )
        usable = (
            offer for node, offer in self._checkpointer.offers.items() if not copies or cluster_config.holds_data(node)
        )
        ahead = [offer for offer in usable if max(offer.index, offer.agreed) >= next_index]
        if not ahead or all(offer.first > next_index for offer in ahead):
            self._too_few_since_ns = None
            return bool(ahead)
        offers = self._checkpointer.offers
        holders = [node for node, offer in offers.items() if offer.first <= next_index <= offer.agreed]
        if self._accepts_messages_of(holders):
            self._too_few_since_ns = None
            return False
        if not any(node in self._quorum().voters for node in holders):
            return True  # only members without a vote have the message, and this node would not accept it from them
        if not self._quorum().reached([*self._checkpointer.offers, self._settings.node]):
            self._too_few_since_ns = None
        elif self._too_few_since_ns is None:
            self._too_few_since_ns = now_ns
        return (
            self._too_few_since_ns is not None and now_ns - self._too_few_since_ns >= self._settings.order.patience_ns
        )

    def _trusted(self, now_ns: int) -> _CheckpointId | None:
        """The latest offered checkpoint that is trusted, if any."""
        offers = self._checkpointer.offers
        offered = {_id_of(offer) for offer in offers.values() if offer.index > self._log.agreed}
        assert self._needed_since_ns is not None
        still_waiting = now_ns - self._needed_since_ns < self._settings.order.patience_ns
        for wanted in sorted(offered, reverse=True):
            alike = [node for node, offer in offers.items() if _id_of(offer) == wanted]
            if wanted.size_bytes > STATE_BYTES_MAX:
                continue
            quorum = self._quorum()
            if quorum.reached(alike):  # without this node: its own state is behind and proves nothing
                return wanted
            # `confirmed` means that a quorum reported the same digest to that serializer earlier.
            vouched = any(offers[node].confirmed and node in quorum.voters for node in alike)
            if not still_waiting and (vouched or quorum.reached([*alike, self._settings.node])):
                return wanted
        return None

    def _ask(self, now_ns: int) -> None:
        """Ask the next node that has the checkpoint for the next piece."""
        assert self._target is not None
        holders = sorted(
            node for node, offer in self._checkpointer.offers.items() if offer.index >= self._target.covers
        )
        if self._liars.issuperset(holders):
            self._liars.clear()
        holders = [node for node in holders if node not in self._liars]
        source = next((node for node in holders if node > self._source), holders[0])
        if source != self._source:
            self._source, self._data = source, bytearray()
        self._tries = min(self._tries + 1, TRIES_COUNTED_MAX)
        self.due_ns = now_ns + self._tries * self._settings.order.retry_ns
        self._ask_more()

    def _ask_more(self) -> None:
        assert self._target is not None
        self.effects.append(ToPeer(self._source, AskState(self._target.covers, len(self._data))))

    def on_piece(self, now_ns: int, node: int, piece: StatePiece) -> None:
        """Append a piece that was asked for, and ask for the next one."""
        wanted = self._target
        if wanted is None or self._writing or node != self._source or node in self._liars:
            return
        if (piece.index, piece.position) != (wanted.covers, len(self._data)) or not piece.data:
            return  # an empty piece must not make two nodes send requests in a loop
        self._data += piece.data[: wanted.size_bytes - len(self._data)]
        self._tries, self.due_ns = 0, now_ns + self._settings.order.retry_ns
        if len(self._data) < wanted.size_bytes:
            self._ask_more()
        else:
            self._finish(node, wanted, bytes(self._data))

    def _finish(self, node: int, wanted: _CheckpointId, state: bytes) -> None:
        """Verify the complete state and write it to disk."""
        self._data = bytearray()
        try:
            if sha256(state).digest() != wanted.digest:
                raise Malformed("not the state that it was said to be")
            found = load(self._execution.state.bootstrap, state)
            if found.position.index != wanted.covers:
                raise Malformed(f"a state after message {found.position.index}")
        except Malformed as wrong:
            self.effects.append(Report("checkpoint does not fit", str(node), {"reason": str(wrong)}))
            self._liars.add(node)
            return  # at `due_ns` the installer asks the next node
        self._writing = True
        self.due_ns = None
        installed = StateCheckpoint(wanted.covers, wanted.digest, state, first=wanted.covers + 1)
        file = Replace(checkpoint_name(self._settings.order), checkpoint.encode(installed))
        self.effects.append(Report("checkpoint taken from others", str(node), {"index": wanted.covers}))
        self.effects.append(Persist(1, (file,)))

    def on_written(self) -> None:
        """The checkpoint is on disk: restart from it."""
        assert self._writing
        self.effects.append(Halt("a checkpoint was taken from others", again=True))


def _id_of(offer: SnapshotOffer) -> _CheckpointId:
    return _CheckpointId(offer.index, offer.digest, offer.size_bytes)
