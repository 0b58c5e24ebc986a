"""Makes the checkpoints of this node, compares them with those of its peers, and drops the log that they cover.

    message executed ──▶ state exported ──▶ on disk ──▶ offered to all peers ──▶ confirmed by a quorum ──▶ log dropped

Decides when a checkpoint is confirmed, and whether this node's state has diverged: a node stops if a majority of the
members reports another digest for the state after the same message. Refuses to know what a state contains, and how a
node gets one from its peers (`install`).

Invariants: a node writes a checkpoint only after the messages that it covers are on disk with their verdicts, because
these verdicts cannot be computed again. A node offers a checkpoint only after it is on disk. A node drops a message
only after its own checkpoint covers it on disk and a quorum has the same checkpoint. It drops a message only if the
checkpoints of all connected members cover it, and those of all lagging members that are expected back
(`lagging_members`).

Bounds: the two latest states are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from chaplain.core import Halt, Operation, Persist, Replace, Report
from chaplain.journal.events import ToPeer
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.peer import AskState, SnapshotOffer, StatePiece
from chaplain.journal.settings import JournalSettings
from chaplain.journal.snapshots import checkpoint
from chaplain.journal.snapshots.checkpoint import StateCheckpoint, checkpoint_name
from chaplain.journal.snapshots.lagging_members import LaggingMembers
from chaplain.journal.snapshots.retention import droppable, first_needed
from chaplain.journal.storage.log import ReplicatedLog
from chaplain.units import SECOND_NS

PIECE_BYTES = 512 * 1024
KEPT = 2
"""Checkpoints in memory: the latest one, and the one before it, which a peer may still be fetching."""
LOOK_NS = SECOND_NS
"""Interval at which the node looks for segments to drop, and repeats its offer to peers that lack dropped messages."""
_NOTHING = bytes(32)
CheckpointEffect: TypeAlias = ToPeer | Persist | Report | Halt


class Checkpointer:
    """The checkpoints of one node, and the latest snapshot offer of each connected peer."""

    def __init__(
        self,
        settings: JournalSettings,
        execution: JournalExecution,
        log: ReplicatedLog,
        found: StateCheckpoint | None,
        *,
        replayed: Iterable[StateCheckpoint] = (),
        needed_by: Iterable[Callable[[], int]] = (),
        before: Callable[[], tuple[Operation, ...]] = tuple,
    ) -> None:
        """`found` is the checkpoint on disk, and `replayed` are those made while execution caught up with the log.
        Each function of `needed_by` returns the first message that one component still needs. `before` returns the
        writes that must be on disk before a checkpoint that covers the log up to now.
        """
        self._settings = settings
        self._execution = execution
        self._log = log
        self._checkpoints = {one.index: one for one in ([] if found is None else [found])}
        self._checkpoints |= {one.index: one for one in replayed}
        self._forget_old()
        self._unwritten: StateCheckpoint | None = None
        """A checkpoint that waits until the log contains the verdicts of all messages that it covers."""
        self._ticket = 0
        self._writing: dict[int, int] = {}
        """Index of the checkpoint that each ticket writes; 0 for a ticket that deletes segments."""
        self.durable = 0 if found is None else found.index
        """Index of the latest checkpoint on this node's disk."""
        self.offers: dict[int, SnapshotOffer] = {}
        """The latest snapshot offer of each connected peer."""
        self._lagging = LaggingMembers()
        self.due_ns: int | None = None
        """When to look for segments to drop."""
        self._needed_by = tuple(needed_by)
        self._before = before
        self.dropped_segments = self.dropped_bytes = 0
        self.effects: list[CheckpointEffect] = []

    @property
    def latest(self) -> StateCheckpoint | None:
        return self._checkpoints[max(self._checkpoints)] if self._checkpoints else None

    # Checkpoints of this node.

    def add(self, own: StateCheckpoint) -> None:
        """A message that asks for a checkpoint was applied, and `own` is the state directly after it."""
        self._checkpoints[own.index] = own
        self._forget_old()
        self._unwritten = own

    def _forget_old(self) -> None:
        while len(self._checkpoints) > KEPT:
            del self._checkpoints[min(self._checkpoints)]

    def start(self) -> None:
        """Write the latest checkpoint that was made during the replay at start, if it is not on disk."""
        latest = self.latest
        if latest is not None and latest.index > self.durable:
            self._unwritten = latest

    @property
    def can_write(self) -> bool:
        """True if a checkpoint waits and may be written now. The core reads this at every step, and it is seldom
        true.
        """
        return self._unwritten is not None and self._log.shown >= self._unwritten.index

    def write_if_covered(self) -> None:
        """Write the checkpoint that waits, if the log on disk contains the verdicts of all messages that it covers."""
        if self.can_write:
            assert self._unwritten is not None
            own, self._unwritten = self._unwritten, None
            self._write(own)

    def _write(self, own: StateCheckpoint) -> None:
        file = checkpoint_name(self._settings.order)
        data = checkpoint.encode(
            checkpoint.StateCheckpoint(own.index, own.digest, own.state, self._log.segment_index.in_order_from)
        )
        self._ticket += 1
        self._writing[self._ticket] = own.index
        self.effects.append(Persist(self._ticket, (*self._before(), Replace(file, data))))

    def on_written(self, now_ns: int, ticket: int) -> None:
        """A write is on disk. If it was a checkpoint, offer it to all peers."""
        index = self._writing.pop(ticket, 0)
        if index > self.durable:
            self.durable = index
            self._compare_states()
            self.effects.append(Report("checkpoint", detail={"index": index}))
            self.broadcast_offer()
            self.drop_segments(now_ns)

    # Checkpoints of peers.

    def on_connected(self, node: int) -> None:
        """A member is connected. Until it sends an offer, it counts as a member without a checkpoint."""
        self.offers[node] = SnapshotOffer(0, _NOTHING, 0, 1, 0, confirmed=False)
        self._lagging.on_connected(node)
        self._send_offer(node)

    def _send_offer(self, node: int) -> None:
        self.effects.append(ToPeer(node, self._offer()))

    def on_disconnected(self, now_ns: int, node: int) -> None:
        offer = self.offers.pop(node, None)
        if offer is not None:
            self._lagging.on_disconnected(now_ns, node, offer.index)

    def _offer(self) -> SnapshotOffer:
        own = self._checkpoints.get(self.durable)
        index, digest, size = (0, _NOTHING, 0) if own is None else (own.index, own.digest, len(own.state))
        return SnapshotOffer(index, digest, size, self._log.segment_index.first, self._log.agreed, self.confirmed)

    def broadcast_offer(self) -> None:
        for node in self.offers:
            self._send_offer(node)

    def on_offer(self, now_ns: int, node: int, offer: SnapshotOffer) -> None:
        """Store the offer of a peer. It may confirm a checkpoint, or contradict this node's state."""
        before = self.confirmed
        self.offers[node] = offer
        self._lagging.on_offer(node, lacking=self._lacks_log(offer), latest=offer.index >= self.durable)
        self._compare_states()
        if self.confirmed and not before:
            self.broadcast_offer()
        self.drop_segments(now_ns)

    def on_ask_state(self, node: int, ask: AskState) -> None:
        """Send a piece of a checkpoint to a peer that lacks dropped messages."""
        own = self._checkpoints.get(ask.index)
        if own is None or ask.position > len(own.state):
            self._send_offer(node)  # the peer does not know of our latest checkpoint
            return
        piece = own.state[ask.position : ask.position + PIECE_BYTES]
        self.effects.append(ToPeer(node, StatePiece(ask.index, ask.position, piece)))

    @property
    def confirmed(self) -> bool:
        """True if a quorum has this node's latest checkpoint, or a later one, on disk."""
        own = self._checkpoints.get(self.durable)
        if own is None:
            return False
        confirming = [node for node, offer in self.offers.items() if self._agrees(offer, own)]
        return self._execution.cluster_config.quorum.reached([*confirming, self._settings.node])

    def _agrees(self, offer: SnapshotOffer, own: StateCheckpoint) -> bool:
        return offer.index > own.index or (offer.index == own.index and offer.digest == own.digest)

    def _compare_states(self) -> None:
        """Compare the digests of the state after one message; a node that a majority contradicts stops."""
        own = self._checkpoints.get(self.durable)
        if own is None:
            return
        others = {node: offer.digest for node, offer in self.offers.items() if offer.index == own.index}
        differing = sorted(node for node, digest in others.items() if digest != own.digest)
        if not differing:
            return
        nodes = ", ".join(map(str, differing))
        detail: dict[str, str | int] = {"index": own.index, "node": self._settings.node}
        self.effects.append(Report("states differ", nodes, detail))
        # This node stops only if more than half of all members, not only of the connected ones, have another state.
        winner = max(others.values(), key=list(others.values()).count)
        count = list(others.values()).count(winner)
        if winner != own.digest and 2 * count > len(self._execution.cluster_config.members):
            self.effects.append(Halt(f"the state after message {own.index} is not the one that nodes {nodes} have"))

    # Dropping the log.

    @property
    def drops_through(self) -> int:
        """Retention rules and releases of admins allow the node to drop segments up to this message; 0 if none."""
        rules, released = self._settings.rules, self._execution.state.released
        return self.durable if rules.keep_bytes or rules.keep_ns or released >= self._log.segment_index.first else 0

    def on_timer(self, now_ns: int) -> None:
        if self.due_ns is not None and now_ns >= self.due_ns:
            self.due_ns = None
            for node in self._nodes_lacking_log():
                self._send_offer(node)
            self.drop_segments(now_ns)

    def _nodes_lacking_log(self) -> list[int]:
        """Peers that may need a checkpoint, according to their offers.

        This node repeats its offer to them: an earlier one may have been lost, or may have arrived before the peer knew
        this node. An index-only serializer stores no payloads, so its own log does not show whether a peer finds those
        that it lacks: it repeats its offer to every peer that the checkpoint would help.
        """
        first = self.durable + 1 if self._log.index_only else self._log.segment_index.first
        return [node for node, offer in self.offers.items() if offer.agreed + 1 < first]

    def _lacks_log(self, offer: SnapshotOffer) -> bool:
        return offer.agreed + 1 < self._log.segment_index.first

    def drop_segments(self, now_ns: int) -> None:
        """Delete the segments that can be dropped now."""
        log = self._log
        waiting = (self.durable and len(log.segment_index.segments) > 1) or self._nodes_lacking_log()
        if waiting and self.due_ns is None:
            self.due_ns = now_ns + LOOK_NS
        self._lagging.expire(now_ns)
        limit = min(self.covered_through(), self.first_needed() - 1)
        dropped = droppable(
            log.segment_index, self._settings.rules, now_ns, limit=limit, released=self._execution.state.released
        )
        if not dropped:
            return
        self.dropped_segments += dropped
        self.dropped_bytes += sum(segment.size_bytes for segment in log.segment_index.segments[:dropped])
        operations = log.drop(dropped, limit)
        self._ticket += 1
        self._writing[self._ticket] = 0
        self.effects.append(Persist(self._ticket, operations))
        self.effects.append(Report("segments dropped", detail={"segments": dropped, "first": log.segment_index.first}))
        self.broadcast_offer()

    def retained_bytes(self, now_ns: int, index: int) -> int:
        """Octets of the segments that are retained only because a component needs messages from `message` on."""
        segment_index, released = self._log.segment_index, self._execution.state.released
        droppable_without, droppable_with = (
            droppable(segment_index, self._settings.rules, now_ns, limit=limit, released=released)
            for limit in (self.covered_through(), min(self.covered_through(), index - 1))
        )
        return sum(segment.size_bytes for segment in segment_index.segments[droppable_with:droppable_without])

    def covered_through(self) -> int:
        """The last message that is covered by the checkpoints of this node, of a quorum, and of every connected or
        returning member.
        """
        if not self.confirmed:
            return 0
        return min([self.durable, *(offer.index for offer in self.offers.values()), *self._lagging.checkpoints()])

    def first_needed(self) -> int:
        """The first message that any component still needs."""
        return first_needed(self._execution.state.staged_packs, [need() for need in self._needed_by])
