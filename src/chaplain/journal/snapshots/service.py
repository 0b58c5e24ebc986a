"""Checkpoints as the journal around them sees it: what they are told, and what they want done.

Ties together what this node keeps and drops (`archive`) and what it takes from others (`adoption`). Decides only which
of them something is for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias, assert_never

from chaplain.core import Halt, Persist, Report, soonest
from chaplain.errors import Malformed
from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.events import ToPeer
from chaplain.journal.execution.state import ExecutionState, load
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.cluster import DataEntry, Reference
from chaplain.journal.messages.peer import AskState, Covered, StatePiece
from chaplain.journal.model.bootstrap import Founding
from chaplain.journal.model.results import AppliedMessage
from chaplain.journal.outbound import JournalOutbound
from chaplain.journal.settings import JournalSettings
from chaplain.journal.snapshots import checkpoint
from chaplain.journal.snapshots.checkpoint import Checkpoint, CheckpointBase
from chaplain.journal.snapshots.checkpointer import Checkpointer
from chaplain.journal.snapshots.install import SnapshotInstaller
from chaplain.journal.storage.log import ReplicatedLog
from chaplain.journal.storage.offset_index import StreamIndex
from chaplain.journal.storage.verdict import read_executed
from chaplain.journal.ticket_numbers import TicketNumbers

CoveringMessage: TypeAlias = Covered | AskState | StatePiece


def base_of(state: ExecutionState) -> CheckpointBase:
    owners = {lane.client_id: lane.acl for lane in state.lanes.values()}
    return CheckpointBase(state.moment, dict(state.databases), owners)


def found_checkpoint(founding: Founding, data: bytes | None) -> Checkpoint | None:
    """What a node's file says; nothing, if it cannot be believed: the log says whether that is a loss."""
    if data is None:
        return None
    try:
        first, state = checkpoint.decode(data)
        return checkpoint.make(load(founding, state).moment.index, state, first)
    except Malformed:
        return None


class SnapshotService:
    def __init__(self, settings: JournalSettings, execution: JournalExecution, streams: StreamIndex) -> None:
        """`streams` are told which messages the log has, when some of it went or was put back."""
        self._execution = execution
        self.archive = Checkpointer(settings, execution)
        self._adoption = SnapshotInstaller(settings, execution, self.archive)
        self._parts: dict[str, Checkpointer | SnapshotInstaller] = {"archive": self.archive, "adoption": self._adoption}
        self._streams = streams
        self._log: ReplicatedLog | None = None
        self._firsts: dict[int, tuple[int, int]] = {}
        self._first = 1

    def attach(
        self,
        bench: ConsensusContext,
        found: Checkpoint | None,
        confirms: Callable[[Collection[int]], bool] | None = None,
    ) -> None:
        """From now on, work; and what the checkpoint covers of ingest nodes' journals is ordered for the serializer."""
        self._log, self._firsts, self._first = bench.log, bench.peer_log_ranges, bench.log.places.first
        self.archive.attach(bench.log, found)
        bench.is_retained = self.archive.keeps
        self._adoption.attach(bench.log, lambda: bench.latest_known_quorum, confirms)
        for node, (journal, index) in self._execution.state.journals.items():
            if index:
                bench.payload_queue.mark_ordered([DataEntry(Reference(node, journal, index), b"")])

    @property
    def due_ns(self) -> int | None:
        return soonest((self.archive.due_ns, self._adoption.due_ns))

    def executed(self, executed: AppliedMessage) -> None:
        self.archive.executed(executed)

    def start(self) -> None:
        self.archive.start()

    def up(self, now_ns: int, node: int) -> None:
        self.archive.up(node)
        self.archive.look(now_ns)
        self._adoption.look(now_ns)

    def down(self, now_ns: int, node: int) -> None:
        self.archive.down(now_ns, node)
        self._firsts.pop(node, None)
        self._adoption.look(now_ns)

    def said(self, now_ns: int, node: int, message: CoveringMessage) -> None:
        match message:
            case Covered():
                self._firsts[node] = (message.first, message.agreed)
                self.archive.heard(now_ns, node, message)
                self._adoption.look(now_ns)
            case AskState():
                self.archive.asked(node, message)
            case StatePiece():
                self._adoption.came(now_ns, node, message)
            case _:
                assert_never(message)

    def woken(self, now_ns: int) -> None:
        self.archive.woken(now_ns)
        self._adoption.woken(now_ns)

    def written(self, now_ns: int, part: str, ticket: int) -> None:
        if part == "archive":
            self.archive.written(now_ns, ticket)
        else:
            self._adoption.written()

    @property
    def restless(self) -> bool:
        """Whether there is anything to perform; asked at every step, and seldom so."""
        assert self._log is not None
        return bool(self.archive.effects or self._adoption.effects or self._log.places.first != self._first)

    def perform(self, mail: JournalOutbound, slips: TicketNumbers) -> list[Persist | Report | Halt]:
        """Say what is to be said; gives what is the host's."""
        assert self._log is not None
        if self._log.places.first != self._first:
            self._first = self._log.places.first
            self._streams.forget(self._first)
        if self._log.restocked:
            self._streams.put_back([read_executed(records) for records in self._log.restocked])
            self._log.restocked.clear()
            self.archive.tell_all()
        effects: list[Persist | Report | Halt] = []
        for name, part in self._parts.items():
            for effect in part.effects:
                if isinstance(effect, ToPeer):
                    mail.to_peer(effect)
                else:
                    effects.append(slips.number_write(name, effect) if isinstance(effect, Persist) else effect)
            part.effects.clear()
        return effects
