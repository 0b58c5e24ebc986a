"""A node's checkpoints, what others say of theirs, and with that: which part of the log can go.

    executed ──▶ the state is taken down ──▶ on disk ──▶ Covered, to all peers ──▶ a quorum says the same ──▶ it can go

Decides when a checkpoint is confirmed and who has parted from the others: whoever a majority contradicts about the
state behind one message stops. Refuses to know what a state holds, and how one is got from others (`adoption`).

Invariants: what is said to be on disk is; nothing goes before our own checkpoint is on disk and a quorum has the same;
nothing goes that a connected member has not covered, too, or one that is on its way back (`returning`).

Bounds: two states in memory, the latest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from chaplain.core import Halt, Persist, Replace, Report
from chaplain.journal.events import ToPeer
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.peer import AskState, Covered, StatePiece
from chaplain.journal.model.results import AppliedMessage
from chaplain.journal.settings import JournalSettings
from chaplain.journal.snapshots import checkpoint
from chaplain.journal.snapshots.checkpoint import Checkpoint, checkpoint_name
from chaplain.journal.snapshots.lagging_members import LaggingMembers
from chaplain.journal.snapshots.retention import droppable, first_needed, keeps
from chaplain.journal.storage.log import ReplicatedLog

PIECE_BYTES = 512 * 1024
KEPT = 2
LOOK_NS = 1_000_000_000
"""How often it is asked whether something can go, and who lacks what went is told of our checkpoint."""
_NOTHING = bytes(32)
CheckpointEffect: TypeAlias = ToPeer | Persist | Report | Halt


class Checkpointer:
    def __init__(self, settings: JournalSettings, execution: JournalExecution) -> None:
        self._settings = settings
        self._execution = execution
        self._log: ReplicatedLog | None = None
        self._checkpoints: dict[int, Checkpoint] = {}
        self._ticket = 0
        self._writing: dict[int, int] = {}
        """Checkpoints on their way to the disk, by ticket; 0 for segments that go."""
        self.durable = 0
        """The latest checkpoint that is on our disk."""
        self.offers: dict[int, Covered] = {}
        """What connected peers said last."""
        self._lagging = LaggingMembers()
        self._due_ns: int | None = None
        self.first_needed_by: list[Callable[[], int]] = []
        """Each says which message is the first that somebody still needs."""
        self.dropped_segments = self.dropped_bytes = 0
        self.effects: list[CheckpointEffect] = []

    def attach(self, log: ReplicatedLog, found: Checkpoint | None) -> None:
        """From now on, work: execution has caught up with the disk, where this checkpoint was."""
        self._log = log
        if found is not None:
            self._checkpoints.setdefault(found.index, found)
            self.durable = found.index

    @property
    def due_ns(self) -> int | None:
        return self._due_ns

    @property
    def latest(self) -> Checkpoint | None:
        return self._checkpoints[max(self._checkpoints)] if self._checkpoints else None

    # Our own.

    def on_applied(self, executed: AppliedMessage) -> None:
        """A message was executed, and none behind it."""
        if not executed.checkpoint:
            return
        made = checkpoint.make(executed.position.index, self._execution.state.export())
        self._checkpoints[made.index] = made
        while len(self._checkpoints) > KEPT:
            del self._checkpoints[min(self._checkpoints)]
        if self._log is not None:
            self._write(made)

    def start(self) -> None:
        """Write down what was passed at start and is not on disk."""
        latest = self.latest
        if latest is not None and latest.index > self.durable:
            self._write(latest)

    def _write(self, made: Checkpoint) -> None:
        assert self._log is not None
        file = checkpoint_name(self._settings.order)
        data = checkpoint.encode(
            checkpoint.Checkpoint(made.index, made.digest, made.state, self._log.segment_index.in_order_from)
        )
        self._ticket += 1
        self._writing[self._ticket] = made.index
        self.effects.append(Persist(self._ticket, (Replace(file, data),)))

    def on_written(self, now_ns: int, ticket: int) -> None:
        index = self._writing.pop(ticket, 0)
        if index > self.durable:
            self.durable = index
            self._compare_states()
            self.effects.append(Report("checkpoint", detail={"index": index}))
            self.broadcast_offer()
            self.drop_segments(now_ns)

    # Others'.

    def on_connected(self, node: int) -> None:
        """A member is connected: until it speaks, nothing is covered there."""
        self.offers[node] = Covered(0, _NOTHING, 0, 1, 0, confirmed=False)
        self._lagging.on_connected(node)
        self._send_offer(node)

    def _send_offer(self, node: int) -> None:
        self.effects.append(ToPeer(node, self._offer()))

    def on_disconnected(self, now_ns: int, node: int) -> None:
        offer = self.offers.pop(node, None)
        if offer is not None:
            self._lagging.on_disconnected(now_ns, node, offer.index)

    def _offer(self) -> Covered:
        assert self._log is not None
        made = self._checkpoints.get(self.durable)
        index, digest, size = (0, _NOTHING, 0) if made is None else (made.index, made.digest, len(made.state))
        return Covered(index, digest, size, self._log.segment_index.first, self._log.agreed, self.confirmed)

    def broadcast_offer(self) -> None:
        for node in self.offers:
            self._send_offer(node)

    def on_offer(self, now_ns: int, node: int, offer: Covered) -> None:
        before = self.confirmed
        self.offers[node] = offer
        self._lagging.on_offer(node, lacking=self._lacks_log(offer), latest=offer.index >= self.durable)
        self._compare_states()
        if self.confirmed and not before:
            self.broadcast_offer()
        self.drop_segments(now_ns)

    def on_ask_state(self, node: int, ask: AskState) -> None:
        """Somebody lacks what we have dropped."""
        made = self._checkpoints.get(ask.index)
        if made is None or ask.position > len(made.state):
            self._send_offer(node)  # it does not know of our latest
            return
        piece = made.state[ask.position : ask.position + PIECE_BYTES]
        self.effects.append(ToPeer(node, StatePiece(ask.index, ask.position, piece)))

    @property
    def confirmed(self) -> bool:
        """Whether a quorum has our latest checkpoint, or a later one, on disk."""
        made = self._checkpoints.get(self.durable)
        if made is None:
            return False
        alike = [node for node, offer in self.offers.items() if self._agrees(offer, made)]
        return self._execution.cluster_config.quorum.reached([*alike, self._settings.node])

    def _agrees(self, offer: Covered, made: Checkpoint) -> bool:
        return offer.index > made.index or (offer.index == made.index and offer.digest == made.digest)

    def _compare_states(self) -> None:
        """Compare states behind one message: the minority stops."""
        made = self._checkpoints.get(self.durable)
        if made is None:
            return
        others = {node: offer.digest for node, offer in self.offers.items() if offer.index == made.index}
        differing = sorted(node for node, digest in others.items() if digest != made.digest)
        if not differing:
            return
        nodes = ", ".join(map(str, differing))
        detail: dict[str, str | int] = {"index": made.index, "node": self._settings.node}
        self.effects.append(Report("states differ", nodes, detail))
        winner = max(others.values(), key=list(others.values()).count)
        count = list(others.values()).count(winner)
        if winner != made.digest and 2 * count > len(self._execution.cluster_config.members):
            self.effects.append(Halt(f"the state after message {made.index} is not the one that nodes {nodes} have"))

    # What can go.

    @property
    def drops_through(self) -> int:
        """Up to this message segments will go some day, as far as rules and admins say; 0: none will."""
        assert self._log is not None
        rules, released = self._settings.rules, self._execution.state.released
        return self.durable if rules.keep_bytes or rules.keep_ns or released >= self._log.segment_index.first else 0

    def on_timer(self, now_ns: int) -> None:
        if self._due_ns is not None and now_ns >= self._due_ns:
            self._due_ns = None
            for node in self._nodes_lacking_log():
                self._send_offer(node)
            self.drop_segments(now_ns)

    def _nodes_lacking_log(self) -> list[int]:
        """Who needs a checkpoint, as far as they said: told again and again, because what we said may have been lost
        to them, or have come before they knew that we are here.
        """
        return [node for node, offer in self.offers.items() if self._lacks_log(offer)]

    def _lacks_log(self, offer: Covered) -> bool:
        assert self._log is not None
        return offer.agreed + 1 < self._log.segment_index.first

    def drop_segments(self, now_ns: int) -> None:
        """Drop what can be dropped now."""
        log = self._log
        assert log is not None
        waiting = (self.durable and len(log.segment_index.segments) > 1) or self._nodes_lacking_log()
        if waiting and self._due_ns is None:
            self._due_ns = now_ns + LOOK_NS
        self._lagging.expire(now_ns)
        limit = min(self.covered_through(), self.first_needed() - 1)
        going = droppable(
            log.segment_index, self._settings.rules, now_ns, limit=limit, released=self._execution.state.released
        )
        if not going:
            return
        self.dropped_segments += going
        self.dropped_bytes += sum(segment.size_bytes for segment in log.segment_index.segments[:going])
        operations = log.drop(going, limit)
        self._ticket += 1
        self._writing[self._ticket] = 0
        self.effects.append(Persist(self._ticket, operations))
        self.effects.append(Report("segments dropped", detail={"segments": going, "first": log.segment_index.first}))
        self.broadcast_offer()

    def retained_bytes(self, now_ns: int, index: int) -> int:
        """Octets of segments that could go if nobody needed the messages from this one on."""
        assert self._log is not None
        segment_index, released = self._log.segment_index, self._execution.state.released
        without, with_it = (
            droppable(segment_index, self._settings.rules, now_ns, limit=limit, released=released)
            for limit in (self.covered_through(), min(self.covered_through(), index - 1))
        )
        return sum(segment.size_bytes for segment in segment_index.segments[with_it:without])

    def covered_through(self) -> int:
        """Up to which message nobody can need the log to learn what it came to."""
        if not self.confirmed:
            return 0
        return min([self.durable, *(offer.index for offer in self.offers.values()), *self._lagging.checkpoints()])

    def would_retain(self, now_ns: int, index: int, timestamp_ns: int) -> bool:
        """Whether a message that only others have would be kept here, too."""
        assert self._log is not None
        released = index <= self._execution.state.released
        return not released and keeps(self._log.segment_index, self._settings.rules, now_ns, timestamp_ns)

    def first_needed(self) -> int:
        return first_needed(self._execution.state.staged_packs, [need() for need in self.first_needed_by])
