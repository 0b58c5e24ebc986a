"""What a member with a key can try: memory stays bounded, honest nodes go on."""

from __future__ import annotations

import random
import sys

import pytest

from chaplain.core import Report
from chaplain.errors import Malformed
from chaplain.graph.messages.event import PARENTS_MAX, EventDraft, ParentLink, SignedEvent, confirm_label, decode, sign
from chaplain.graph.messages.peer import (
    FIRST,
    Confirmation,
    EventBatch,
    FetchMissing,
    GetData,
    Inv,
    Item,
    Leaves,
    SyncEvent,
)
from chaplain.units import SECOND_NS
from tests.unit.graph.graph_stage import CLUSTER, START_NS, Stage, identity, make, peer

ROGUE = 3
YEARS_100_NS = 100 * 365 * 86400 * SECOND_NS


def staged(**settings: int) -> Stage:
    """Two honest nodes, and a member that we speak for."""
    stage = Stage(3, **settings)
    stage.append(1, b"honest")
    stage.run(SECOND_NS)
    stage.part({ROGUE})
    for number in (1, 2):
        stage.nodes[number].enter(ROGUE, now_ns=stage.now_ns)
    return stage


def honest_go_on(stage: Stage) -> None:
    written = stage.append(1, b"still here")
    stage.run(SECOND_NS)
    for number in (1, 2):
        assert stage.nodes[number].model.find(written) >= 0
        assert stage.nodes[number].model.is_read(stage.nodes[number].model.find(written))


def orphan(chance: random.Random, author: int = ROGUE) -> SignedEvent:
    link = ParentLink(chance.randbytes(32), 0)
    return sign(EventDraft("notes", chance.randbytes(16), START_NS, None, (link,)), identity(author), CLUSTER)


def test_hundred_thousand_orphans_stay_within_the_bound():
    stage = staged(orphans_max=300, orphans_per_author=200)
    node, chance = stage.nodes[1], random.Random(1)
    some = [orphan(chance) for _ in range(1000)]
    node.hear(stage.now_ns, ROGUE, EventBatch(tuple(Item(one.raw) for one in some)))
    assert len(node.core.admission.orphans) == 200
    for _ in range(99):  # bytes that are not looked at any more need not be right
        items = tuple(Item(chance.randbytes(32).join((one.raw[:33], one.raw[65:]))) for one in some)
        node.hear(stage.now_ns, ROGUE, EventBatch(items))
    assert len(node.core.admission.orphans) <= 200
    assert node.core.counts["unheard"] > 0
    assert not node.core.admission._checking
    assert len(node.core.admission._requested.get(peer(ROGUE).instance, {})) <= node.settings.asked_max
    node.hear(stage.now_ns, 2, EventBatch((Item(orphan(chance, 2).raw),)))
    assert len(node.core.admission.orphans) == 201  # one author's flood takes nobody else's room
    honest_go_on(stage)


def test_event_with_ten_thousand_parents_is_malformed():
    links = tuple(sorted(ParentLink(random.Random(n).randbytes(32), 0) for n in range(PARENTS_MAX + 1)))
    with pytest.raises(Malformed, match="parents"):
        sign(EventDraft("notes", b"x", 0, None, links), identity(ROGUE), CLUSTER)
    raw = make(ROGUE, b"x").raw
    huge = raw[:145] + b"\xff" + b"".join(link.height.to_bytes(4, "big") + link.id for link in links) * 154 + raw[146:]
    stage = staged()
    stage.nodes[1].hear(stage.now_ns, ROGUE, EventBatch((Item(huge),)))
    assert stage.nodes[1].core.counts["refused_malformed_event"] == 1
    honest_go_on(stage)


def test_event_cannot_be_its_own_parent():
    """An id is a hash, so no event names itself. What can be tried is to say so, or to name a parent twice."""
    stage = staged()
    event = make(ROGUE, b"x")
    first = event.raw[:113] + event.id + event.raw[145:]
    assert decode_or_none(first) is None  # the stated height of 0 cannot be that of a child
    link = ParentLink(event.id, 0)
    with pytest.raises(Malformed):
        sign(EventDraft("notes", b"x", 0, link, (link,)), identity(ROGUE), CLUSTER)
    stage.nodes[1].hear(stage.now_ns, ROGUE, EventBatch((Item(first), Item(event.raw))))
    assert stage.nodes[1].model.find(event.id) >= 0
    honest_go_on(stage)


def decode_or_none(raw: bytes) -> SignedEvent | None:
    try:
        return decode(raw)
    except Malformed:
        return None


@pytest.mark.parametrize("shift_ns", [-min(YEARS_100_NS, START_NS), YEARS_100_NS])
def test_events_with_timestamps_of_a_hundred_years_off_are_refused_or_ordered(shift_ns):
    stage = staged()
    node = stage.nodes[1]
    event = make(ROGUE, b"x", time_ns=START_NS + shift_ns)
    node.hear(stage.now_ns, ROGUE, EventBatch((Item(event.raw),), FIRST))
    assert node.model.find(event.id) < 0
    node.hear(stage.now_ns, ROGUE, EventBatch((Item(event.raw),)))
    # The past is refused for good, because the author broadcast it as new; the future has not come.
    assert node.model.find(event.id) < 0
    assert len(node.core.admission.refused) == (shift_ns < 0)
    assert len(node.core.admission.future) == (shift_ns > 0)
    honest_go_on(stage)
    order = [node.model.height_of(n) for n in node.model.ordered()]
    assert order == sorted(order)


def test_forged_and_repeated_confirmations_do_not_count():
    stage = Stage(7)
    stage.part({1})
    node = stage.nodes[1]
    node.enter(ROGUE, now_ns=stage.now_ns)
    event_id = stage.append(1, b"x")
    own = identity(ROGUE).sign(confirm_label(CLUSTER), event_id)
    forged = [Confirmation(identity(number).key, event_id, own) for number in (2, 4, 5, 6)]
    stranger = Confirmation(identity(99).key, event_id, identity(99).sign(confirm_label(CLUSTER), event_id))
    real = Confirmation(identity(ROGUE).key, event_id, own)
    node.hear(stage.now_ns, ROGUE, Inv("notes", tuple([real, real, stranger, *forged] * 50)))
    assert node.core.streams["notes"].unread.counts[0] == 1
    assert not node.model.is_read(0)
    assert node.core.counts["refused_forged_confirmation"] > 0


def test_event_with_another_authors_signature_is_refused():
    stage = staged()
    event = make(ROGUE, b"not mine")
    borrowed = event.raw[:1] + identity(2).key + event.raw[33:]
    stage.nodes[1].hear(stage.now_ns, ROGUE, EventBatch((Item(borrowed),)))
    assert stage.nodes[1].core.counts["refused_wrong_signature"] == 1
    assert len(stage.nodes[1].model) == 1
    honest_go_on(stage)


def test_fork_is_kept_and_flagged_equally_on_all_nodes():
    stage = staged()
    root = make(ROGUE, b"root")
    branches = [make(ROGUE, b"%d" % n, root) for n in range(4)]
    for number in (1, 2):
        shown = (root, *branches[number - 1 :: 2])
        stage.nodes[number].hear(stage.now_ns, ROGUE, EventBatch(tuple(Item(one.raw) for one in shown)))
    stage.run(5 * SECOND_NS)
    one, other = stage.nodes[1].model, stage.nodes[2].model
    assert one.fingerprint == other.fingerprint
    assert all(one.find(branch.id) >= 0 for branch in branches)
    assert len(one.forks) == len(other.forks) == 3
    honest_go_on(stage)


def test_repeated_requests_for_everything_are_bounded():
    stage = staged(served_burst_bytes=20_000, served_bytes_per_s=20_000, page_bytes_max=4000)
    for _ in range(20):
        stage.append(1, bytes(500))
    stage.run(SECOND_NS)
    node = stage.nodes[1]
    node.heard()
    given = 0
    ids = tuple(node.model.id_of(n) for n in range(len(node.model)))
    for number in range(2000):
        request = FetchMissing("notes", number, 0, ()) if number % 2 else GetData("notes", ids)
        node.hear(stage.now_ns + number * 1000, ROGUE, request)
        assert len(node.core.anti_entropy._waiting) <= 8
        assert len(node.core.anti_entropy._fetch_lists) <= 1
        given += sum(len(whisper.content) for whisper in node.sent)
        node.sent.clear()
    assert given < 40_000
    assert node.core.counts["peers_banned"] == 1
    assert [one.event for one in node.others if isinstance(one, Report)] == ["graph: not listening"]
    honest_go_on(stage)


def test_inv_flood_is_bounded():
    stage = staged(early_max=100)
    node, chance = stage.nodes[1], random.Random(5)
    before = sys.getsizeof(node.core.dissemination._early)
    for _ in range(50):
        words = tuple(Confirmation(identity(ROGUE).key, chance.randbytes(32), bytes(64)) for _ in range(1000))
        node.hear(stage.now_ns, ROGUE, Inv("notes", words))
    assert len(node.core.dissemination._early) <= 100
    assert sys.getsizeof(node.core.dissemination._early) < before + 40_000
    assert node.core.counts["refused_too_many_confirmations"] > 0
    asked = sum(len(message.ids) for message in node.heard() if isinstance(message, GetData))
    assert asked <= node.settings.asked_max
    honest_go_on(stage)


def test_unknown_stream_names_take_no_memory():
    stage = staged(streams_max=4)
    node = stage.nodes[1]
    names = tuple(Leaves(f"s{number}", 0, 1, (bytes(32),)) for number in range(2000))
    node.hear(stage.now_ns, ROGUE, SyncEvent(names))
    assert len(node.core.streams) == 1
    assert len(node.core.anti_entropy._fetches) <= 64
    assert sum(map(len, node.core.anti_entropy.frontiers.values())) <= 2
    stage.append(1, b"x", "honest")
    honest_go_on(stage)


def test_ignored_peer_is_accepted_again_later():
    stage = staged()
    node, event = stage.nodes[1], make(ROGUE, b"later")
    for _ in range(20):
        node.hear(stage.now_ns, ROGUE, EventBatch((Item(b"nonsense"),)))
    node.hear(stage.now_ns, ROGUE, EventBatch((Item(event.raw),)))
    assert node.model.find(event.id) < 0
    stage.run(31 * SECOND_NS)
    node.hear(stage.now_ns, ROGUE, EventBatch((Item(event.raw),)))
    assert node.model.find(event.id) >= 0
