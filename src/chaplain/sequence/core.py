"""The sequence of one node: one agreed, gapless order of events, held in the memories of a work set.

Decides what is accepted, what is decided, and what state the node is in. Who writes is `locking`'s, who is in is
`changes`' and `discovery`'s. Refuses to know clients, streams' readers and disks. Why nothing forks and nothing that
was acknowledged is lost: docs/protocol/sequence.md.

Invariants, asserted here or in the parts: what is decided never changes and has no gaps; an entry is accepted only
under the promised ballot or because it is decided; consecutive work sets differ by one member; who is not in the set
acknowledges nothing; a memory that is lost is a new seat.
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
from chaplain.sequence.events import Publish, SequenceEffect, SequenceInput, Unpublished
from chaplain.sequence.idle_check import IdleCheck
from chaplain.sequence.lock import SequenceLock
from chaplain.sequence.messages.entry import SeatedMember
from chaplain.sequence.messages.peer import (
    Bearing,
    Beat,
    DscReq,
    DscRes,
    EntryBatch,
    Fill,
    Lock,
    LockGranted,
    LockRefused,
    Message,
    Seq,
    SeqRes,
    SequenceState,
    Why,
    decode,
)
from chaplain.sequence.peers import SequencePeer
from chaplain.sequence.proposer import Proposer
from chaplain.sequence.reconfiguration import awaited, lacking
from chaplain.sequence.settings import SequenceSettings
from chaplain.sequence.window.entries import EntryBase
from chaplain.sequence.work_set import WorkSet, is_lost

_STEP_NS_MAX = 10**9
"""A step counts no more time than this: who was paused must not think that the others were."""


class SequenceCore:
    def __init__(
        self,
        settings: SequenceSettings,
        chance: random.Random,
        now_ns: int,
        belonging: Callable[[], Iterable[int]] | None = None,
        removed: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """`belonging` says who belongs to the cluster now, where that is agreed on; else it is who is configured.

        `removed` says who belonged to it once and never will again.
        """
        self.settings = settings
        self.bench = SequenceContext(settings, chance, removed)
        self.discovery = HistoryDiscovery(self.bench, belonging or (lambda: settings.listed))
        self.locking = SequenceLock(self.bench)
        self._deciding = CommitRule(self.bench)
        self._writing = Proposer(self.bench, self.locking, self._decide)
        self._intake = Acceptor(self.bench, self.locking, self.discovery, self._advance)
        self._learning = CatchUp(self.bench, self._intake.lacks, self._leave)
        self._parts = (self.locking, self.discovery, self._writing, self._intake, self._learning)
        self._calm = IdleCheck(self.bench)
        self._clock_ns = now_ns
        self._beat_ns = 0
        self._stirred = True
        """Something came since we acted last."""
        self._rests = False
        """Nothing is to be written, decided or waited for, by one who has a seat."""
        self._rival: tuple[int, int] | None = None
        """Another history with events in it, and when it was last met."""

    # Time.

    def deadline(self) -> int | None:
        due_ns = self._beat_ns
        for part in (self._intake,) if self._rests else self._parts:
            when = part.due_ns()
            if when is not None and when < due_ns:
                due_ns = when
        left_ns = due_ns - self.bench.now_ns
        return self._clock_ns + left_ns if left_ns > 0 else self._clock_ns

    def step(self, now_ns: int, event: SequenceInput) -> list[SequenceEffect]:
        kind = type(event)
        if kind is Drained and not self._stirred:
            return []  # others of the node were woken, not we
        passed_ns = now_ns - self._clock_ns
        if passed_ns > 0:
            self.bench.now_ns += passed_ns if passed_ns < _STEP_NS_MAX else _STEP_NS_MAX
        self._clock_ns = now_ns
        self._stirred = kind is not Drained and kind is not Woken
        self._rests = False
        match event:
            case GossipParcel():
                self._told(event)
            case Publish():
                self._publish(event)
            case Drained():
                self._act()
            case Woken():
                self._tick()
                self._act()
            case Entered():
                self.bench.company.enter(event.peer)
                fellow = self.bench.company.fellows[event.peer.identifier]
                self.bench.tell(fellow, DscReq(self.bench.bearing(), self.discovery.neighbours()))
                self.locking.hurry()
            case Exited():
                self.bench.company.exit(event.peer)
                self._learning.gone(event.peer.identifier)
                self.locking.hurry()
            case MemberChanged():
                self.discovery.member_changed(event)
            case Stopping():
                pass
            case _:
                assert_never(event)
        effects, self.bench.out = self.bench.out, []
        return effects

    def _tick(self) -> None:
        bench = self.bench
        assert bench.is_member is (bench.me in bench.log.members), "a change of the work set was overlooked"
        assert bench.company.wanting == sum(fellow.bearing.wants for fellow in bench.company.fellows.values())
        self._calm.end()
        self.discovery.look()
        self._learning.look()
        if bench.now_ns >= self._beat_ns:
            self._beat_ns = bench.now_ns + self.settings.heartbeat_ns
            if bench.history:
                bench.tell_all(bench.company.connected(), Beat(bench.bearing()))
        self._intake.tick()
        self._assess()

    def _act(self) -> None:
        """Everything that came has been taken in: write, wait for the lock, acknowledge."""
        bench = self.bench
        calm = self._calm.lasts()
        if not bench.is_member:
            self.discovery.look()
        if bench.log.head.index > bench.log.decided:
            self._decide()
        if calm and self._writing.rests():
            self._rests = True
            if bench.ack_due:
                bench.acknowledge()
            return
        if not calm:
            self._writing.look_for_chores()
        self._writing.watch()
        ballot = self.locking.complete()
        if ballot is not None:
            self._writing.write_first(ballot)
            calm = False  # what was found may change the work set
        elif bench.state is SequenceState.WRK or bench.log.changing:
            self._writing.write()
        self._writing.wait()
        if bench.ack_due and bench.counts_here:
            bench.acknowledge()
        if not calm:
            self._assess()
            if not self._writing.has_chore and self._rival is None:
                self._calm.begin()

    # States.

    def _assess(self) -> None:
        bench = self.bench
        members = bench.log.members
        if not bench.history or bench.learns:
            bench.become(
                SequenceState.DSC, "learns what the others remember" if bench.history else "looking for others"
            )
            self._give_up_waiting()
            return
        if members and is_lost(members, bench.company.dead):
            self._leave(f"history {bench.name} is lost: more than half of its memories are gone")
            return
        if not members:
            if bench.now_ns - bench.since_ns > self.settings.silence_ns and bench.log.head.index == 1:
                self._leave("a history was to begin, and too few answered")
            return
        if self._rival is not None and bench.now_ns - self._rival[1] > self.settings.silence_ns:
            self._rival = None
        if self._rival is not None:
            other = history_name(self._rival[0])
            self._fall(f"histories {bench.name} and {other} both hold events: restart the nodes of one of them")
        elif (short := lacking(bench)) is not None:
            self._fall(_shortage(short, awaited(bench), bench.removed()))
        else:
            bench.become(SequenceState.WRK, "")

    def _fall(self, reason: str) -> None:
        bench = self.bench
        bench.become(SequenceState.ERR, reason)
        self._refuse_pending(f"this node is in ERR: {reason}")
        for token in bench.publishing.abandon_placed():
            bench.out.append(Unpublished(token, "unknown", f"this node fell into ERR meanwhile: {reason}"))

    def _give_up_waiting(self) -> None:
        bench = self.bench
        if bench.now_ns - bench.since_ns > self.settings.patience_ns:
            found = "has no seat in the work set yet" if bench.history else "found no work set to join"
            self._refuse_pending(f"this node is in DSC: it {found}; see that its neighbours run")

    def _refuse_pending(self, reason: str) -> None:
        for token in self.bench.publishing.abandon_pending():
            self.bench.out.append(Unpublished(token, "refused", reason))

    def _leave(self, reason: str) -> None:
        """What this seat remembered is of no use any more: begin anew under another."""
        bench = self.bench
        bench.out.append(Report("sequence left", detail={"reason": reason, "history": bench.name}))
        for token in bench.publishing.abandon_placed():
            bench.out.append(Unpublished(token, "unknown", reason))
        bench.new_seat()
        bench.counts["seats_left"] += 1
        self.locking.reset()
        self._writing.reset()
        self._intake.reset()
        self._rival = None
        bench.since_ns = bench.now_ns
        bench.become(SequenceState.DSC, reason)

    # Publishing.

    def _publish(self, publish: Publish) -> None:
        bench, settings = self.bench, self.settings
        size = sum(map(len, publish.values)) + 4 * len(publish.values)
        if bench.state is SequenceState.ERR:
            refusal = Unpublished(publish.token, "refused", f"this node is in ERR: {bench.reason}; ask another node")
        elif not publish.values or size > settings.publish_bytes_max:
            reason = f"one call publishes 1 event or more, up to {settings.publish_bytes_max} bytes in all, not {size}"
            refusal = Unpublished(publish.token, "refused", reason)
        elif bench.publishing.pending_bytes + size > settings.pending_bytes_max:
            refusal = Unpublished(publish.token, "busy", "too many events wait to be numbered: wait for answers first")
        elif publish.stream not in bench.streams and len(bench.streams) >= settings.streams_max:
            refusal = Unpublished(publish.token, "refused", f"there are {settings.streams_max} streams already")
        else:
            bench.publishing.add(publish)
            return
        bench.counts["publishes_refused"] += 1
        bench.out.append(refusal)

    # What others say.

    def _told(self, told: GossipParcel) -> None:
        bench, said = self.bench, told.parcel
        try:
            message = decode(said.body, said.payload)
            if said.node != told.peer.identifier:
                raise Malformed(f"sequence: {told.peer.identifier:08x} speaks for {said.node:08x}")
            fellow = bench.company.note(bench.now_ns, told.peer, message.bearing)
            if fellow is None:
                return
            self._heard(fellow, message)
            if type(message) is not Beat:
                self._answer(fellow, message)
        except Malformed as wrong:
            bench.counts["parcels_malformed"] += 1
            detail = {"reason": str(wrong)}
            bench.out.append(Report("malformed sequence parcel", f"{told.peer.identifier:08x}", detail))

    def _heard(self, fellow: SequencePeer, message: Message) -> None:
        bench, bearing = self.bench, message.bearing
        if bearing.history and bearing.decided:
            bench.remembers = True
        if not bench.history or not bearing.history:
            return
        if bearing.history != bench.history:
            if not bench.learns:
                self._meet_history(bearing)
        elif bench.learns:
            self._learn(fellow, bearing)
        elif (fellow.identifier, bearing.seat) in bench.log.members or bench.knows(_seated(fellow)):
            if bearing.promised > bench.promised:
                self.locking.promise(bearing.promised)
            if bearing.decided > bench.log.decided:
                self._intake.learn_decided(bearing)
            if type(message) is EntryBatch and message.entries:
                return  # what it brings is what we lack, or will tell
            if self._intake.lack is not None or bearing.head > bench.log.head or bearing.decided > bench.log.decided:
                self._intake.note_lack(fellow, bearing)

    def _learn(self, fellow: SequencePeer, bearing: Bearing) -> None:
        """We may not know yet that it is in the work set; what is decided is so whoever says it."""
        if bearing.state is SequenceState.DSC:
            return
        if self.bench.knows(_seated(fellow)):
            self.locking.promise(bearing.promised)
        self._intake.learn_decided(bearing)
        self._learning.heard(fellow)

    def _meet_history(self, bearing: Bearing) -> None:
        """Two histories: the one without events gives way; of two such, the one with the higher name."""
        bench = self.bench
        mine, theirs = bench.events, bearing.events
        if mine and theirs:
            self._rival = (bearing.history, bench.now_ns)
            self._calm.end()
        elif not mine and bearing.decided and (theirs or not bench.log.decided or bench.history > bearing.history):
            self._leave(f"history {bench.name} holds no events and gives way to {history_name(bearing.history)}")

    def _answer(self, fellow: SequencePeer, message: Message) -> None:
        bench = self.bench
        match message:
            case Beat():
                pass
            case EntryBatch():
                self._intake.take_in(fellow, message)
                if bench.learns:
                    self._learning.took(fellow)
            case DscReq():
                self.discovery.learn(dict(message.neighbours))
                bench.tell(fellow, DscRes(bench.bearing(), self.discovery.neighbours()))
            case DscRes():
                self.discovery.learn(dict(message.neighbours))
            case SeqRes():
                if message.bearing.history:
                    bench.company.asks(bench.now_ns, fellow)
                elif bench.is_member:
                    bench.tell(fellow, bench.number())
            case Seq():
                self._enter(fellow, message)
            case Lock() | LockGranted() | LockRefused() | Fill():
                if bench.history and message.bearing.history == bench.history:
                    self._negotiate(fellow, message)
            case _:
                assert_never(message)

    def _negotiate(self, fellow: SequencePeer, message: Lock | LockGranted | LockRefused | Fill) -> None:
        match message:
            case Lock():
                self.locking.asked(fellow, message)
            case LockGranted():
                self.locking.granted(fellow, message)
            case LockRefused():
                self.locking.refused(fellow, message)
                if message.why is Why.FORGOTTEN:
                    self._leave("fell behind by more than the others remember")
                elif message.why is Why.OUTSIDE and message.bearing.decided >= self.bench.log.decided:
                    self._leave("is no longer in the work set")
            case Fill():
                self._intake.fill(fellow, message.bearing)

    # Joining.

    def _enter(self, fellow: SequencePeer, seq: Seq) -> None:
        """Begin to follow a history: without a seat in it, or with the one we were given at its beginning, unheard."""
        bench = self.bench
        if bench.history or not seq.bearing.history or seq.bearing.state is SequenceState.DSC:
            return
        base = EntryBase(seq.index, seq.hash, seq.ballot, seq.next)
        bench.start_from(seq.bearing.history, base, seq.members, seq.streams)
        bench.promised = max(seq.bearing.promised, seq.ballot)
        bench.remembers = True
        bench.ack_due = True
        self._deciding.began()
        self._learning.began(fellow)
        self._assess()

    # Deciding.

    def _decide(self) -> None:
        if self.bench.history:
            index = self._deciding.decidable()
            if index > self.bench.log.decided:
                self._advance(index)

    def _advance(self, index: int) -> None:
        """Everything up to this index is agreed."""
        bench = self.bench
        before = bench.log.members
        self._deciding.advance(index)
        bench.remembers = True
        self._writing.decided()
        if bench.log.members is before:
            return
        if bench.log.members != before:
            self.locking.hurry()
            for member in bench.log.members:
                fellow = bench.company.fellows.get(member.identifier)
                if fellow is not None and member not in before:
                    bench.tell(fellow, Beat(bench.bearing()))  # it has a seat: that is what it waits for
        if bench.me in before and not bench.is_member:
            self._leave("is no longer in the work set")


def _shortage(members: WorkSet, here: Collection[int], removed: Collection[int]) -> str:
    missing = [member.identifier for member in members if member.seat not in here]
    reason = f"reaches {len(members) - len(missing)} of the {len(members)} members of the work set: no majority"
    count = len([who for who in missing if who in removed])
    if not count:
        return reason
    return f"{reason}; {count} of them were removed from the cluster: if those have ended, restart who is here"


def _seated(fellow: SequencePeer) -> SeatedMember:
    return SeatedMember(fellow.identifier, fellow.bearing.seat)
