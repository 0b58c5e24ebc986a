"""The Model: order, leaves, differences and forks, against the plainest way to compute them."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from chaplain.graph.messages.event import EventDraft, ParentLink, SignedEvent, sign
from chaplain.graph.messages.ids import IdTable
from chaplain.graph.model import Model
from tests.unit.graph.graph_stage import CLUSTER, identity, make


def tree(seed: int, count: int, width: int = 3) -> list[SignedEvent]:
    """Events of three authors, each behind some of what was there."""
    chance = random.Random(seed)
    events: list[SignedEvent] = []
    last: dict[int, SignedEvent] = {}
    for number in range(count):
        author = chance.randrange(1, 4)
        parents = chance.sample(events[-8:], min(len(events[-8:]), chance.randrange(width)))
        previous = last.get(author)
        event = make(author, b"%d" % number, previous, *(one for one in parents if one is not previous))
        last[author] = event
        events.append(event)
    return events


def below(events: list[SignedEvent], known: set[bytes]) -> set[bytes]:
    """Those and all their ancestors."""
    by_id = {event.id: event for event in events}
    stack, found = list(known), set()
    while stack:
        one = stack.pop()
        if one not in found:
            found.add(one)
            stack += [link.id for link in by_id[one].links]
    return found


def filled(events: list[SignedEvent]) -> Model:
    model = Model()
    for event in events:
        assert not model.missing(event)
        assert not model.problem(event)
        model.add(event)
    return model


def shuffled(events: list[SignedEvent], seed: int) -> list[SignedEvent]:
    """Another order in which parents still come first."""
    chance, waiting, done, out = random.Random(seed), list(events), set(), []
    while waiting:
        ready = [event for event in waiting if all(link.id in done for link in event.links)]
        event = chance.choice(ready)
        waiting.remove(event)
        done.add(event.id)
        out.append(event)
    return out


@given(st.integers(0, 10**6), st.integers(1, 30))
@settings(max_examples=30, deadline=None)
def test_equal_sets_have_equal_order_and_leaves(seed, count):
    events = tree(seed, count)
    one, other = filled(events), filled(shuffled(events, seed + 1))
    assert [one.id_of(n) for n in one.ordered()] == [other.id_of(n) for n in other.ordered()]
    assert set(one.leaf_ids()) == set(other.leaf_ids())
    assert one.fingerprint == other.fingerprint
    place = {one.id_of(n): at for at, n in enumerate(one.ordered())}
    assert all(place[link.id] < place[event.id] for event in events for link in event.links)
    assert list(one.ordered()) == sorted(range(count), key=lambda n: (one.height_of(n), one.id_of(n)))


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_beyond_returns_events_that_are_neither_known_nor_ancestors_of_known_ones(seed, count, picks):
    events = tree(seed, count)
    model = filled(events)
    known = set(random.Random(seed).sample([event.id for event in events], min(picks, count)))
    found = [model.id_of(n) for n in model.beyond([model.find(one) for one in known])]
    assert found == [event.id for event in events if event.id not in below(events, known)]


@given(st.integers(0, 10**6), st.integers(2, 40))
@settings(max_examples=30, deadline=None)
def test_partial_locator_match_sends_all_missing_events(seed, count):
    events = tree(seed, count)
    ours, theirs = filled(events[: count // 2]), filled(events)
    known = [number for one in ours.locator() if (number := theirs.find(one)) >= 0]
    sent = {theirs.id_of(n) for n in theirs.beyond(known)}
    assert {event.id for event in events[count // 2 :]} <= sent


def test_locator_of_a_long_chain_is_short_and_sends_little_twice():
    line = [make(1, b"0")]
    for number in range(1, 3000):
        line.append(make(1, b"%d" % number, line[-1]))
    ours = filled(line[:2500])
    other = make(2, b"elsewhere", None, line[2000])
    theirs = filled([*line[:2001], other])
    assert len(ours.locator()) < 60
    known = [number for one in ours.locator() if (number := theirs.find(one)) >= 0]
    assert len(theirs.beyond(known)) < 500 / 2
    assert theirs.id_of(theirs.beyond(known)[-1]) == other.id


def test_ordered_read_continues_after_any_position():
    model = filled(tree(4, 30))
    order = list(model.ordered())
    for at, number in enumerate(order):
        assert list(model.ordered(ParentLink(model.id_of(number), model.height_of(number)))) == order[at + 1 :]


def test_marking_read_covers_ancestors_and_is_permanent():
    events = tree(5, 20)
    model = filled(events)
    newly = model.mark_read(10)
    assert {model.id_of(n) for n in newly} == below(events, {model.id_of(10)})
    assert newly == sorted(newly)
    assert model.mark_read(10) == []
    assert list(model.read_order) == newly
    rest = model.mark_read(19)
    assert not set(rest) & set(newly)


def test_fork_is_flagged_and_both_branches_are_kept():
    root = make(1, b"root")
    left, right = make(1, b"left", root), make(1, b"right", root)
    model = filled([root, left, make(2, b"other", None, left), right])
    assert [model.id_of(n) for n in model.forks] == [right.id]
    assert model.find(left.id) >= 0
    both = make(1, b"both", right, left)
    model.add(both)
    assert len(model.forks) == 1


def test_fork_above_a_floor_is_flagged_only_if_certain():
    chain = [make(1, b"0")]
    for number in range(1, 9):
        chain.append(make(1, b"%d" % number, chain[-1]))
    model = filled(chain[:2])
    model.raise_floor(5)
    for event in (chain[5], chain[3], chain[6]):  # what stands below a floor may come in any order
        model.add(event)
    assert not model.forks
    assert model.last_of(chain[0].author).id == chain[6].id
    beside = make(1, b"beside", chain[2], chain[4], make(2, b"high", chain[7]))
    assert (beside.previous.height, beside.height) == (2, 9)
    model.add(beside)
    assert [model.id_of(number) for number in model.forks] == [beside.id]


def test_stated_heights_and_previous_events_are_verified():
    root, other = make(1, b"root"), make(2, b"other")
    model = filled([root, other])
    lying = make(1, b"x", None, root)
    stated = ParentLink(root.id, 7)

    wrong = sign(EventDraft("notes", b"y", 0, None, (stated,)), identity(1), CLUSTER)
    assert "height" in model.problem(wrong)
    foreign = sign(EventDraft("notes", b"z", 0, ParentLink(other.id, 0)), identity(1), CLUSTER)
    assert "foreign" in model.problem(foreign)
    assert not model.problem(lying)


def test_id_table_finds_every_id_while_it_grows():
    table = IdTable()
    ids = [random.Random(n).randbytes(32) for n in range(5000)]
    for number, one in enumerate(ids):
        assert table.find(one) == -1
        assert table.add(one) == number
    assert [table.find(one) for one in ids] == list(range(5000))
    assert table.id_of(4321) == ids[4321]
    assert len(table) == 5000
