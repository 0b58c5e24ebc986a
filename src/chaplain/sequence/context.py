"""State that the parts of the sequence share: the log, the peers, the promised ballot, and the outgoing messages.

Decides nothing. `own_state` reads the state at the moment of sending, so no message can claim an outdated state.

Invariants: the promised ballot never decreases within a tenure; a seat belongs to one memory.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from chaplain.core import Report
from chaplain.mesh.events import Whisper
from chaplain.sequence.events import Became, SequenceEffect
from chaplain.sequence.messages.entry import NO_BALLOT, Ballot, SeatedMember
from chaplain.sequence.messages.peer import Beat, EntryBatch, Message, PeerState, Seq, SequenceState, encode
from chaplain.sequence.peers import SequencePeer, SequencePeers
from chaplain.sequence.publish_queue import PublishQueue
from chaplain.sequence.settings import SequenceSettings
from chaplain.sequence.window.base import StreamEnd, WindowBase
from chaplain.sequence.window.entries import EntryBase, HeldEntry
from chaplain.sequence.window.log import NOTHING, SequenceLog, set_after
from chaplain.sequence.work_set import WorkSet
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel

_TWO_SUFFICE = 3
"""In a work set of at most this size, two members are a majority. A node that receives an entry from a member therefore
knows that the entry is decided.
"""


class SequenceContext:
    def __init__(
        self, settings: SequenceSettings, rng: random.Random, removed: Callable[[], Collection[int]] = tuple
    ) -> None:
        self.settings = settings
        self.rng = rng
        self.removed = removed
        """Nodes removed from the cluster, as far as this node knows. The set only grows."""
        self.peers = SequencePeers()
        self.publish_queue = PublishQueue()
        self.counts: Counter[str] = Counter()
        self.out: list[SequenceEffect] = []
        self.now_ns = 0
        """The sequence's own clock. It never decreases, and a step adds at most one second."""
        self.state = SequenceState.DSC
        self.reason = "looking for others"
        self.since_ns = 0
        self.tenure = 0
        self.remembers = False
        self.wants = False
        self.seat = self._random_id()
        self.me = SeatedMember(settings.identifier, self.seat)
        self.clear()

    def _random_id(self) -> int:
        return self.rng.randrange(1, 1 << 64)

    def clear(self) -> None:
        """Forget everything that belongs to the current seat."""
        self.history = 0
        self.log = SequenceLog(NOTHING)
        self.promised: Ballot = NO_BALLOT
        self.window_base = WindowBase()
        self.streams: dict[str, StreamEnd] = {}
        self.events = 0
        self.founded_alone = False
        """This node founded the history without any other node."""
        self.ack_due = False
        """This node accepted entries that it has not acknowledged yet."""
        self._wish_sent = False
        """The `wants` flag last sent to all peers. The next lock holder may know our wish only from that message."""
        self._others: tuple[WorkSet, int, list[SequencePeer]] | None = None
        """The cached result of `members`, with the work set and the peer-change count that it belongs to."""
        self.update_membership()

    def new_seat(self) -> None:
        self.tenure = min(self.tenure + 1, 0xFFFF)
        self.seat = self._random_id()
        self.me = SeatedMember(self.settings.identifier, self.seat)
        self.clear()
        self.peers.forget()

    def start_from(
        self,
        history: int,
        base: EntryBase = NOTHING,
        members: WorkSet = (),
        streams: Mapping[str, StreamEnd] | None = None,
    ) -> None:
        self.clear()
        self.history = history
        self.log = SequenceLog(base, members)
        self.update_membership()
        self.window_base = WindowBase(members, streams)
        self.streams = dict(self.window_base.streams)
        self.events = sum(number for number, _ in self.streams.values())

    # This node's role and state.

    def update_membership(self) -> None:
        """Recompute `is_member` and `is_learning`. Call it whenever the work set after the last decided entry
        changes.
        """
        self.is_member = self.me in self.log.members
        self.is_learning = bool(self.log.members) and not self.is_member
        """This node follows a history in which it has no seat yet."""

    @property
    def may_be_counted(self) -> bool:
        """True if other nodes may count this node's acknowledgements: it has a seat, or an undecided entry gives it
        one.
        """
        return self.is_member or self.is_in_any_set(self.me)

    def is_in_any_set(self, member: SeatedMember) -> bool:
        """True if the member is in the decided work set or in one that an undecided entry brings."""
        if not self.log.changing:
            return member in self.log.members
        return any(member in members for members in self.log.sets())

    def dead(self, members: WorkSet) -> Collection[int]:
        """The seats that lost their memory, for the rule that half of a work set may decide (see `work_set`).

        Only a member of the deciding half may apply this rule: the information of other nodes may be outdated. As long
        as this member keeps its memory, the other half cannot have decided anything without it.
        """
        return self.peers.dead if self.me in members else ()

    def own_state(self) -> PeerState:
        log = self.log
        return PeerState(
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

    def set_state(self, state: SequenceState, reason: str) -> None:
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

    # Sending.

    def send(self, peer: SequencePeer, message: Message) -> None:
        self.send_all((peer,), message)

    def send_all(self, by_id: Iterable[SequencePeer], message: Message) -> None:
        body, payload = encode(message)
        content = parcel.encode(Parcel(self.settings.identifier, Layer.SEQUENCE, body, payload))
        for peer in by_id:
            if peer.connected:
                self.out.append(Whisper(peer.instance, content, urgent=True))

    def members(self) -> list[SequencePeer]:
        """The connected other members of the work set, including undecided changes, ordered by identifier."""
        log, peers, kept = self.log, self.peers, self._others
        if kept is not None and kept[0] is log.members and kept[1] == peers.changes and not log.changing:
            return kept[2]
        known = {member.identifier for members in log.sets() for member in members}
        by_id = peers.by_id
        others = [
            by_id[identifier] for identifier in sorted(known) if identifier in by_id and by_id[identifier].connected
        ]
        self._others = None if log.changing else (log.members, peers.changes, others)
        return others

    def acknowledge(self) -> None:
        """Acknowledge our last entry: to its author alone, or to all members if they need it to count
        (docs/decisions/sequence-order.md).
        """
        log, others = self.log, self.members()
        self.ack_due = False
        two_suffice = len(log.members) <= _TWO_SUFFICE and not log.changing
        if two_suffice and log.author is not None and not (self.wants or self._wish_sent):
            others = [one for one in others if one.identifier == log.author]
        else:
            self._wish_sent = self.wants
        self.send_all(others, Beat(self.own_state()))

    def broadcast_after(self, after: int) -> None:
        """Send all entries after this index to all members. The message also acknowledges everything before them."""
        self.ack_due = False
        self._wish_sent = self.wants
        self.send_all(self.members(), self.entries_after(after))

    def broadcast_last(self, before: bytes, last: HeldEntry) -> None:
        """Send only the last entry to all members, with the hash of the entry before it."""
        self.ack_due = False
        self._wish_sent = self.wants
        self.send_all(self.members(), EntryBatch(self.own_state(), last.index - 1, before, last.entry.encoded))

    def seq_message(self) -> Seq:
        """The state from which a joining node can replay our window: the window base, or the state after the first
        entry of the history.
        """
        log, window_base = self.log, self.window_base
        base, members = log.base, window_base.members
        if not base.index:
            first = log.at(1)
            assert first is not None, "only a node with a seat answers SEQRES"
            base, members = log.base_at(1), set_after((), first.entry)
        return Seq(self.own_state(), base.index, base.hash, base.ballot, base.next, members, dict(window_base.streams))

    def entries_after(self, index: int) -> EntryBatch:
        before = self.log.hash_at(index)
        assert before is not None
        return EntryBatch(
            self.own_state(), index, before, b"".join(held.entry.encoded for held in self.log.after(index))
        )

    def rank(self) -> int:
        """How many members with lower identifiers were heard lately; those act first."""
        recent = self.peers.recent(self.now_ns, self.settings.silence_ns)
        return sum(1 for peer in recent if peer.identifier < self.settings.identifier)


def history_name(history: int) -> str:
    return f"{history:016x}" if history else ""
