"""A node that says anything at all, at any time: the client may be kept waiting, but it does not fail."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaplain.client.protocol.call_events import Raised, Returned
from chaplain.client.protocol.journal.core import ClientJournal
from chaplain.client.protocol.journal.events import (
    AskCommand,
    Batch,
    ConfigRequestCommand,
    NodeSpoke,
    NoNodeAccepts,
    ReadCommand,
    ResolveCommand,
    SessionDown,
    SessionUp,
    WriteCommand,
    WritesAcknowledged,
)
from chaplain.core import Drained, Stopping, Woken
from chaplain.journal.messages import client
from chaplain.journal.messages.client import (
    AlreadyWritten,
    Chunk,
    Credit,
    Decided,
    Ended,
    Failed,
    GoBack,
    ListClients,
    Listed,
    NotWritten,
    Opened,
    Receipts,
    Run,
)
from chaplain.journal.messages.config import FenceLane
from chaplain.link.auth.identity import Identity

SECOND_NS = 10**9
numbers = st.sampled_from((-1, 0, 1, 2, 3, 4, 7, 2**32 - 1, 2**32, 2**63, 2**64 - 1))
calls = st.integers(1, 8)
texts = st.sampled_from(("", "s", "cluster", "x" * 300, "grüße"))
octets = st.sampled_from((b"", b"a" * 15, b"h" * 32, b"x" * 7))
kinds = st.sampled_from(
    ("applied", "end", "busy", "damaged", "unknown_lane", "fenced", "removed", "no_right", "lanes_full", "?")
)
runs = st.builds(Run, numbers, numbers, numbers, texts, numbers, numbers, numbers, numbers, numbers, octets)
messages = st.one_of(
    st.builds(Opened, calls, numbers, texts, octets, texts, numbers),
    st.just(Opened(1, 1, "cluster", b"a" * 15, "me", 2**40)),
    st.builds(Receipts, st.lists(runs, max_size=3).map(tuple)),
    st.builds(AlreadyWritten, numbers, numbers),
    st.builds(GoBack, numbers, numbers),
    st.builds(NotWritten, numbers, numbers, numbers, kinds, texts, numbers),
    st.builds(Credit, numbers),
    st.builds(Decided, calls, kinds, texts, numbers, octets, numbers),
    st.builds(lambda call: Decided(call, "applied", "", 7, b"a" * 15, 0), calls),
    st.builds(Chunk, calls, numbers, numbers, numbers, numbers, numbers, numbers),
    st.builds(Ended, calls, kinds, texts, numbers),
    st.builds(Listed, calls),
    st.builds(Failed, calls, kinds, texts),
)
wishes = st.sampled_from(
    (
        lambda call: WriteCommand(call, Batch("s", [b"a", b"b"], size_bytes=2), SECOND_NS),
        lambda call: WriteCommand(call, Batch("s", [b"a", b"b"], transaction=True, size_bytes=2), 60 * SECOND_NS, 1),
        lambda call: ReadCommand(call, "s", 0, None, True, SECOND_NS),
        lambda call: ReadCommand(call, "s", 3, 7, False, SECOND_NS),
        lambda call: ResolveCommand(call, 7, 1, SECOND_NS),
        lambda call: ResolveCommand(call, 3, 2, SECOND_NS),
        lambda call: AskCommand(call, ListClients(0), SECOND_NS),
        lambda call: ConfigRequestCommand(call, FenceLane(4), SECOND_NS),
    )
)
steps = st.one_of(messages, messages, messages, wishes, st.sampled_from(("drained", "time", "switch")))


opening = st.tuples(
    wishes,
    st.one_of(
        st.just(Opened(1, 1, "cluster", b"a" * 15, "me", 2**40)),
        st.builds(Opened, st.just(1), numbers, texts, octets, texts, numbers),
    ),
    wishes,
    st.just("drained"),
    st.one_of(messages, *(st.just(Decided(call, "applied", "", 7, b"a" * 15, 0)) for call in (2, 3, 4))),
    st.just("drained"),
).map(list)


@settings(max_examples=200, deadline=None)
@given(st.builds(lambda first, then: first + then, opening, st.lists(steps, max_size=40)), octets)
def test_hostile_node_messages_end_every_call_once(script, payload) -> None:
    journal = ClientJournal(Identity(b"m" * 32), "cluster", Random(1))
    now_ns, call, session = SECOND_NS, 0, 1
    ended: list[int] = []

    def give(event) -> None:
        for effect in journal.step(now_ns, event):
            if isinstance(effect, WritesAcknowledged | Returned | Raised):
                ended.append(effect.call)

    give(SessionUp(b"%016d" % session))
    for step in script:
        if step == "drained":
            give(Drained())
        elif step == "time":
            now_ns += SECOND_NS // 2
            give(Woken())
            give(Drained())
            due_ns = journal.deadline()
            assert due_ns is None or due_ns > now_ns, "asks to be woken for nothing"
        elif step == "switch":
            give(SessionDown(b"%016d" % session, "reset"))
            session += 1
            give(SessionUp(b"%016d" % session))
        elif callable(step):
            call += 1
            give(step(call))
        else:
            assert client.decode_node(client.encode(step)) == step
            give(NodeSpoke(b"%016d" % session, step, payload))
    give(Stopping())
    assert sorted(ended) == list(range(1, call + 1))


@pytest.mark.parametrize("end", [Stopping(), NoNodeAccepts("nobody will have us")])
def test_watcher_of_a_write_is_notified_of_its_end_once(end) -> None:
    journal = ClientJournal(Identity(b"m" * 32), "cluster", Random(1))
    opened = Opened(1, 1, "cluster", b"a" * 15, "me", 2**40)
    leased = Decided(2, "applied", "", 7, b"a" * 15, 0)
    events = [
        SessionUp(bytes(16)),
        WriteCommand(1, Batch("s", [b"a"], size_bytes=1), SECOND_NS),
        NodeSpoke(bytes(16), opened, b""),
        Drained(),
        NodeSpoke(bytes(16), leased, b""),
        Drained(),
        ResolveCommand(2, 7, 1, SECOND_NS),
        end,
    ]
    effects = [effect for event in events for effect in journal.step(SECOND_NS, event)]
    assert sorted(effect.call for effect in effects if isinstance(effect, WritesAcknowledged | Returned | Raised)) == [
        1,
        2,
    ]
