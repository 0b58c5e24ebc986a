"""What becomes of our events when their entry loses its place: it is certain only when another is agreed there."""

from __future__ import annotations

from chaplain.sequence.events import Publish
from chaplain.sequence.messages.entry import Ballot, EntryKind, make_entry
from chaplain.sequence.publish_queue import PublishQueue
from chaplain.sequence.window.entries import HeldEntry

BALLOT = Ballot(1, 1)
MUCH = 1 << 20


def placed(*tokens: int) -> tuple[PublishQueue, list[HeldEntry]]:
    """One entry for each of these, from index 3 on, and all of them displaced."""
    publishing = PublishQueue()
    dropped = []
    for index, token in enumerate(tokens, 3):
        publishing.add(Publish(token, "s", "ann", (b"%d" % token,)))
        entry = make_entry(EntryKind.EVENTS, BALLOT, 1, 1, publishing.take(index, MUCH))
        dropped.append(HeldEntry(index, entry, b"hash %d" % index))
    publishing.displaced(dropped)
    return publishing, dropped


def waiting(publishing: PublishQueue) -> list[int]:
    return publishing.abandon_pending()


def test_replaced_entry_waits_for_the_decision_at_its_position() -> None:
    publishing, _ = placed(1, 2)
    assert not publishing
    assert publishing.is_displaced_after(3)
    assert not publishing.is_displaced_after(4)


def test_another_decided_entry_excludes_later_own_entries_and_keeps_their_order() -> None:
    publishing, _ = placed(1, 2, 3)
    publishing.add(Publish(4, "s", "ann", (b"4",)))
    before = publishing.pending_bytes
    assert publishing.decided(3, b"another") == []
    assert publishing.pending_bytes == 4 * before
    assert not publishing.is_displaced_after(3)
    assert waiting(publishing) == [1, 2, 3, 4]


def test_replaced_entry_that_is_decided_after_all_keeps_its_number() -> None:
    publishing, dropped = placed(1, 2)
    assert [one.publish.token for one in publishing.decided(3, dropped[0].hash)] == [1]
    assert publishing.is_displaced_after(3)
    assert publishing.decided(4, b"another") == []
    assert waiting(publishing) == [2]


def test_entry_replaced_twice_is_published_once() -> None:
    publishing, dropped = placed(1)
    publishing.displaced(dropped)  # it came back from elsewhere, and lost its place again
    assert [one.publish.token for one in publishing.decided(3, dropped[0].hash)] == [1]
    assert not publishing.is_displaced_after(0)
    assert waiting(publishing) == []


def test_abandoned_publishes_all_end() -> None:
    publishing, _ = placed(1, 2)
    publishing.add(Publish(3, "s", "ann", (b"3",)))
    publishing.take(3, MUCH)
    assert publishing.abandon_placed() == [1, 2, 3]
    assert not publishing.is_displaced_after(0)
