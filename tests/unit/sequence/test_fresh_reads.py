"""A fresh read sees everything that was decided when it was asked, at any node; a node without a majority refuses."""

from __future__ import annotations

import pytest

from chaplain.sequence.events import Confirm, Confirmed, Delivered, Published, Unpublished
from tests.unit.sequence.sequence_stage import Stage
from tests.unit.sequence.test_layer import Alone, ReadRequest, client


def outcome(stage: Stage, token: int) -> object:
    kinds = (Confirmed, Published, Unpublished)
    return next((effect for _, effect in stage.effects if isinstance(effect, kinds) and effect.token == token), None)


def delivered(stage: Stage, number: int) -> int:
    mine = [effect for who, effect in stage.effects if who == number and isinstance(effect, Delivered)]
    return sum(len(effect.run.lengths) for effect in mine)


def working(**settings: int) -> Stage:
    stage = Stage(**settings).start()
    return stage.run(15)


@pytest.mark.parametrize("reader", [1, 2, 3])
def test_confirmation_follows_everything_published_elsewhere(reader: int) -> None:
    stage = working()
    for publisher in (1, 2, 3):
        stage.publish(publisher, b"one", b"two")
    stage.run(5)
    before = stage.effects.copy()
    assert sum(isinstance(effect, Published) for _, effect in before) == 3
    lagging = {(other, reader) for other in stage.numbers if other != reader}
    stage.cut |= lagging
    stage.publish(next(number for number in stage.numbers if number != reader), b"unseen")
    stage.run(1)
    stage.feed(reader, Confirm(999))
    stage.run(1)
    assert outcome(stage, 999) is None, "a node that hears nobody confirms nothing"
    stage.cut -= lagging
    stage.run(20)
    found = outcome(stage, 999)
    assert isinstance(found, Confirmed | Unpublished)
    if isinstance(found, Confirmed):
        at = next(place for place, (_, effect) in enumerate(stage.effects) if effect is found)
        kept, stage.effects = stage.effects, stage.effects[:at]
        assert delivered(stage, reader) >= 7
        stage.effects = kept


def test_confirmation_alone_costs_one_entry_without_events() -> None:
    stage = working()
    entries = {number: core.context.log.decided for number, core in stage.cores.items()}
    stage.feed(2, Confirm(999))
    stage.run(3)
    assert isinstance(outcome(stage, 999), Confirmed)
    assert delivered(stage, 2) == 0
    assert 1 <= stage.cores[2].context.log.decided - entries[2] <= 3


def test_confirmations_and_publishes_in_one_batch_are_answered_by_kind() -> None:
    stage = working()
    stage.feed(1, Confirm(901))
    stage.publish(1, b"a", b"b")
    stage.feed(1, Confirm(902))
    stage.run(5)
    assert isinstance(outcome(stage, 901), Confirmed)
    assert isinstance(outcome(stage, 902), Confirmed)
    assert [effect.first for _, effect in stage.effects if isinstance(effect, Published)] == [1]


def test_node_without_a_majority_refuses_a_fresh_read() -> None:
    stage = working()
    stage.kill(1)
    stage.kill(2)
    stage.feed(3, Confirm(901))
    stage.run(30)
    assert isinstance(outcome(stage, 901), Unpublished)
    stage.feed(3, Confirm(902))
    stage.run(1)
    refused = outcome(stage, 902)
    assert isinstance(refused, Unpublished)
    assert refused.kind == "refused"


def test_fresh_page_has_all_published_events() -> None:
    node = Alone()
    node.publish(b"a", b"b")
    settled = node.answer(node.ask(ReadRequest("s", 1, 0, 0, fresh=True)))
    assert settled is not None
    assert not settled.kind
    assert [run.values for run in client.decode_page(settled.payload).runs] == [[b"a", b"b"]]
