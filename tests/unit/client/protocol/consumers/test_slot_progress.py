"""A worker of slots: what it delivers, from where it reads, and what it acknowledges."""

from __future__ import annotations

from chaplain.client.protocol.consumers.slot_progress import PAIR_GAP, SlotProgress, slot_of
from chaplain.client.protocol.consumers.state import ConsumerState
from chaplain.journal.messages.consumer import Acknowledge

ME, OTHER = 7, 8
Slot = tuple[int, int, int, int]


def state(*slots: Slot, epoch: int = 1) -> ConsumerState:
    names = ("orders", "c", "keyed")
    return ConsumerState(*names, 0, 10_000, 0, 1, 0, 0, 0, slots=slots, epoch=epoch)


def progress(*slots: Slot) -> SlotProgress:
    """A worker that holds these slots and has begun to read."""
    made = SlotProgress("c", ME, len(slots))
    made.assign(state(*slots))
    target = made.seek(0)
    if target is not None:
        made.seeked(target, 0)
    return made


def deliver(made: SlotProgress, *offsets: int) -> list[int]:
    """Offer messages without keys, whose slot is the offset modulo the number of slots."""
    return [offset for offset in offsets if made.offer(None, offset) is not None]


def acknowledged(made: SlotProgress, *, final: bool = False) -> tuple[int, tuple[tuple[int, int], ...]] | None:
    command = made.to_send(final)
    return None if command is None else (command.through, command.slots)


def test_messages_of_a_key_share_a_slot() -> None:
    assert len({slot_of(b"key", offset, 8) for offset in range(10)}) == 1
    assert {slot_of(None, offset, 8) for offset in range(8)} == set(range(8))


def test_only_messages_of_held_slots_are_delivered() -> None:
    made = progress((0, ME, ME, 1), (0, OTHER, OTHER, 1))
    assert deliver(made, 0, 1, 2, 3) == [0, 2]


def test_acknowledgement_stops_at_the_first_message_that_is_not_processed() -> None:
    made = progress((0, ME, ME, 1))
    deliver(made, 0, 1, 2)
    assert acknowledged(made) is None
    made.acknowledge(0, 1, 2)
    assert acknowledged(made) is None
    made.acknowledge(0, 1, 0)
    assert acknowledged(made) == (1, ())
    made.acknowledge(0, 1, 1)
    assert acknowledged(made) == (3, ())
    assert acknowledged(made) is None, "nothing is new"


def test_slot_far_ahead_of_the_others_is_acknowledged_by_itself() -> None:
    made = progress((0, ME, ME, 1), (0, ME, ME, 1))
    deliver(made, *range(2 * PAIR_GAP))
    for offset in range(1, 2 * PAIR_GAP, 2):
        made.acknowledge(1, 1, offset)
    assert acknowledged(made) == (0, ((1, 2 * PAIR_GAP),))


def test_position_passes_messages_for_others_only_when_it_is_reported() -> None:
    made = progress((0, ME, ME, 1), (0, OTHER, OTHER, 1))
    for offset in range(1, 99, 2):
        made.offer(None, offset)
    assert acknowledged(made) is None
    made.report_skipped()
    assert acknowledged(made) == (98, ())
    made.report_skipped()
    assert acknowledged(made) is None, "an idle worker sends nothing"


def test_position_reaches_the_end_although_a_former_worker_processed_the_last_messages() -> None:
    made = progress((5, ME, ME, 3), (4, ME, ME, 3))
    assert deliver(made, 4) == []
    made.report_skipped()
    assert acknowledged(made) == (5, ())


def test_new_slot_is_read_from_its_position_and_others_are_not_delivered_again() -> None:
    made = progress((0, ME, ME, 1), (4, OTHER, OTHER, 1))
    assert deliver(made, *range(10)) == [0, 2, 4, 6, 8]
    made.assign(state((0, ME, ME, 1), (4, ME, ME, 2), epoch=2))
    assert made.seek(0) == 4
    made.seeked(4, 0)
    assert deliver(made, *range(4, 12)) == [5, 7, 9, 10, 11]


def test_acknowledgement_never_covers_what_a_new_slot_has_not_delivered() -> None:
    made = progress((0, ME, ME, 1), (4, OTHER, OTHER, 1))
    deliver(made, *range(10))
    for offset in range(0, 10, 2):
        made.acknowledge(0, 1, offset)
    made.assign(state((0, ME, ME, 1), (4, ME, ME, 2), epoch=2))
    assert acknowledged(made, final=True) == (4, ((0, 10),))


def test_moving_slot_delivers_nothing_and_is_released_when_all_is_acknowledged() -> None:
    made = progress((0, ME, ME, 1))
    deliver(made, 0)
    made.assign(state((0, ME, OTHER, 1)))
    assert deliver(made, 1) == []
    assert made.to_release() is None
    made.acknowledge(0, 1, 0)
    release = made.to_release()
    assert release is not None
    assert release.slots == (0,)
    made.assign(state((1, ME, ME, 1)))
    assert made.seek(0) == 1, "it stays here after all: what was skipped is delivered"


def test_lost_slot_is_counted_and_its_messages_cannot_be_acknowledged() -> None:
    made = progress((0, ME, ME, 1))
    deliver(made, 0, 1)
    made.assign(state((0, OTHER, OTHER, 2), epoch=2))
    assert (made.lost, made.acknowledge(0, 1, 0)) == (2, False)
    made.assign(state((0, ME, ME, 3), epoch=3))
    assert made.acknowledge(0, 1, 0) is False, "it was lost in between"


def test_returned_message_and_what_follows_it_are_delivered_again_after_the_pause() -> None:
    made = progress((0, ME, ME, 1))
    deliver(made, 0, 1, 2)
    made.acknowledge(0, 1, 0)
    assert made.pause(0, 1, 1, until_s=5.0)
    assert (made.seek(1.0), made.next_seek_s()) == (None, 5.0)
    assert deliver(made, 3) == []
    assert made.seek(5.0) == 1
    made.seeked(1, 5.0)
    assert deliver(made, 1, 2, 3) == [1, 2, 3]
    assert acknowledged(made) == (1, ())


def test_refused_acknowledgement_is_sent_again() -> None:
    made = progress((0, ME, ME, 1))
    deliver(made, 0)
    made.acknowledge(0, 1, 0)
    assert acknowledged(made) == (1, ())
    made.refused(state((0, ME, ME, 1)))
    assert acknowledged(made) == (1, ())


def test_statements_acknowledge_only_the_first_message_of_a_slot() -> None:
    made = progress((0, ME, ME, 1))
    deliver(made, 0, 1)
    assert made.together(0, 1, 1) is None
    assert made.together(0, 1, 0) == Acknowledge("c", ME, 1, 0, ((0, 1),))
