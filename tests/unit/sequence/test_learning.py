"""Who joins learns what the others remember before it has a seat: page by page, from whoever is there
(docs/decisions/sequence-members.md)."""

from __future__ import annotations

from chaplain.sequence.events import Delivered, Published
from chaplain.sequence.messages.peer import Beat, EntryBatch, Fill, SeqRes
from tests.unit.sequence.sequence_stage import Stage

VALUES = {1: b"a", 2: b"b", 3: b"c"}


def published(count: int = 3, size: int = 1, **settings: int) -> Stage:
    """Three nodes, and so many events of one stream."""
    stage = Stage(3, **settings).start().run(1)
    for _ in range(count):
        stage.publish(1, bytes(size))
        stage.run(0.05)
    return stage


def restart(stage: Stage, number: int, seconds: float = 4.0) -> None:
    stage.kill(number)
    stage.run(1)
    stage.effects = [(who, effect) for who, effect in stage.effects if who != number]
    stage.start(number).run(seconds)


def kept(stage: Stage, number: int) -> int:
    """Bytes in the window of a node."""
    log = stage.cores[number].context.log
    return sum(len(held.entry.encoded) for held in log.since(log.base.index))


def test_rolling_restart_keeps_every_acknowledged_event_on_every_node() -> None:
    stage = Stage(3).start().run(1)
    token = stage.publish(1, *VALUES.values())
    stage.run(1)
    assert stage.outcome(token) == Published(token, 1)
    for number in (1, 2, 3):
        restart(stage, number)
        assert stage.states() == dict.fromkeys((1, 2, 3), "WRK")
    assert all(stage.delivered(number) == VALUES for number in (1, 2, 3))
    late = stage.publish(3, b"d")
    stage.run(1)
    assert stage.outcome(late) == Published(late, 4)


def test_joining_node_requests_a_seat_only_after_it_has_the_window() -> None:
    stage = published(20, 1000, batch_bytes_max=3000)
    stage.kill(3)
    stage.run(6)
    assert stage.members(1) == [1, 2]
    stage.said.clear()
    stage.start(3).run(2)
    assert stage.states()[3] == "WRK"
    of_three = [message for sender, _, message in stage.said if sender == 3]
    wish = next(place for place, one in enumerate(of_three) if isinstance(one, SeqRes) and one.peer_state.history)
    asked = [one for one in of_three[:wish] if isinstance(one, Fill)]
    assert len(asked) >= 5, "page by page"
    assert of_three[wish].peer_state.events == 20
    held = [one.peer_state.decided for one in of_three[:wish] if isinstance(one, Beat)]
    assert not held, "who has no seat acknowledges nothing"
    pages = [len(one.entries) for _, to, one in stage.said if to == 3 and isinstance(one, EntryBatch)]
    assert max(pages) < 2 * 3000
    assert [effect.learned for who, effect in stage.effects if who == 3 and isinstance(effect, Delivered)][-20:] == [
        True
    ] * 20


def test_members_publish_while_a_node_learns_and_it_catches_up() -> None:
    stage = published(30, 1000, batch_bytes_max=2000)
    stage.kill(3)
    stage.start(3)
    tokens = []
    for _ in range(40):
        tokens.append(stage.publish(2, bytes(1000)))
        stage.run(0.05)
        assert stage.outcome(tokens[-1]) is not None, "nobody waits for the one that learns"
    assert stage.states() == dict.fromkeys((1, 2, 3), "WRK")
    assert sorted(stage.delivered(3)) == list(range(1, 71))


def learner(stage: Stage, number: int, pages: int = 0) -> Stage:
    """Start this node, and let no more than so many pages come to it: it stays on its way."""
    stage.said.clear()
    stage.loses = lambda to, message: (
        to == number and isinstance(message, EntryBatch) and len(pages_for(stage)) >= pages
    )
    stage.start(number).run(0.5)
    assert stage.cores[number].context.is_learning
    assert stage.states()[number] == "DSC"
    return stage


def pages_for(stage: Stage) -> list[int]:
    """Who gave pages, in order."""
    return [sender for sender, _, message in stage.said if isinstance(message, EntryBatch)]


def test_learning_continues_from_another_node_when_the_guide_dies() -> None:
    stage = Stage(5, batch_bytes_max=2000).start().run(1)
    for _ in range(30):
        stage.publish(1, bytes(1000))
        stage.run(0.05)
    stage.kill(5)
    stage.run(6)
    learner(stage, 5, pages=4)
    [guide] = set(pages_for(stage))
    seat, learned = stage.cores[5].context.seat, stage.cores[5].context.events
    assert 0 < learned < 30
    stage.loses = lambda to, message: False
    stage.kill(guide)
    stage.run(4)
    assert stage.states()[5] == "WRK"
    assert stage.cores[5].context.seat == seat, "what was learned from the first was kept"
    assert sorted(stage.delivered(5)) == list(range(1, 31))


def test_guide_that_does_not_answer_is_replaced() -> None:
    stage = published(5)
    stage.kill(3)
    stage.run(6)
    stage.start(3)
    stage.cut = {(3, 1)}
    stage.run(4)
    assert sorted(stage.delivered(3)) == [1, 2, 3, 4, 5]


def test_joining_node_learns_exactly_the_window() -> None:
    stage = published(40, 500, window_bytes=4000)
    before = dict(stage.cores[1].context.window_base.streams)
    assert before["s"][0] > 25
    for number in (1, 2, 3):
        restart(stage, number)
    for number in (1, 2, 3):
        assert kept(stage, number) <= 4000
        assert min(stage.delivered(number)) <= before["s"][0] + 3, "what was in the window stays but for the changes"
        assert max(stage.delivered(number)) == 40
    assert len({core.context.streams["s"] for core in stage.cores.values()}) == 1


def test_entries_that_leave_the_window_during_learning_restart_it() -> None:
    stage = published(20, 500, window_bytes=6000, batch_bytes_max=600)
    stage.kill(3)
    stage.run(6)
    learner(stage, 3, pages=2)
    seat = stage.cores[3].context.seat
    for _ in range(20):
        stage.publish(1, bytes(500))
        stage.run(0.05)
    stage.loses = lambda to, message: False
    stage.run(3)
    assert stage.states()[3] == "WRK"
    assert stage.cores[3].context.seat != seat
    assert max(stage.delivered(3)) == 40


def test_node_that_learned_an_ended_history_helps_to_begin_another() -> None:
    stage = published()
    [first] = stage.histories()
    stage.kill(3)
    learner(stage, 3)
    for number in (1, 2):
        stage.kill(number)
    stage.run(3)
    stage.loses = lambda to, message: False
    stage.start(1, 2).run(12)
    assert stage.states() == dict.fromkeys((1, 2, 3), "WRK")
    [second] = stage.histories()
    assert second not in {0, first}


def test_readers_and_publishers_wait_while_a_node_learns() -> None:
    stage = published()
    stage.kill(3)
    learner(stage, 3)
    early = stage.publish(3, b"early")
    stage.run(1)
    assert stage.outcome(early) is None
    stage.loses = lambda to, message: False
    stage.run(3)
    assert stage.outcome(early) == Published(early, 4)


def test_member_that_is_pages_behind_catches_up_across_ballots() -> None:
    stage = Stage(5, batch_bytes_max=2000, silence_ns=60 * 10**9).start().run(1)
    for away, author in ((2, 1), (1, 2), (2, 3), (3, 4)):
        stage.split((5, away), tuple(one for one in (1, 2, 3, 4) if one != away))
        stage.cut |= {(5, away), (away, 5)}
        for _ in range(8):
            stage.publish(author, bytes(1000))
            stage.run(0.3)
    assert len({held.entry.ballot for held in stage.cores[4].context.log.since(0)}) >= 3
    assert stage.cores[5].context.events == 0
    seat = stage.cores[5].context.seat
    stage.cut = set()
    stage.run(4)
    assert stage.cores[5].context.seat == seat
    assert {core.context.events for core in stage.cores.values()} == {32}
