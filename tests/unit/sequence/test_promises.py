"""Words that come late, from liars, or against a promise; and what is enough."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from chaplain.core import Drained
from chaplain.gossip.events import GossipParcel
from chaplain.sequence.events import Published
from chaplain.sequence.messages.entry import Ballot, SeatedMember, WorkSetChange
from chaplain.sequence.messages.peer import (
    Beat,
    EntryBatch,
    Lock,
    LockGranted,
    LockRefused,
    Message,
    Why,
    decode,
    encode,
)
from chaplain.sequence.work_set import changed, is_lost, is_quorum, quorum_index, successor
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel
from tests.unit.sequence.sequence_stage import Stage

# Hostile and late words.


def test_message_in_the_name_of_another_or_malformed_changes_nothing() -> None:
    stage = Stage(3).start().run(1)
    before = stage.cores[1].context.own_state()
    body, payload = encode(Beat(stage.cores[2].context.own_state()))
    stage.feed(1, GossipParcel(stage.peers[3], Parcel(2, Layer.SEQUENCE, body, payload)))
    stage.feed(1, GossipParcel(stage.peers[3], Parcel(3, Layer.SEQUENCE, b"\xff" * 200, b"")))
    stage.feed(1, Drained())
    assert stage.cores[1].context.own_state() == before
    assert stage.cores[1].context.counts["parcels_malformed"] == 2


def test_entry_under_an_old_ballot_is_refused() -> None:
    stage = Stage(3).start().run(1)
    stage.publish(1, b"a")
    stage.feed(1, Drained())
    held = [item for item in stage.wire if item[1] == 2]
    stage.wire.clear()
    stage.cut = {(1, 2), (1, 3), (2, 1), (3, 1)}
    token = stage.publish(2, b"b")
    stage.run(2)
    assert stage.outcome(token) == Published(token, 1)
    stage.cut = set()
    for sender, to, content in held:
        stage._arrive(sender, to, content)
    stage.run(3)
    assert stage.delivered(2)[1] == b"b"
    assert stage.delivered(1)[1] == b"b"
    assert stage.delivered(1)[2] == b"a"


def test_member_behind_the_window_joins_with_a_new_seat() -> None:
    stage = Stage(3, window_bytes=2000, silence_ns=60 * 10**9).start().run(1)
    stage.split((3,), (1, 2))
    for _ in range(20):
        stage.publish(1, bytes(500))
        stage.run(0.1)
    seat = stage.cores[3].context.seat
    stage.cut = set()
    stage.run(5)
    assert stage.states()[3] == "WRK"
    assert stage.cores[3].context.seat != seat
    assert stage.cores[3].context.streams == stage.cores[1].context.streams


# Sets.


def member(number: int) -> SeatedMember:
    return SeatedMember(number, number * 10)


def test_quorum_counts_dead_and_vacant_seats() -> None:
    five = tuple(map(member, (1, 2, 3, 4, 5)))
    four = five[:4]
    assert is_quorum(five, {10, 20, 30}, ())
    assert not is_quorum(five, {10, 20}, ())
    assert not is_quorum(four, {10, 20}, ())
    assert not is_quorum(four, {10, 20}, {30})
    assert is_quorum(four, {10, 20}, {30, 40})
    assert not is_quorum(five, {10, 20}, {30, 40, 50}), "less than half never is"
    vacant = (*four[:3], SeatedMember(4, 0))
    assert is_quorum(vacant, {10, 20}, {30}), "nobody ever remembered anything on a vacant seat"
    assert not is_quorum(vacant, {10, 20}, ()), "the third may be alive"
    assert is_lost((*vacant, SeatedMember(5, 0)), {10})
    assert is_lost(five, {10, 20, 30})
    assert not is_lost(four, {10, 20})
    assert quorum_index(five, {10: 9, 20: 7, 30: 5, 40: 1}, ()) == 5


@given(
    st.lists(st.booleans(), min_size=1, max_size=7),
    st.dictionaries(st.sampled_from(range(10, 80, 10)), st.integers(1, 4)),
    st.sets(st.sampled_from(range(10, 80, 10))),
)
def test_quorum_index_is_the_highest_index_with_a_quorum(
    seated: list[bool], held: dict[int, int], dead: set[int]
) -> None:
    members = tuple(SeatedMember(number, number * 10 * seat) for number, seat in enumerate(seated, 1))
    here = {member.seat: held[member.seat] for member in members if member.seat in held}
    enough = [i for i in (1, 2, 3, 4) if is_quorum(members, {seat for seat in here if here[seat] >= i}, dead)]
    assert quorum_index(members, here, dead) == max(enough, default=0)


def test_changes_and_turns_update_the_work_set_and_the_holder() -> None:
    three = tuple(map(member, (1, 2, 3)))
    assert changed(three, WorkSetChange(member(4), joins=True)) == (*three, member(4))
    assert changed(three, WorkSetChange(SeatedMember(2, 99), joins=True)) == three, "its former self must leave first"
    assert changed(three, WorkSetChange(member(2), joins=False)) == (member(1), member(3))
    assert changed((member(1),), WorkSetChange(member(1), joins=False)) == (member(1),), "a work set is never empty"
    assert successor(three, 20, {10, 30}) == 30
    assert successor(three, 30, {10, 20}) == 10
    assert successor(three, 30, {30}) == 0


def test_large_undecided_log_is_transferred_in_frames() -> None:
    stage = Stage(3).start().run(1)
    stage.split((3,), (1, 2))
    for _ in range(6):
        stage.publish(1, bytes(2_000_000))
        stage.run(0.05)
    stage.cut = {(2, 1), (1, 3), (2, 3), (3, 1), (3, 2)}
    for _ in range(6):
        stage.publish(1, bytes(2_000_000))
    stage.deliver()
    assert 4_000_000 < stage.cores[1].context.log.undecided_bytes < 6_500_000, "what no majority holds is bounded"
    stage.cut = set()
    stage.said.clear()
    stage.run(4)
    sizes = [len(message.entries) for _, _, message in stage.said if isinstance(message, EntryBatch | LockGranted)]
    assert max(sizes) < 7 << 20
    assert {core.context.events for core in stage.cores.values()} == {12}
    assert stage.states() == {1: "WRK", 2: "WRK", 3: "WRK"}


# Promises.


def lock_of(stage: Stage, asker: int, rounds: int) -> GossipParcel:
    """A wish of this node for the lock, so many rounds above what it has promised."""
    context = stage.cores[asker].context
    ballot = Ballot(context.promised.round + rounds, context.seat)
    body, payload = encode(Lock(msgspec.structs.replace(context.own_state(), promised=ballot)))
    return GossipParcel(stage.peers[asker], Parcel(asker, Layer.SEQUENCE, body, payload))


def heard_from(stage: Stage, sender: int) -> list[Message]:
    """What this node says now; it reaches nobody."""
    said = [parcel.decode(content) for who, _, content in stage.wire if who == sender]
    stage.wire.clear()
    return [decode(one.body, one.payload) for one in said]


def test_old_holder_is_not_acknowledged_after_a_promise() -> None:
    stage = Stage(3).start().run(1)
    stage.publish(1, b"a")
    stage.feed(1, Drained())
    on_their_way = [item for item in stage.wire if item[1] == 3]
    stage.wire.clear()
    stage.feed(3, lock_of(stage, 2, rounds=1))
    [grant] = heard_from(stage, 3)
    assert isinstance(grant, LockGranted)
    before = stage.cores[3].context.log.head
    for sender, to, content in on_their_way:
        stage._arrive(sender, to, content)
    assert stage.cores[3].context.log.head == before, "held under a ballot that was given up"
    [refuse] = heard_from(stage, 3)
    assert isinstance(refuse, LockRefused)
    assert refuse.why is Why.STALE


def test_lower_ballot_is_refused_and_the_same_one_granted_again() -> None:
    stage = Stage(3).start().run(1)
    stage.feed(3, lock_of(stage, 2, rounds=5))
    stage.feed(3, lock_of(stage, 1, rounds=4))
    stage.feed(3, lock_of(stage, 2, rounds=5))
    granted, refused, again = heard_from(stage, 3)
    assert isinstance(granted, LockGranted)
    assert isinstance(refused, LockRefused)
    assert isinstance(again, LockGranted)
    assert stage.cores[3].context.promised == granted.ballot == again.ballot


def test_member_that_lacks_decided_entries_gets_no_lock() -> None:
    stage = Stage(3).start().run(1)
    ask = lock_of(stage, 2, rounds=1)
    stage.cut = {(1, 2)}
    stage.publish(1, b"a")
    stage.deliver()
    stage.feed(3, ask)
    [refuse] = heard_from(stage, 3)
    assert isinstance(refuse, LockRefused)
    assert refuse.why is Why.BEHIND


def test_node_outside_the_work_set_is_refused_with_the_reason() -> None:
    stage = Stage(4).start().run(1)
    stage.split((4,), (1, 2, 3))
    ask = lock_of(stage, 4, rounds=9)
    stage.run(7)
    assert stage.members(1) == [1, 2, 3]
    promised = stage.cores[1].context.promised
    stage.feed(1, ask)
    [refuse] = heard_from(stage, 1)
    assert isinstance(refuse, LockRefused)
    assert refuse.why is Why.OUTSIDE
    assert stage.cores[1].context.promised == promised, "nobody outside moves a ballot"
