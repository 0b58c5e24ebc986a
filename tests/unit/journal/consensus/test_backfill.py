"""Disks that are replaced, one after the other: what others keep from before a checkpoint is put back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from chaplain.journal.events import JournalParcel
from chaplain.journal.messages import consensus
from chaplain.journal.messages.client import EARLIEST, Chunk, Ended, Read
from chaplain.journal.messages.config import MakeCheckpoint
from chaplain.journal.messages.consensus import Recall, Recalled
from chaplain.journal.settings import RetentionRules
from chaplain.journal.snapshots.checkpoint import checkpoint_name, first_of
from chaplain.segment.record import Kind
from tests.support.execution_stage import pack, petition
from tests.support.journal_cluster import Client, Cluster, Node
from tests.unit.journal.consensus.test_repair import RECALL, flipped, hold_back, order_purpose, rot, said

WRITES = 150
RELEASED = 60
PADDING = b"x" * 1500
PIECE_BYTES = 16 * 1024


class Journal:
    """A cluster of which the log up to one message was released, and what its nodes give to readers."""

    def __init__(self, rules: RetentionRules | None = None) -> None:
        self.cluster = Cluster(order={"supply_bytes_max": PIECE_BYTES}, rules=rules or RetentionRules())
        self.cluster.elect()
        self.client = Client(self.cluster).connect(1)
        self.lane = self.client.lease()
        self.written = 0
        self.write(WRITES)
        self.release(RELEASED)
        self.first = self.offsets(1)[0]

    def write(self, count: int) -> None:
        self.cluster.elect()
        for _ in range(count):
            self.written += 1
            self.client.write(pack(self.lane, self.written, [b"value %d " % self.written + PADDING]))
            self.cluster.settle()
        self.cluster.until(lambda: self.client.runs[-1].first_id == self.written)
        self.cluster.agree()

    def release(self, through: int) -> None:
        assert self.client.petition(petition(MakeCheckpoint(through), nonce=b"%16d" % self.written)).kind == "applied"
        self.cluster.rest(3 * 10**9)

    def offsets(self, node: int) -> range:
        """What of the stream comes from this node, to its end and without a gap."""
        client = Client(self.cluster).connect(node)
        ended, _ = client.ask(Read(1, "orders", EARLIEST, 1 << 30))
        assert isinstance(ended, Ended)
        assert ended.kind == "end", ended
        chunks = client.told(Chunk)
        assert all(one.first_offset + one.count == two.first_offset for one, two in pairwise(chunks))
        client.disconnect()
        return range(chunks[0].first_offset if chunks else ended.next_offset, ended.next_offset)

    def has_all(self, node: int) -> bool:
        """Whether a node has everything that was not released."""
        return set(range(RELEASED, self.written)) <= set(self.offsets(node))

    def standing(self, node: int) -> str:
        return self.cluster.nodes[node].core.serializer.voting_status

    def replace_disk(self, node: int) -> None:
        self.cluster.kill(node)
        self.cluster.wipe(node)
        self.cluster.start(node)

    def tell(self, sender: int, receiver: int, message: Recalled) -> None:
        self.cluster.nodes[receiver].inbox.append(JournalParcel(self.cluster.nodes[sender].peer, said(message)))
        self.cluster.settle()

    def wait(self) -> None:
        self.cluster.until(lambda: all(self.standing(node) == "sound" for node in self.cluster.nodes))

    def restart(self, node: int) -> None:
        self.cluster.kill(node)
        self.cluster.start(node)
        self.wait()
        self.cluster.agree()


def misfits(node: Node) -> int:
    return sum("does not fit" in report.event for report in node.reports)


@pytest.fixture
def journal() -> Journal:
    made = Journal()
    assert 0 < made.first < RELEASED, "something was dropped, and more is kept"
    return made


def test_replacing_disks_one_after_the_other_loses_no_retained_message(journal: Journal) -> None:
    for node in (3, 2, 1):
        if node == 1:
            journal.client.connect(2)
        journal.replace_disk(node)
        journal.wait()
        assert journal.has_all(node), f"node {node}"
    journal.write(5)
    for node in (3, 2, 1):
        if node == 2:
            journal.client.connect(3)
        journal.restart(node)
        assert journal.has_all(node), f"node {node} started again"
    journal.write(60)
    journal.release(RELEASED + 1)  # a checkpoint: what was put back is before it, and before what is in order
    for node in (1, 2, 3):
        journal.restart(node)
        assert journal.has_all(node), f"node {node} started from a later checkpoint"


def test_backfill_continues_after_a_restart_and_status_names_the_range(journal: Journal) -> None:
    recalls = 0

    def spoil(sender: int, receiver: int, said) -> bool:
        nonlocal recalls
        recalls += order_purpose(said) == RECALL
        return recalls > 5 and order_purpose(said) == RECALL

    journal.cluster.spoil = spoil
    journal.replace_disk(3)
    journal.cluster.until(lambda: recalls > 7)
    missing = journal.standing(3)
    assert missing.startswith("sound, messages ")
    first = journal.cluster.nodes[3].core.serializer.context.log.segment_index.first
    assert f" to {first - 1} are on their way from others" in missing
    assert first < WRITES, "some pieces are there, and can be read"
    assert journal.offsets(3)[-1] == WRITES - 1
    reader = Client(journal.cluster).connect(3)
    ended, _ = reader.ask(Read(1, "orders", RELEASED, 1 << 30))
    assert ended.kind == "damaged", "others have it: this was not dropped"
    reader.disconnect()
    before = journal.offsets(3)
    journal.cluster.kill(3)
    journal.cluster.start(3)
    assert journal.offsets(3) == before, "what was put back is found again"
    recalls, journal.cluster.spoil = 0, None
    journal.wait()
    assert journal.has_all(3)
    events = [report.event for report in journal.cluster.nodes[3].reports]
    assert "backfill started: other nodes have messages that are missing here" in events
    assert events[-1] == "backfill finished"


def test_backfill_accepts_only_the_message_named_by_its_successor(journal: Journal) -> None:
    caught = hold_back(journal.cluster)
    journal.replace_disk(3)
    journal.cluster.until(lambda: len(caught) > 1)
    node, given = journal.cluster.nodes[3], caught[0]
    first = node.core.serializer.context.log.segment_index.first
    assert given.index == first - 1
    true = given.messages[0]
    for false in (
        Recalled(given.index, (replace(true, body=flipped(true.body, 22)), true)),  # its timestamp
        Recalled(given.index, (replace(true, verdict=true.verdict[:-1]),)),
        Recalled(given.index, given.messages[1:]),
        Recalled(given.index - 1, given.messages[1:]),
        Recalled(given.index, ()),
    ):
        journal.tell(1, 3, false)
        assert not node.core.serializer.backfill._batch
    assert misfits(node) == 3
    journal.tell(1, 3, given)
    journal.cluster.spoil = None
    journal.wait()
    assert journal.has_all(3)


def test_backfill_asks_another_node_for_the_rest_of_a_wrong_answer(journal: Journal) -> None:
    caught = hold_back(journal.cluster)
    journal.replace_disk(3)
    journal.cluster.until(lambda: bool(caught))
    node, given = journal.cluster.nodes[3], caught[0]
    one, two, three, *_ = given.messages
    journal.tell(1, 3, Recalled(given.index, (one, two, replace(three, body=flipped(three.body, 22)), three)))
    assert [records[0].index for records in node.core.serializer.backfill._batch] == [given.index, given.index - 1]
    assert misfits(node) == 1
    journal.cluster.until(lambda: caught[-1].index == given.index - 2)
    journal.cluster.spoil = None
    journal.wait()
    assert journal.has_all(3)
    assert misfits(node) == 1


def test_backfill_receives_many_messages_per_answer(journal: Journal) -> None:
    asked: list[Recall] = []

    def spoil(sender: int, receiver: int, said) -> bool:
        if order_purpose(said) == RECALL:
            asked.append(consensus.decode(said.payload))
        return False

    journal.cluster.spoil = spoil
    journal.replace_disk(3)
    journal.wait()
    fetched = asked[0].index + 1 - journal.cluster.nodes[3].core.serializer.context.log.segment_index.first
    assert fetched > WRITES - RELEASED
    assert len(asked) * 4 < fetched
    assert all(0 < one.count <= 256 for one in asked)


def test_backfill_skips_damage_at_the_supplier(journal: Journal) -> None:
    """Of an answer that is read in one go nothing can be read behind the damage, not even what was asked for."""
    end = journal.cluster.nodes[1].core.serializer.agreed[0]
    rotten = {1: end - 20, 2: end - 30}
    for node, index in rotten.items():
        rot(journal.cluster, node, index, Kind.BATCH, in_head=True)
    journal.replace_disk(3)
    journal.wait()
    assert journal.has_all(3)
    found = {
        (node, report.detail["index"])
        for node in rotten
        for report in journal.cluster.nodes[node].reports
        if "damaged" in report.event
    }
    assert found
    assert found <= set(rotten.items()), "what is whole was called damaged"


@pytest.mark.parametrize("taken", [0, 2])
def test_backfill_ignores_messages_before_a_dropped_one(journal: Journal, taken: int) -> None:
    caught = hold_back(journal.cluster)
    journal.replace_disk(3)
    journal.cluster.until(lambda: bool(caught))
    journal.write(60)
    journal.release(RELEASED)  # a checkpoint: others tell how far they are
    node, given = journal.cluster.nodes[3], caught[-1]
    if taken:
        last = given.messages[taken]
        false = replace(last, body=flipped(last.body, 22))
        journal.tell(1, 3, Recalled(given.index, (*given.messages[:taken], false)))
    log = node.core.serializer.context.log
    assert log.drop(1, log.agreed), "the rules let the front go"
    journal.cluster.spoil = None
    journal.cluster.rest(5 * 10**9)
    assert node.core.serializer.backfill.due_ns is None
    assert misfits(node) == bool(taken)


def test_readers_of_files_learn_where_the_ordered_part_begins(journal: Journal) -> None:
    """What was put back lies behind what follows it: for readers of files the log begins with the checkpoint."""
    journal.replace_disk(3)
    journal.wait()
    journal.write(1)
    journal.release(RELEASED)
    file = journal.cluster.disks[3][checkpoint_name(journal.cluster.settings(3).order)]
    places = journal.cluster.nodes[3].core.serializer.context.log.segment_index
    assert first_of(bytes(file)) == places.in_order_from > WRITES > places.first


def test_backfill_does_not_fetch_messages_that_retention_would_drop() -> None:
    journal = Journal(RetentionRules(keep_bytes=1))
    asked: list[int] = []
    journal.cluster.spoil = lambda sender, receiver, said: order_purpose(said) == RECALL and bool(asked.append(sender))
    journal.replace_disk(3)
    journal.wait()
    journal.cluster.rest(3 * 10**9)
    assert journal.cluster.nodes[3].core.serializer.context.log.segment_index.first > WRITES
    assert not asked
