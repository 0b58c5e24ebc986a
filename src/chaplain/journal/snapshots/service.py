"""The checkpoints of a node as the rest of the journal sees them: inputs in, effects out.

Combines what this node stores and drops (`checkpointer`) with what it installs from peers (`install`). Decides only
which of the two an input is for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias, assert_never

from chaplain.core import Halt, Operation, Persist, Report, soonest
from chaplain.errors import Malformed
from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.events import ToPeer
from chaplain.journal.execution.state import ExecutionState, load
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.cluster import DataEntry, Reference
from chaplain.journal.messages.peer import AskState, SnapshotOffer, StatePiece
from chaplain.journal.model.bootstrap import ClusterBootstrap
from chaplain.journal.model.results import AppliedMessage
from chaplain.journal.outbound import JournalOutbound
from chaplain.journal.settings import JournalSettings
from chaplain.journal.snapshots import checkpoint
from chaplain.journal.snapshots.checkpoint import Checkpoint, CheckpointBase
from chaplain.journal.snapshots.checkpointer import Checkpointer
from chaplain.journal.snapshots.install import SnapshotInstaller
from chaplain.journal.storage.log import ReplicatedLog
from chaplain.journal.storage.offset_index import StreamIndex
from chaplain.journal.storage.verdict import read_applied
from chaplain.journal.ticket_numbers import TicketNumbers

SnapshotMessage: TypeAlias = SnapshotOffer | AskState | StatePiece


def base_of(state: ExecutionState) -> CheckpointBase:
    """The facts of a checkpoint that components other than execution need."""
    owners = {lane.client_id: lane.acl for lane in state.lanes.values()}
    return CheckpointBase(state.position, dict(state.databases), owners)


def found_checkpoint(bootstrap: ClusterBootstrap, data: bytes | None) -> Checkpoint | None:
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


class SnapshotService:
    """Checkpointer and installer of one node."""

    def __init__(
        self,
        settings: JournalSettings,
        execution: JournalExecution,
        streams: StreamIndex,
        before: Callable[[], tuple[Operation, ...]] = tuple,
    ) -> None:
        """`streams` is updated when messages are dropped from the log, or backfilled. `before` returns the writes that
        must precede the next checkpoint.
        """
        self._execution = execution
        self.checkpointer = Checkpointer(settings, execution, before)
        self._installer = SnapshotInstaller(settings, execution, self.checkpointer)
        self._parts: dict[str, Checkpointer | SnapshotInstaller] = {
            "checkpointer": self.checkpointer,
            "installer": self._installer,
        }
        self._streams = streams
        self._log: ReplicatedLog | None = None
        self._log_ranges: dict[int, tuple[int, int]] = {}
        self._first = 1

    def attach(
        self,
        context: ConsensusContext,
        found: Checkpoint | None,
        confirms: Callable[[Collection[int]], bool] | None = None,
    ) -> None:
        """Start to work. Also mark the ingest messages that the checkpoint covers as ordered, for the serializer."""
        self._log, self._log_ranges, self._first = context.log, context.peer_log_ranges, context.log.segment_index.first
        self.checkpointer.attach(context.log, found)
        context.is_retained = self.checkpointer.would_retain
        self._installer.attach(context.log, lambda: context.latest_known_quorum, confirms)
        for node, (journal, index) in self._execution.state.journals.items():
            if index:
                context.payload_queue.mark_ordered([DataEntry(Reference(node, journal, index), b"")])

    @property
    def due_ns(self) -> int | None:
        return soonest((self.checkpointer.due_ns, self._installer.due_ns))

    def on_applied(self, executed: AppliedMessage) -> None:
        self.checkpointer.on_applied(executed)

    def start(self) -> None:
        self.checkpointer.start()

    def on_connected(self, now_ns: int, node: int) -> None:
        self.checkpointer.on_connected(node)
        self.checkpointer.drop_segments(now_ns)
        self._installer.update(now_ns)

    def on_disconnected(self, now_ns: int, node: int) -> None:
        self.checkpointer.on_disconnected(now_ns, node)
        self._log_ranges.pop(node, None)
        self._installer.update(now_ns)

    def on_message(self, now_ns: int, node: int, message: SnapshotMessage) -> None:
        match message:
            case SnapshotOffer():
                self._log_ranges[node] = (message.first, message.agreed)
                self.checkpointer.on_offer(now_ns, node, message)
                self._installer.update(now_ns)
            case AskState():
                self.checkpointer.on_ask_state(node, message)
            case StatePiece():
                self._installer.on_piece(now_ns, node, message)
            case _:
                assert_never(message)

    def on_timer(self, now_ns: int) -> None:
        self.checkpointer.on_timer(now_ns)
        self._installer.on_timer(now_ns)

    def on_written(self, now_ns: int, part: str, ticket: int) -> None:
        if part == "checkpointer":
            self.checkpointer.on_written(now_ns, ticket)
        else:
            self._installer.on_written()

    @property
    def has_work(self) -> bool:
        """True if `take_effects` has anything to do. It is read at every step, and seldom true."""
        assert self._log is not None
        return bool(
            self.checkpointer.effects or self._installer.effects or self._log.segment_index.first != self._first
        )

    def take_effects(self, mail: JournalOutbound, slips: TicketNumbers) -> list[Persist | Report | Halt]:
        """Send the outgoing messages. Returns the effects for the host."""
        assert self._log is not None
        if self._log.segment_index.first != self._first:
            self._first = self._log.segment_index.first
            self._streams.drop_before(self._first)
        if self._log.backfilled:
            self._streams.prepend([read_applied(records) for records in self._log.backfilled])
            self._log.backfilled.clear()
            self.checkpointer.broadcast_offer()
        effects: list[Persist | Report | Halt] = []
        for name, part in self._parts.items():
            for effect in part.effects:
                if isinstance(effect, ToPeer):
                    mail.to_peer(effect)
                else:
                    effects.append(slips.number_write(name, effect) if isinstance(effect, Persist) else effect)
            part.effects.clear()
        return effects
