"""Getting a checkpoint from others, when the messages that follow ours are in nobody's log any more.

    nobody connected has the next message ──▶ a checkpoint that can be trusted ──▶ piece by piece ──▶ its digest holds
    ──▶ on disk ──▶ this node starts again, from it

Decides which checkpoint is trusted: one that a quorum without us says the same of; or, when that many cannot be heard
for a while, one of which a single serializer says that a quorum said so, or that so many say the same of as make a
quorum with us: they may be all that is left, and have forgotten what others said. Its octets are then checked against
that digest, so it does not matter who gives them. Refuses to know what a state holds.

Starting again is on purpose: everything that a node derives from its state is then made from what is on its disk, by
the one way there is.

Invariants: a state is adopted only if it is further on than what is agreed here, has the trusted digest and is of this
cluster; nothing is adopted before it is on disk.

Bounds: one checkpoint at a time, of at most `STATE_BYTES_MAX`, one piece under way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from hashlib import sha256
from typing import TypeAlias

from chaplain.core import Halt, Persist, Replace, Report
from chaplain.errors import Malformed
from chaplain.journal.events import ToPeer
from chaplain.journal.execution.state import load
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.peer import AskState, Covered, StatePiece
from chaplain.journal.model.quorum import Quorum
from chaplain.journal.settings import JournalSettings
from chaplain.journal.snapshots import checkpoint
from chaplain.journal.snapshots.checkpoint import STATE_BYTES_MAX, Checkpoint, checkpoint_name
from chaplain.journal.snapshots.checkpointer import Checkpointer
from chaplain.journal.storage.log import ReplicatedLog

InstallEffect: TypeAlias = ToPeer | Persist | Report | Halt
_Named = tuple[int, bytes, int]
"""Index, digest and size."""


class SnapshotInstaller:
    def __init__(self, settings: JournalSettings, execution: JournalExecution, checkpointer: Checkpointer) -> None:
        self._settings = settings
        self._execution = execution
        self._checkpointer = checkpointer
        self._log: ReplicatedLog | None = None
        self._quorum: Callable[[], Quorum] = lambda: execution.cluster_config.quorum
        self._target: _Named | None = None
        self._data = bytearray()
        self._source = 0
        self._accepts_messages_of: Callable[[Collection[int]], bool] = bool
        self._too_few_since_ns: int | None = None
        """Since when those that have what follows are too few for us to believe them."""
        self._needed_since_ns: int | None = None
        """Since when nobody has what follows."""
        self._writing = False
        self.due_ns: int | None = None
        self.effects: list[InstallEffect] = []

    def attach(
        self,
        log: ReplicatedLog,
        teachers: Callable[[], Quorum] | None = None,
        confirms: Callable[[Collection[int]], bool] | None = None,
    ) -> None:
        """`teachers` are those whose word on a checkpoint counts, if not those of the assembly alone. `confirms` says
        whether messages that these nodes call agreed are taken.
        """
        self._log = log
        self._quorum = teachers or self._quorum
        self._accepts_messages_of = confirms or self._accepts_messages_of

    def update(self, now_ns: int) -> None:
        """Something was said, or somebody came or went."""
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
            self._target, self._data = wanted, bytearray()
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
        """Whether others are further on, and none of them has what follows our own; or only members have it that are
        not believed about it; or too few serializers, for a while, though a quorum of them is here.

        Only those count that have it with payloads: nobody may skip what was ordered because it cannot be found.
        """
        assert self._log is not None
        following, copies, cluster_config = self._log.agreed + 1, self._execution.copies, self._execution.cluster_config
        able = (
            said for node, said in self._checkpointer.offers.items() if not copies or cluster_config.holds_data(node)
        )
        further = [said for said in able if max(said.index, said.agreed) >= following]
        if not further or all(said.first > following for said in further):
            self._too_few_since_ns = None
            return bool(further)
        having = [node for node, said in self._checkpointer.offers.items() if said.first <= following]
        if self._accepts_messages_of(having):
            self._too_few_since_ns = None
            return False
        if not any(node in self._quorum().voters for node in having):
            return True  # a member without a vote says so, and nobody would take the messages from it
        if not self._quorum().reached([*self._checkpointer.offers, self._settings.node]):
            self._too_few_since_ns = None
        elif self._too_few_since_ns is None:
            self._too_few_since_ns = now_ns
        return (
            self._too_few_since_ns is not None and now_ns - self._too_few_since_ns >= self._settings.order.patience_ns
        )

    def _trusted(self, now_ns: int) -> _Named | None:
        assert self._log is not None
        said = self._checkpointer.offers
        named = {_name(one) for one in said.values() if one.index > self._log.agreed}
        assert self._needed_since_ns is not None
        patient = now_ns - self._needed_since_ns < self._settings.order.patience_ns
        for wanted in sorted(named, reverse=True):
            alike = [node for node, one in said.items() if _name(one) == wanted]
            if wanted[2] > STATE_BYTES_MAX:
                continue
            quorum = self._quorum()
            if quorum.reached(alike):
                return wanted
            vouched = any(said[node].confirmed and node in quorum.voters for node in alike)
            if not patient and (vouched or quorum.reached([*alike, self._settings.node])):
                return wanted
        return None

    def _ask(self, now_ns: int) -> None:
        """Ask the next one who has it for the next piece."""
        assert self._target is not None
        holders = sorted(node for node, one in self._checkpointer.offers.items() if one.index >= self._target[0])
        self._source = next((node for node in holders if node > self._source), holders[0])
        self.due_ns = now_ns + self._settings.order.retry_ns
        self._ask_more()

    def _ask_more(self) -> None:
        assert self._target is not None
        self.effects.append(ToPeer(self._source, AskState(self._target[0], len(self._data))))

    def on_piece(self, now_ns: int, node: int, piece: StatePiece) -> None:
        wanted = self._target
        if wanted is None or self._writing or (piece.index, piece.position) != (wanted[0], len(self._data)):
            return
        self._data += piece.data[: wanted[2] - len(self._data)]
        self._source, self.due_ns = node, now_ns + self._settings.order.retry_ns
        if len(self._data) < wanted[2]:
            if piece.data:
                self._ask_more()
            return
        self._finish(node, wanted, bytes(self._data))

    def _finish(self, node: int, wanted: _Named, state: bytes) -> None:
        self._data = bytearray()
        try:
            if sha256(state).digest() != wanted[1]:
                raise Malformed("not the state that it was said to be")
            found = load(self._execution.state.bootstrap, state)
            if found.position.index != wanted[0]:
                raise Malformed(f"a state after message {found.position.index}")
        except Malformed as wrong:
            self.effects.append(Report("checkpoint does not fit", str(node), {"reason": str(wrong)}))
            return  # asked again, of the next one, when it is due
        self._writing = True
        self.due_ns = None
        adopted = Checkpoint(wanted[0], wanted[1], state, first=wanted[0] + 1)
        file = Replace(checkpoint_name(self._settings.order), checkpoint.encode(adopted))
        self.effects.append(Report("checkpoint taken from others", str(node), {"index": wanted[0]}))
        self.effects.append(Persist(1, (file,)))

    def on_written(self) -> None:
        """It is on disk: everything begins from it."""
        assert self._writing
        self.effects.append(Halt("a checkpoint was taken from others", again=True))


def _name(said: Covered) -> _Named:
    return said.index, said.digest, said.size_bytes
