"""What the memory of messages remembers, against one that remembers everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chaplain.gossip.events import EventId
from chaplain.gossip.seen import RecentMessages, SeenMessages
from chaplain.gossip.settings import GossipSettings

IDS = st.builds(EventId, st.integers(1, 3), st.integers(1, 3), st.integers(1, 40))


@given(st.lists(IDS, max_size=200))
def test_message_id_is_fresh_once_within_the_window(ids: list[EventId]) -> None:
    seen = SeenMessages(GossipSettings(window=16), lambda origin: True)
    noted: set[EventId] = set()
    for event_id in ids:
        mine = [one for one in noted if one.origin == event_id.origin]
        epoch = max((one.epoch for one in mine), default=0)
        newest = max((one.counter for one in mine if one.epoch == epoch), default=0)
        too_old = event_id.epoch < epoch or (event_id.epoch == epoch and newest - event_id.counter >= 16)
        assert seen.is_fresh(event_id) == (event_id not in noted and not too_old)
        if seen.is_fresh(event_id):
            seen.add(event_id, members=3)
            noted.add(event_id)


@given(st.lists(st.integers(1, 1000), max_size=300))
def test_unknown_origins_are_bounded_and_members_are_never_forgotten(origins: list[int]) -> None:
    seen = SeenMessages(GossipSettings(strangers_max=8), lambda origin: origin <= 3)
    member = EventId(2, 1, 1)
    seen.add(member, members=3)
    for number, origin in enumerate(origins):
        event_id = EventId(origin + 3, 1, number + 1)
        if seen.is_fresh(event_id):
            seen.add(event_id, members=3)
        assert len(seen) <= 11
    assert not seen.is_fresh(member)


def test_counters_at_their_maximum_are_accepted_once() -> None:
    seen = SeenMessages(GossipSettings(), lambda origin: True)
    last = EventId(1, (1 << 64) - 1, (1 << 64) - 1)
    seen.add(last, members=1)
    assert not seen.is_fresh(last)
    assert not seen.is_fresh(EventId(1, (1 << 64) - 1, 1))


def test_recent_messages_are_bounded_in_number_bytes_and_age() -> None:
    settings = GossipSettings(recent_max=4, recent_bytes_max=100, recent_age_ns=10)
    recent = RecentMessages(settings)
    ids = [EventId(1, 1, number) for number in range(1, 9)]
    for event_id in ids:
        recent.add(event_id, b"x" * 30, now_ns=event_id.counter)
    assert recent.newest(10, now_ns=8) == tuple(ids[-3:])
    assert recent.get(ids[0]) is None
    assert recent.get(ids[-1]) == b"x" * 30
    assert recent.newest(10, now_ns=18) == (ids[-1],)
    assert recent.newest(10, now_ns=19) == ()
