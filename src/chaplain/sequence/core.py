"""The sequence core of one node: one agreed, gapless order of events, replicated in the memory of a work set.

Decides which entries are accepted, which are decided (committed), and the node's state. The other parts decide the
rest: `lock` selects the writer, `reconfiguration` and `discovery` select the work set. The core does not know clients,
readers or disks. docs/protocol/sequence.md explains why histories do not fork and no acknowledged event is lost.

Invariants, asserted here or in the parts: decided entries never change and have no gaps; an entry is accepted only
under the promised ballot or because it is decided; consecutive work sets differ by one member; a node outside the set
acknowledges nothing; a node that lost its memory takes a new seat.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from typing import assert_never

from chaplain.core import Drained, Report, Stopping, Woken
from chaplain.errors import Malformed
from chaplain.gossip.events import GossipParcel, MemberChanged
from chaplain.mesh.events import Entered, Exited
from chaplain.sequence.acceptor import Acceptor
from chaplain.sequence.catch_up import CatchUp
from chaplain.sequence.commit import CommitRule
from chaplain.sequence.context import SequenceContext, history_name
from chaplain.sequence.discovery import HistoryDiscovery
from chaplain.sequence.events import Confirm, Publish, SequenceEffect, SequenceInput, Unpublished
from chaplain.sequence.idle_check import IdleCheck
from chaplain.sequence.lock import SequenceLock
from chaplain.sequence.messages.entry import SeatedMember
from chaplain.sequence.messages.peer import (
    Beat,
    DscReq,
    DscRes,
    EntryBatch,
    Fill,
    Lock,
    LockGranted,
    LockRefused,
    Message,
    PeerState,
    Seq,
    SeqRes,
    SequenceState,
    Why,
    decode,
)
from chaplain.sequence.peers import SequencePeer
from chaplain.sequence.proposer import Proposer
from chaplain.sequence.reconfiguration import set_without_quorum, unsilenced_seats
from chaplain.sequence.settings import SequenceSettings
from chaplain.sequence.window.entries import EntryBase
from chaplain.sequence.work_set import WorkSet, is_lost

_STEP_NS_MAX = 10**9
"""One step counts at most this much time: after a pause, a node must not conclude that the others were silent."""


class SequenceCore:
    def __init__(
        self,
        settings: SequenceSettings,
        rng: random.Random,
        now_ns: int,
        cluster_members: Callable[[], Iterable[int]] | None = None,
        removed: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """`cluster_members` returns the agreed members of the cluster; without it, the configured nodes count.

        `removed` returns the nodes that were removed from the cluster for good.
        """
        self.settings = settings
        self.context = SequenceContext(settings, rng, removed)
        self.discovery = HistoryDiscovery(self.context, cluster_members or (lambda: settings.listed))
        self.lock = SequenceLock(self.context)
        self._commit = CommitRule(self.context)
        self._proposer = Proposer(self.context, self.lock, self._decide)
        self._acceptor = Acceptor(self.context, self.lock, self.discovery, self._advance)
        self._catch_up = CatchUp(self.context, self._acceptor.lacks, self._abandon_history)
        self._parts = (self.lock, self.discovery, self._proposer, self._acceptor, self._catch_up)
        self._idle_check = IdleCheck(self.context)
        self._clock_ns = now_ns
        self._beat_ns = 0
        self._has_input = True
        """An input has arrived since the last `_work`."""
        self._is_idle = False
        """This member has nothing to write, to decide or to wait for."""
        self._rival: tuple[int, int] | None = None
        """Another history that contains events, and when it was last seen."""

    # Time.

    def deadline(self) -> int | None:
        due_ns = self._beat_ns
        for part in (self._acceptor,) if self._is_idle else self._parts:
            when = part.due_ns()
            if when is not None and when < due_ns:
                due_ns = when
        left_ns = due_ns - self.context.now_ns
        return self._clock_ns + left_ns if left_ns > 0 else self._clock_ns

    def step(self, now_ns: int, event: SequenceInput) -> list[SequenceEffect]:
        kind = type(event)
        if kind is Drained and not self._has_input:
            return []  # the input was for another layer of the node
        passed_ns = now_ns - self._clock_ns
        if passed_ns > 0:
            self.context.now_ns += passed_ns if passed_ns < _STEP_NS_MAX else _STEP_NS_MAX
        self._clock_ns = now_ns
        self._has_input = kind is not Drained and kind is not Woken
        self._is_idle = False
        match event:
            case GossipParcel():
                self._on_parcel(event)
            case Publish():
                self._publish(event)
            case Confirm():
                self._confirm(event)
            case Drained():
                self._work()
            case Woken():
                self._tick()
                self._work()
            case Entered():
                self.context.peers.enter(event.peer)
                peer = self.context.peers.by_id[event.peer.identifier]
                self.context.send(peer, DscReq(self.context.own_state(), self.discovery.neighbours()))
                self.lock.shorten_wait()
            case Exited():
                self.context.peers.exit(event.peer)
                self._catch_up.peer_exited(event.peer.identifier)
                self.lock.shorten_wait()
            case MemberChanged():
                self.discovery.member_changed(event)
            case Stopping():
                pass
            case _:
                assert_never(event)
        effects, self.context.out = self.context.out, []
        return effects

    def _tick(self) -> None:
        context = self.context
        assert context.is_member is (context.me in context.log.members), "a change of the work set was overlooked"
        assert context.peers.wanting == sum(peer.last_state.wants for peer in context.peers.by_id.values())
        self._idle_check.reset()
        self.discovery.poll()
        self._catch_up.poll()
        if context.now_ns >= self._beat_ns:
            self._beat_ns = context.now_ns + self.settings.heartbeat_ns
            if context.history:
                context.send_all(context.peers.connected(), Beat(context.own_state()))
        self._acceptor.tick()
        self._update_state()

    def _work(self) -> None:
        """Act on all inputs of this batch: decide, write, wait for the lock, acknowledge."""
        context = self.context
        idle = self._idle_check.is_current()
        if not context.is_member:
            self.discovery.poll()
        if context.log.head.index > context.log.decided:
            self._decide()
        if idle and self._proposer.is_idle():
            self._is_idle = True
            if context.ack_due:
                context.acknowledge()
            return
        if not idle:
            self._proposer.check_for_change()
        self._proposer.watch_undecided()
        ballot = self.lock.complete()
        if ballot is not None:
            self._proposer.write_first(ballot)
            idle = False  # the adopted entries may change the work set
        elif context.state is SequenceState.WRK or context.log.changing:
            self._proposer.write()
        self._proposer.wait_for_lock()
        if context.ack_due and context.may_be_counted:
            context.acknowledge()
        if not idle:
            self._update_state()
            if not self._proposer.has_due_change and self._rival is None:
                self._idle_check.start()

    # States.

    def _update_state(self) -> None:
        context = self.context
        members = context.log.members
        if not context.history or context.is_learning:
            context.set_state(
                SequenceState.DSC, "learns what the others remember" if context.history else "looking for others"
            )
            self._refuse_overdue()
            return
        if members and is_lost(members, context.peers.dead):
            self._abandon_history(f"history {context.name} is lost: more than half of its memories are gone")
            return
        if not members:
            if context.now_ns - context.since_ns > self.settings.silence_ns and context.log.head.index == 1:
                self._abandon_history("a history was to begin, and too few answered")
            return
        if self._rival is not None and context.now_ns - self._rival[1] > self.settings.silence_ns:
            self._rival = None
        if self._rival is not None:
            other = history_name(self._rival[0])
            self._enter_error(
                f"histories {context.name} and {other} both hold events: restart the nodes of one of them"
            )
        elif (short := set_without_quorum(context)) is not None:
            self._enter_error(_shortage(short, unsilenced_seats(context), context.removed()))
        else:
            context.set_state(SequenceState.WRK, "")

    def _enter_error(self, reason: str) -> None:
        """Enter ERR: refuse waiting publishes, and report the outcome of those in the log as unknown."""
        context = self.context
        context.set_state(SequenceState.ERR, reason)
        self._refuse_pending(f"this node is in ERR: {reason}")
        for token in context.publish_queue.abandon_placed():
            context.out.append(Unpublished(token, "unknown", f"this node fell into ERR meanwhile: {reason}"))

    def _refuse_overdue(self) -> None:
        """In DSC for longer than `patience_ns`: refuse the waiting publishes."""
        context = self.context
        if context.now_ns - context.since_ns > self.settings.patience_ns:
            found = "has no seat in the work set yet" if context.history else "found no work set to join"
            self._refuse_pending(f"this node is in DSC: it {found}; see that its neighbours run")

    def _refuse_pending(self, reason: str) -> None:
        for token in self.context.publish_queue.abandon_pending():
            self.context.out.append(Unpublished(token, "refused", reason))

    def _abandon_history(self, reason: str) -> None:
        """Give up this seat and its memory, and start discovery with a new seat."""
        context = self.context
        context.out.append(Report("sequence left", detail={"reason": reason, "history": context.name}))
        for token in context.publish_queue.abandon_placed():
            context.out.append(Unpublished(token, "unknown", reason))
        context.new_seat()
        context.counts["seats_left"] += 1
        self.lock.reset()
        self._proposer.reset()
        self._acceptor.reset()
        self._rival = None
        context.since_ns = context.now_ns
        context.set_state(SequenceState.DSC, reason)

    # Publishing.

    def _publish(self, publish: Publish) -> None:
        context, settings = self.context, self.settings
        size = sum(map(len, publish.values)) + 4 * len(publish.values)
        if context.state is SequenceState.ERR:
            refusal = Unpublished(publish.token, "refused", f"this node is in ERR: {context.reason}; ask another node")
        elif not publish.values or size > settings.publish_bytes_max:
            reason = f"one call publishes 1 event or more, up to {settings.publish_bytes_max} bytes in all, not {size}"
            refusal = Unpublished(publish.token, "refused", reason)
        elif context.publish_queue.pending_bytes + size > settings.pending_bytes_max:
            refusal = Unpublished(publish.token, "busy", "too many events wait to be numbered: wait for answers first")
        elif publish.stream not in context.streams and len(context.streams) >= settings.streams_max:
            refusal = Unpublished(publish.token, "refused", f"there are {settings.streams_max} streams already")
        else:
            context.publish_queue.add(publish)
            return
        context.counts["publishes_refused"] += 1
        context.out.append(refusal)

    def _confirm(self, confirm: Confirm) -> None:
        context = self.context
        if context.state is SequenceState.ERR:
            reason = f"this node is in ERR: {context.reason}; ask another node"
            context.out.append(Unpublished(confirm.token, "refused", reason))
        elif context.publish_queue.pending_bytes > self.settings.pending_bytes_max:
            context.out.append(Unpublished(confirm.token, "busy", "too many events wait to be numbered: read later"))
        else:
            context.publish_queue.add_confirmation(confirm)

    # Messages of peers.

    def _on_parcel(self, event: GossipParcel) -> None:
        context, parcel = self.context, event.parcel
        try:
            message = decode(parcel.body, parcel.payload)
            if parcel.node != event.peer.identifier:
                raise Malformed(f"sequence: {event.peer.identifier:08x} speaks for {parcel.node:08x}")
            peer = context.peers.note(context.now_ns, event.peer, message.peer_state)
            if peer is None:
                return
            self._on_status(peer, message)
            if type(message) is not Beat:
                self._dispatch(peer, message)
        except Malformed as wrong:
            context.counts["parcels_malformed"] += 1
            detail = {"reason": str(wrong)}
            context.out.append(Report("malformed sequence parcel", f"{event.peer.identifier:08x}", detail))

    def _on_status(self, peer: SequencePeer, message: Message) -> None:
        """Process the sender's state (see `messages.peer`) at the start of every message."""
        context, peer_state = self.context, message.peer_state
        if peer_state.history and peer_state.decided:
            context.remembers = True
        if not context.history or not peer_state.history:
            return
        if peer_state.history != context.history:
            if not context.is_learning:
                self._on_other_history(peer_state)
        elif context.is_learning:
            self._on_status_while_learning(peer, peer_state)
        elif (peer.identifier, peer_state.seat) in context.log.members or context.is_in_any_set(_seated(peer)):
            if peer_state.promised > context.promised:
                self.lock.promise(peer_state.promised)
            if peer_state.decided > context.log.decided:
                self._acceptor.learn_decided(peer_state)
            if type(message) is EntryBatch and message.entries:
                return  # its entries are what we lack; `Acceptor.on_entries` requests the rest
            if (
                self._acceptor.missing is not None
                or peer_state.head > context.log.head
                or peer_state.decided > context.log.decided
            ):
                self._acceptor.note_missing(peer, peer_state)

    def _on_status_while_learning(self, peer: SequencePeer, peer_state: PeerState) -> None:
        """Learn decided entries from any member. We may not know yet that the sender is in the work set, but a decided
        entry is decided regardless of its sender.
        """
        if peer_state.state is SequenceState.DSC:
            return
        if self.context.is_in_any_set(_seated(peer)):
            self.lock.promise(peer_state.promised)
        self._acceptor.learn_decided(peer_state)
        self._catch_up.on_status(peer)

    def _on_other_history(self, peer_state: PeerState) -> None:
        """Resolve two histories: one without events yields; of two empty ones, the one with the higher id yields."""
        context = self.context
        mine, theirs = context.events, peer_state.events
        if mine and theirs:
            self._rival = (peer_state.history, context.now_ns)
            self._idle_check.reset()
        elif (
            not mine
            and peer_state.decided
            and (theirs or not context.log.decided or context.history > peer_state.history)
        ):
            self._abandon_history(
                f"history {context.name} holds no events and gives way to {history_name(peer_state.history)}"
            )

    def _dispatch(self, peer: SequencePeer, message: Message) -> None:
        context = self.context
        match message:
            case Beat():
                pass
            case EntryBatch():
                self._acceptor.on_entries(peer, message)
                if context.is_learning:
                    self._catch_up.on_entries(peer)
            case DscReq():
                self.discovery.learn_neighbours(dict(message.neighbours))
                context.send(peer, DscRes(context.own_state(), self.discovery.neighbours()))
            case DscRes():
                self.discovery.learn_neighbours(dict(message.neighbours))
            case SeqRes():
                if message.peer_state.history:
                    context.peers.asks(context.now_ns, peer)
                elif context.is_member:
                    context.send(peer, context.seq_message())
            case Seq():
                self._follow_history(peer, message)
            case Lock() | LockGranted() | LockRefused() | Fill():
                if context.history and message.peer_state.history == context.history:
                    self._negotiate(peer, message)
            case _:
                assert_never(message)

    def _negotiate(self, peer: SequencePeer, message: Lock | LockGranted | LockRefused | Fill) -> None:
        match message:
            case Lock():
                self.lock.on_lock(peer, message)
            case LockGranted():
                self.lock.on_granted(peer, message)
            case LockRefused():
                self.lock.on_refused(peer, message)
                if message.why is Why.FORGOTTEN:
                    self._abandon_history("fell behind by more than the others remember")
                elif message.why is Why.OUTSIDE and message.peer_state.decided >= self.context.log.decided:
                    self._abandon_history("is no longer in the work set")
            case Fill():
                self._acceptor.on_fill(peer, message.peer_state)

    # Joining a history.

    def _follow_history(self, peer: SequencePeer, seq: Seq) -> None:
        """Start to follow a history: without a seat, or with the seat that its founder gave us before we knew of it."""
        context = self.context
        if context.history or not seq.peer_state.history or seq.peer_state.state is SequenceState.DSC:
            return
        base = EntryBase(seq.index, seq.hash, seq.ballot, seq.next)
        context.start_from(seq.peer_state.history, base, seq.members, seq.streams)
        context.promised = max(seq.peer_state.promised, seq.ballot)
        context.remembers = True
        context.ack_due = True
        self._commit.report_history()
        self._catch_up.start(peer)
        self._update_state()

    # Deciding (committing).

    def _decide(self) -> None:
        if self.context.history:
            index = self._commit.decidable()
            if index > self.context.log.decided:
                self._advance(index)

    def _advance(self, index: int) -> None:
        """Apply all entries up to this index, which is decided."""
        context = self.context
        before = context.log.members
        self._commit.advance(index)
        context.remembers = True
        self._proposer.on_decided()
        if context.log.members is before:
            return
        if context.log.members != before:
            self.lock.shorten_wait()
            for member in context.log.members:
                peer = context.peers.by_id.get(member.identifier)
                if peer is not None and member not in before:
                    context.send(peer, Beat(context.own_state()))  # the new member learns at once that it has a seat
        if context.me in before and not context.is_member:
            self._abandon_history("is no longer in the work set")


def _shortage(members: WorkSet, here: Collection[int], removed: Collection[int]) -> str:
    missing = [member.identifier for member in members if member.seat not in here]
    reason = f"reaches {len(members) - len(missing)} of the {len(members)} members of the work set: no majority"
    count = len([identifier for identifier in missing if identifier in removed])
    if not count:
        return reason
    return f"{reason}; {count} of them were removed from the cluster: if those have ended, restart who is here"


def _seated(peer: SequencePeer) -> SeatedMember:
    return SeatedMember(peer.identifier, peer.last_state.seat)
