"""A worker of a queue: what it reads, delivers and finishes."""

from __future__ import annotations

from chaplain.client.protocol.consumers.queue_progress import QueueProgress, joined
from chaplain.client.protocol.consumers.state import ConsumerState
from chaplain.journal.messages.consumer import UNDELIVERED, Fetch, Finish, Return

ME, OTHER = 7, 8


def state(*spans: tuple[int, int, int, int, int]) -> ConsumerState:
    return ConsumerState("jobs", "c", "queue", 0, 100, 0, 1, 0, 0, 0, spans=spans)


def progress(*spans: tuple[int, int, int, int, int]) -> QueueProgress:
    """A worker whose application has all messages of these spans."""
    made = QueueProgress("c", ME, 10)
    made.assign(state(*spans))
    made.delivered.update(made.deliveries)
    return made


def test_offsets_are_joined_to_ranges() -> None:
    assert joined([1, 2, 3, 5, 7, 8]) == [(1, 3), (5, 5), (7, 8)]


def test_leased_messages_are_read_once() -> None:
    made = QueueProgress("c", ME, 10)
    spans = ((0, 2, ME, 0, 1), (3, 4, OTHER, 0, 1), (5, 5, ME, 0, 2))
    assert made.assign(state(*spans)) == [(0, 2), (5, 5)]
    assert made.assign(state(*spans)) == []


def test_finished_messages_are_sent_together_and_forgotten_when_answered() -> None:
    made = progress((0, 4, ME, 0, 1))
    assert all(made.acknowledge(offset, 1) for offset in (0, 1, 3))
    commands = made.to_send()
    assert commands == [Finish("c", ME, ((0, 1), (3, 3)))]
    assert made.to_send() == []
    made.answered(commands)
    assert sorted(made.deliveries) == [2, 4]


def test_returned_messages_are_sent_by_their_delay() -> None:
    made = progress((0, 4, ME, 0, 1))
    assert made.give_back(0, 1, 500)
    assert made.give_back(2, 1, 0)
    assert made.give_back(1, 1, 500)
    commands = [Return("c", ME, 0, 0, ((2, 2),)), Return("c", ME, 500, 0, ((0, 1),))]
    assert made.to_send() == commands
    made.refused(commands)
    assert made.to_send() == commands, "a message that was returned must not stay here"
    made.answered(commands)
    assert sorted(made.deliveries) == [3, 4]


def test_message_whose_lease_ended_cannot_be_finished() -> None:
    made = progress((0, 1, ME, 0, 1))
    made.assign(state((0, 0, OTHER, 0, 2), (1, 1, ME, 0, 2)))
    assert made.lost == 2
    assert not made.acknowledge(0, 1)
    assert not made.acknowledge(1, 1), "it is leased here again, and will be delivered again"


def test_refused_acknowledgement_is_repeated_for_what_is_still_leased() -> None:
    made = progress((0, 2, ME, 0, 1))
    assert all(made.acknowledge(offset, 1) for offset in (0, 1, 2))
    commands = made.to_send()
    made.refused(commands)
    made.assign(state((0, 0, OTHER, 0, 2), (1, 2, ME, 0, 1)))
    assert made.to_send() == [Finish("c", ME, ((1, 2),))]


def test_more_is_fetched_when_half_is_left() -> None:
    made = progress((0, 9, ME, 0, 1))
    assert made.to_fetch() is None
    for offset in range(5):
        made.acknowledge(offset, 1)
    assert made.to_fetch() == Fetch("c", ME, 5)


def test_unseen_messages_are_given_back_when_the_worker_leaves() -> None:
    made = QueueProgress("c", ME, 10)
    made.assign(state((0, 3, ME, 0, 1)))
    made.delivered.add(1)
    assert made.to_give_back() == Return("c", ME, 0, UNDELIVERED, ((0, 0), (2, 3)))
