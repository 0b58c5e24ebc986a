"""What the parts of the sequence share: the log, the others, what was promised, and the way to say something.

It decides nothing. A *bearing* is read off here, so that no message can claim what is not so at that moment.

Invariants: the promised ballot never goes down within a tenure; a seat belongs to one memory.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from chaplain.core import Report
from chaplain.mesh.events import Whisper
from chaplain.sequence.events import Became, SequenceEffect
from chaplain.sequence.messages.entry import NO_BALLOT, Ballot, SeatedMember
from chaplain.sequence.messages.peer import Bearing, Beat, EntryBatch, Message, Seq, SequenceState, encode
from chaplain.sequence.peers import SequencePeer, SequencePeers
from chaplain.sequence.publish_queue import PublishQueue
from chaplain.sequence.settings import SequenceSettings
from chaplain.sequence.window.base import End, WindowBase
from chaplain.sequence.window.entries import EntryBase, HeldEntry
from chaplain.sequence.window.log import NOTHING, SequenceLog, set_behind
from chaplain.sequence.work_set import WorkSet
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel

_TWO_SUFFICE = 3
"""In a work set of so many two are more than half: who has an entry from one that holds it knows that it is decided."""


class SequenceContext:
    def __init__(
        self, settings: SequenceSettings, chance: random.Random, removed: Callable[[], Collection[int]] = tuple
    ) -> None:
        self.settings = settings
        self.chance = chance
        self.removed = removed
        """Who was removed from the cluster, as far as this node knows: more with time, never less."""
        self.company = SequencePeers()
        self.publishing = PublishQueue()
        self.counts: Counter[str] = Counter()
        self.out: list[SequenceEffect] = []
        self.now_ns = 0
        """Time as the sequence counts it: it never goes back, and a pause counts little."""
        self.state = SequenceState.DSC
        self.reason = "looking for others"
        self.since_ns = 0
        self.tenure = 0
        self.remembers = False
        self.wants = False
        self.seat = self._draw()
        self.me = SeatedMember(settings.identifier, self.seat)
        self.clear()

    def _draw(self) -> int:
        return self.chance.randrange(1, 1 << 64)

    def clear(self) -> None:
        """Forget everything that a seat remembers."""
        self.history = 0
        self.log = SequenceLog(NOTHING)
        self.promised: Ballot = NO_BALLOT
        self.foot = WindowBase()
        self.streams: dict[str, End] = {}
        self.events = 0
        self.alone = False
        """Founded with an empty list."""
        self.ack_due = False
        """Something was accepted that the others do not know of yet."""
        self._wish_told = False
        """What all others last heard of `wants`: who gets its turn from us may have heard it from nobody else."""
        self._others: tuple[WorkSet, int, list[SequencePeer]] | None = None
        """Whom `members` found last, in which work set and company."""
        self.look_for_seat()

    def new_seat(self) -> None:
        self.tenure = min(self.tenure + 1, 0xFFFF)
        self.seat = self._draw()
        self.me = SeatedMember(self.settings.identifier, self.seat)
        self.clear()
        self.company.forget()

    def start_from(
        self, history: int, base: EntryBase = NOTHING, members: WorkSet = (), streams: Mapping[str, End] | None = None
    ) -> None:
        self.clear()
        self.history = history
        self.log = SequenceLog(base, members)
        self.look_for_seat()
        self.foot = WindowBase(members, streams)
        self.streams = dict(self.foot.streams)
        self.events = sum(number for number, _ in self.streams.values())

    # Who I am.

    def look_for_seat(self) -> None:
        """To be called when the work set behind the last decided entry has changed, and only that changes these."""
        self.is_member = self.me in self.log.members
        self.learns = bool(self.log.members) and not self.is_member
        """Whether it follows a history in which it has no seat yet."""

    @property
    def counts_here(self) -> bool:
        """Whether somebody may count what it holds: it has a seat, or will have one if what is undecided is decided."""
        return self.is_member or self.knows(self.me)

    def knows(self, member: SeatedMember) -> bool:
        """Whether it is in the work set, or would be if what is undecided were decided."""
        if not self.log.changing:
            return member in self.log.members
        return any(member in members for members in self.log.sets())

    def dead(self, members: WorkSet) -> Collection[int]:
        """The seats that lost their memory, for who counts whether half is enough.

        Only one of that half can tell: the words of the others may be old. While its own memory lasts, the other half
        did not go on because this one was dead.
        """
        return self.company.dead if self.me in members else ()

    def bearing(self) -> Bearing:
        log = self.log
        return Bearing(
            self.state,
            self.history,
            self.seat,
            self.tenure,
            self.wants,
            self.remembers,
            self.promised,
            log.head,
            log.decided,
            log.decided_hash,
            self.events,
        )

    def become(self, state: SequenceState, reason: str) -> None:
        if (state, reason) == (self.state, self.reason):
            return
        if state is not self.state:
            self.since_ns = self.now_ns
            self.out.append(Report("sequence", detail={"state": state.name, "reason": reason, "history": self.name}))
        self.state, self.reason = state, reason
        self.out.append(Became(state, reason))

    @property
    def name(self) -> str:
        return history_name(self.history)

    # Saying.

    def tell(self, fellow: SequencePeer, message: Message) -> None:
        self.tell_all((fellow,), message)

    def tell_all(self, fellows: Iterable[SequencePeer], message: Message) -> None:
        body, payload = encode(message)
        content = parcel.encode(Parcel(self.settings.identifier, Layer.SEQUENCE, body, payload))
        for fellow in fellows:
            if fellow.connected:
                self.out.append(Whisper(fellow.instance, content, urgent=True))

    def members(self) -> list[SequencePeer]:
        """The connected others of the work set, undecided changes included, in order."""
        log, company, kept = self.log, self.company, self._others
        if kept is not None and kept[0] is log.members and kept[1] == company.changes and not log.changing:
            return kept[2]
        known = {member.identifier for members in log.sets() for member in members}
        fellows = company.fellows
        others = [fellows[who] for who in sorted(known) if who in fellows and fellows[who].connected]
        self._others = None if log.changing else (log.members, company.changes, others)
        return others

    def acknowledge(self) -> None:
        """Say that we hold our last entry to its author, or to all if they need it to count (0072)."""
        log, others = self.log, self.members()
        self.ack_due = False
        two_suffice = len(log.members) <= _TWO_SUFFICE and not log.changing
        if two_suffice and log.author is not None and not (self.wants or self._wish_told):
            others = [one for one in others if one.identifier == log.author]
        else:
            self._wish_told = self.wants
        self.tell_all(others, Beat(self.bearing()))

    def spread(self, after: int) -> None:
        """Say what is held behind this index to everybody it concerns; that acknowledges all before it."""
        self.ack_due = False
        self._wish_told = self.wants
        self.tell_all(self.members(), self.entries_after(after))

    def spread_last(self, before: bytes, last: HeldEntry) -> None:
        """The same of the last entry alone, with the hash of the one before it."""
        self.ack_due = False
        self._wish_told = self.wants
        self.tell_all(self.members(), EntryBatch(self.bearing(), last.index - 1, before, last.entry.encoded))

    def number(self) -> Seq:
        """What one needs who would learn all that we remember: the foot of our window, or what the first entry left."""
        log, foot = self.log, self.foot
        base, members = log.base, foot.members
        if not base.index:
            first = log.at(1)
            assert first is not None, "only who has a seat is asked"
            base, members = log.base_at(1), set_behind((), first.entry)
        return Seq(self.bearing(), base.index, base.hash, base.ballot, base.next, members, dict(foot.streams))

    def entries_after(self, index: int) -> EntryBatch:
        before = self.log.hash_at(index)
        assert before is not None
        return EntryBatch(self.bearing(), index, before, b"".join(held.entry.encoded for held in self.log.after(index)))

    def rank(self) -> int:
        """How many lower members were heard lately: those act first."""
        fresh = self.company.fresh(self.now_ns, self.settings.silence_ns)
        return sum(1 for fellow in fresh if fellow.identifier < self.settings.identifier)


def history_name(history: int) -> str:
    return f"{history:016x}" if history else ""
