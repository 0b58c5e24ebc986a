"""What is agreed, and what follows from it: numbers, hashes, deliveries.

An index is decided when enough members of every work set from the last decided entry up to that before the index hold
the log of the promised ballot up to it, and the entry there was written under that ballot. All before it is decided
with it. So a change of the work set is decided by the old set, and what follows on an undecided one by both.

Invariant: an event's number is the count of its stream's events before it in the agreed order; so it has no gaps, and
every node that knows the order knows the number.
"""

from __future__ import annotations

from chaplain.core import Report
from chaplain.sequence.context import SequenceContext
from chaplain.sequence.events import Delivered, Forgot, HistoryBegan, Published
from chaplain.sequence.messages.entry import NO_HASH, EntryKind, run_hash
from chaplain.sequence.window.entries import HeldEntry
from chaplain.sequence.window.log import change_of
from chaplain.sequence.work_set import WorkSet, enough_index

_NOTHING = (0, NO_HASH)


class CommitRule:
    def __init__(self, bench: SequenceContext) -> None:
        self._bench = bench

    def began(self) -> None:
        bench = self._bench
        log = bench.log
        bench.out.append(HistoryBegan(bench.history, log.decided, log.decided_hash, dict(bench.streams)))

    def decidable(self) -> int:
        """The highest index that is decided by what the others say they hold; 0 if none is."""
        bench = self._bench
        log = bench.log
        if log.head.index == log.decided or log.head.ballot != bench.promised:
            return 0
        if not log.changing:
            index = enough_index(log.members, self._held(log.members), bench.dead(log.members))
            return log.head.index if index >= log.head.index else self._under_promised(index)
        index, held_by_all = 0, log.head.index
        asked: WorkSet = ()
        for held in log.after(log.decided):
            members = log.set_for(held)
            if members != asked:
                asked = members
                held_by_all = min(held_by_all, enough_index(members, self._held(members), bench.dead(members)))
            if held.index > held_by_all:
                break
            index = held.index
        return self._under_promised(index)

    # Two conditions below follow from others, so no test can tell the code without them from this one. `acked` is the
    # ballot and index of a member's last entry. `_held` counts it only under the promised ballot, so every index that
    # comes out is that of an entry under this ballot: `_under_promised` changes nothing. And a ballot contains the
    # random seat of its author, which is drawn anew whenever a memory is lost (decision 0073), so no ballot occurs in
    # two histories: comparing histories in `_held` changes nothing. They state the rule where it is used, as Raft does
    # with "only entries of the current term are counted" (section 5.4.2).

    def _under_promised(self, index: int) -> int:
        at = self._bench.log.at(index)
        return index if at is not None and at.entry.ballot == self._bench.promised else 0

    def _held(self, members: WorkSet) -> dict[int, int]:
        """How far each member holds the log of the promised ballot, by seat."""
        bench = self._bench
        held: dict[int, int] = {}
        for member in members:
            fellow = bench.company.fellows.get(member.identifier)
            if member == bench.me:
                held[member.seat] = bench.log.head.index
            elif fellow is not None and fellow.bearing.seat == member.seat:
                acked = fellow.acked
                if acked.ballot == bench.promised and fellow.bearing.history == bench.history:
                    held[member.seat] = acked.index
        return held

    def advance(self, index: int) -> None:
        bench = self._bench
        log = bench.log
        while log.decided < index:
            members = log.members
            held = log.decide_next()
            if log.members is not members:
                bench.look_for_seat()
            ours = bench.publishing.decided(held.index, held.hash)
            match held.entry.kind:
                case EntryKind.EVENTS:
                    firsts = self._deliver(held)
                    for one in ours:
                        bench.out.append(Published(one.publish.token, firsts[one.run] + one.offset))
                case EntryKind.FOUND:
                    self.began()
                case EntryKind.CHANGE:
                    self._report(held)
                case EntryKind.PASS:
                    pass
        bench.counts["entries_decided"] = log.decided
        forgotten = log.trim(bench.settings.window_bytes, bench.settings.window_entries_max)
        if forgotten:
            bench.foot.rise(forgotten)
            bench.out.append(Forgot(bench.log.base.index))

    def _deliver(self, held: HeldEntry) -> list[int]:
        """The first number of each run."""
        bench = self._bench
        streams = bench.streams
        firsts: list[int] = []
        for run in held.entry.runs:
            count = len(run.lengths)
            last, before = streams.get(run.stream, _NOTHING)
            end = streams[run.stream] = (last + count, run_hash(before, last + 1, run))
            bench.foot.note(held.index, run.stream, end)
            bench.out.append(Delivered(bench.history, held.index, last + 1, run, before, not bench.is_member))
            bench.events += count
            firsts.append(last + 1)
        bench.counts["events"] = bench.events
        return firsts

    def _report(self, held: HeldEntry) -> None:
        change = change_of(held.entry)
        assert change is not None
        detail: dict[str, str | int] = {"number": held.index, "change": "joins" if change.joins else "leaves"}
        self._bench.out.append(Report("work set", f"{change.member.identifier:08x}", detail))
        self._bench.counts["work_set_changes"] += 1
