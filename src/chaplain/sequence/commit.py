"""The commit rule: decides entries, numbers and hashes their events, and delivers them.

An index is decided when two conditions hold. First, the entry there was written under the promised ballot. Second, each
work set, from the one after the last decided entry to the one before the index, has a quorum that stores the log of
this ballot up to the index. All entries before the index are decided with it. So the old set decides a change of the
work set, and both sets decide the entries after an undecided change.

Invariant: an event's number is one more than the count of its stream's earlier events in the agreed order. So numbers
have no gaps, and every node that knows the order knows the numbers.
"""

from __future__ import annotations

from chaplain.core import Report
from chaplain.sequence.context import SequenceContext
from chaplain.sequence.events import Confirmed, Delivered, Forgot, HistoryBegan, Published
from chaplain.sequence.messages.entry import NO_HASH, EntryKind, run_hash
from chaplain.sequence.window.entries import HeldEntry, PlacedRun
from chaplain.sequence.window.log import change_of
from chaplain.sequence.work_set import WorkSet, quorum_index

_NOTHING = (0, NO_HASH)


class CommitRule:
    def __init__(self, context: SequenceContext) -> None:
        self._context = context

    def report_history(self) -> None:
        context = self._context
        log = context.log
        context.out.append(HistoryBegan(context.history, log.decided, log.decided_hash, dict(context.streams)))

    def decidable(self) -> int:
        """The highest index that the acknowledgements decide; 0 if there is none."""
        context = self._context
        log = context.log
        if log.head.index == log.decided or log.head.ballot != context.promised:
            return 0
        if not log.changing:
            index = quorum_index(log.members, self._held(log.members), context.dead(log.members))
            return log.head.index if index >= log.head.index else self._under_promised(index)
        index, held_by_all = 0, log.head.index
        asked: WorkSet = ()
        for held in log.after(log.decided):
            members = log.set_for(held)
            if members != asked:
                asked = members
                held_by_all = min(held_by_all, quorum_index(members, self._held(members), context.dead(members)))
            if held.index > held_by_all:
                break
            index = held.index
        return self._under_promised(index)

    # Two conditions below follow from others, so no test can tell the code without them from this one. `acked` is the
    # ballot and index of a member's last entry. `_held` counts it only under the promised ballot, so every index that
    # comes out is that of an entry under this ballot: `_under_promised` changes nothing. And a ballot contains the
    # random seat of its author, which is drawn anew whenever a memory is lost
    # (docs/decisions/sequence-members.md), so no ballot occurs in
    # two histories: comparing histories in `_held` changes nothing. They state the rule where it is used, as Raft does
    # with "only entries of the current term are counted" (section 5.4.2).

    def _under_promised(self, index: int) -> int:
        at = self._context.log.at(index)
        return index if at is not None and at.entry.ballot == self._context.promised else 0

    def _held(self, members: WorkSet) -> dict[int, int]:
        """By seat: the index up to which the member stores the log of the promised ballot."""
        context = self._context
        held: dict[int, int] = {}
        for member in members:
            peer = context.peers.by_id.get(member.identifier)
            if member == context.me:
                held[member.seat] = context.log.head.index
            elif peer is not None and peer.last_state.seat == member.seat:
                acked = peer.acked
                if acked.ballot == context.promised and peer.last_state.history == context.history:
                    held[member.seat] = acked.index
        return held

    def advance(self, index: int) -> None:
        """Apply entries up to this decided index: number and deliver events, answer publishers, trim the window."""
        context = self._context
        log = context.log
        while log.decided < index:
            members = log.members
            held = log.decide_next()
            if log.members is not members:
                context.update_membership()
            ours = context.publish_queue.decided(held.index, held.hash)
            match held.entry.kind:
                case EntryKind.EVENTS:
                    self._answer(ours, self._deliver(held))
                case EntryKind.FOUND:
                    self.report_history()
                case EntryKind.CHANGE:
                    self._report(held)
                case EntryKind.PASS:
                    self._answer(ours, [])
        context.counts["entries_decided"] = log.decided
        forgotten = log.trim(context.settings.window_bytes, context.settings.window_entries_max)
        if forgotten:
            context.window_base.advance(forgotten)
            context.out.append(Forgot(context.log.base.index))

    def _answer(self, ours: list[PlacedRun], firsts: list[int]) -> None:
        """Answer this node's publishes and confirmations in a decided entry."""
        for one in ours:
            token = one.publish.token
            is_publish = bool(one.publish.values)
            self._context.out.append(Published(token, firsts[one.run] + one.offset) if is_publish else Confirmed(token))

    def _deliver(self, held: HeldEntry) -> list[int]:
        """Deliver the events of an entry. Return the first number of each run."""
        context = self._context
        streams = context.streams
        firsts: list[int] = []
        for run in held.entry.runs:
            count = len(run.lengths)
            last, before = streams.get(run.stream, _NOTHING)
            end = streams[run.stream] = (last + count, run_hash(before, last + 1, run))
            context.window_base.record_end(held.index, run.stream, end)
            context.out.append(Delivered(context.history, held.index, last + 1, run, before, not context.is_member))
            context.events += count
            firsts.append(last + 1)
        context.counts["events"] = context.events
        return firsts

    def _report(self, held: HeldEntry) -> None:
        change = change_of(held.entry)
        assert change is not None
        detail: dict[str, str | int] = {"number": held.index, "change": "joins" if change.joins else "leaves"}
        self._context.out.append(Report("work set", f"{change.member.identifier:08x}", detail))
        self._context.counts["work_set_changes"] += 1
