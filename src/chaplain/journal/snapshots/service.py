"""The checkpoints of a node as the rest of the journal sees them: inputs in, effects out.

Combines `checkpointer`, which makes checkpoints and drops the log, with `install`, which installs checkpoints of peers.
Decides only which of these two parts receives an input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, assert_never

from chaplain.core import Operation
from chaplain.errors import Malformed
from chaplain.journal.consensus.core import SerializerCore
from chaplain.journal.events import Part, ToPeer
from chaplain.journal.execution.state import ExecutionState, load
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.peer import AskState, SnapshotOffer, StatePiece
from chaplain.journal.model.bootstrap import ClusterBootstrap
from chaplain.journal.model.results import AppliedMessage
from chaplain.journal.settings import JournalSettings
from chaplain.journal.snapshots import checkpoint
from chaplain.journal.snapshots.checkpoint import CheckpointBase, StateCheckpoint
from chaplain.journal.snapshots.checkpointer import CheckpointEffect, Checkpointer
from chaplain.journal.snapshots.install import InstallEffect, SnapshotInstaller
from chaplain.journal.storage.offset_index import StreamIndex
from chaplain.journal.storage.verdict import read_applied
from chaplain.segment.record import Record
from chaplain.segment.verdicts import join_parts

SnapshotMessage: TypeAlias = SnapshotOffer | AskState | StatePiece
SnapshotEffect: TypeAlias = CheckpointEffect | InstallEffect


def base_of(state: ExecutionState) -> CheckpointBase:
    """The facts of a checkpoint that components other than execution need."""
    owners = {lane.client_id: lane.acl for lane in state.lanes.values()}
    return CheckpointBase(state.position, dict(state.databases), owners)


def found_checkpoint(bootstrap: ClusterBootstrap, data: bytes | None) -> StateCheckpoint | None:
    """Decode the checkpoint file. Returns None if it is missing or invalid; recovery of the log decides whether that is
    a loss.
    """
    if data is None:
        return None
    try:
        first, state = checkpoint.decode(data)
        return checkpoint.make(load(bootstrap, state).position.index, state, first)
    except Malformed:
        return None


def checkpoint_after(executed: AppliedMessage, execution: JournalExecution) -> StateCheckpoint:
    """The checkpoint of the current state, which is the one directly after this message."""
    return checkpoint.make(executed.position.index, execution.state.export())


class SnapshotService:
    """Checkpointer and installer of one node."""

    def __init__(
        self,
        settings: JournalSettings,
        execution: JournalExecution,
        streams: StreamIndex,
        serializer: SerializerCore,
        found: StateCheckpoint | None,
        *,
        replayed: Iterable[StateCheckpoint] = (),
        needed_by: Iterable[Callable[[], int]] = (),
        before: Callable[[], tuple[Operation, ...]] = tuple,
    ) -> None:
        """`streams` is updated when messages are dropped from the log, or backfilled. The other arguments are those of
        `Checkpointer`.
        """
        context = serializer.context
        self.checkpointer = Checkpointer(
            settings, execution, context.log, found, replayed=replayed, needed_by=needed_by, before=before
        )
        self._installer = SnapshotInstaller(
            settings,
            execution,
            self.checkpointer,
            context.log,
            teachers=lambda: context.latest_known_quorum,
            confirms=serializer.is_confirmed_by,
        )
        self._streams = streams
        self._log = context.log
        self._first = self._log.segment_index.first

    @property
    def due_ns(self) -> int | None:
        due_ns, install_ns = self.checkpointer.due_ns, self._installer.due_ns
        return install_ns if due_ns is None or (install_ns is not None and install_ns < due_ns) else due_ns

    def add(self, own: StateCheckpoint) -> None:
        """A message that asks for a checkpoint was applied, and `own` is the state directly after it."""
        self.checkpointer.add(own)

    def start(self) -> None:
        self.checkpointer.start()

    def on_connected(self, now_ns: int, node: int) -> None:
        self.checkpointer.on_connected(node)
        self.checkpointer.drop_segments(now_ns)
        self._installer.update(now_ns)

    def on_disconnected(self, now_ns: int, node: int) -> None:
        self.checkpointer.on_disconnected(now_ns, node)
        self._installer.update(now_ns)

    def on_message(self, now_ns: int, node: int, message: SnapshotMessage) -> None:
        match message:
            case SnapshotOffer():
                self.checkpointer.on_offer(now_ns, node, message)
                self._installer.update(now_ns)
            case AskState():
                self.checkpointer.on_ask_state(node, message)
            case StatePiece():
                self._installer.on_piece(now_ns, node, message)
            case _:
                assert_never(message)

    def on_backfilled(self, messages: Iterable[list[Record]]) -> None:
        """Messages that precede the former first one were fetched again."""
        self._streams.prepend([read_applied(join_parts(records)) for records in messages])
        self.checkpointer.broadcast_offer()

    def on_timer(self, now_ns: int) -> None:
        self.checkpointer.on_timer(now_ns)
        self._installer.on_timer(now_ns)

    def on_written(self, now_ns: int, part: Part, ticket: int) -> None:
        if part is Part.CHECKPOINTER:
            self.checkpointer.on_written(now_ns, ticket)
        else:
            self._installer.on_written()

    @property
    def can_write(self) -> bool:
        """True if a checkpoint waited for the log, and can be written now."""
        return self.checkpointer.can_write

    def take_effects(self) -> list[tuple[Part, SnapshotEffect]]:
        """Remove and return the effects, messages to peers first. Also update the index of streams if the log begins
        with another message than before.
        """
        log, checkpointer, installer = self._log, self.checkpointer, self._installer
        if log.segment_index.first != self._first:
            self._first = log.segment_index.first
            self._streams.drop_before(self._first)
        checkpointer.write_if_covered()
        if not checkpointer.effects and not installer.effects:
            return []
        effects: list[tuple[Part, SnapshotEffect]] = [(Part.CHECKPOINTER, effect) for effect in checkpointer.effects]
        effects += [(Part.INSTALLER, effect) for effect in installer.effects]
        checkpointer.effects, installer.effects = [], []
        return sorted(effects, key=lambda effect: not isinstance(effect[1], ToPeer))
