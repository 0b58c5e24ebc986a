"""Rot that is found while a node runs: it gets the message back from others, and goes on serving it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from chaplain.errors import Malformed
from chaplain.journal.events import JournalParcel
from chaplain.journal.messages import consensus, peer
from chaplain.journal.messages.client import Chunk, Ended, Read
from chaplain.journal.messages.consensus import Recalled
from chaplain.journal.messages.peer import ConsensusFrame
from chaplain.journal.model.verdict_chain import put_head, verdict_hash
from chaplain.journal.storage.records import is_message
from chaplain.segment.header import read_headers
from chaplain.segment.layout import segment_name
from chaplain.segment.record import Kind
from chaplain.segment.scan import scan
from chaplain.wire.parcel import Layer, Parcel
from tests.support.execution_stage import pack
from tests.support.journal_cluster import Client, Cluster, segments_of

WRITES = 12
RECALL, RECALLED = 14, 15


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.elect()
    client = Client(made).connect(1)
    lane = client.lease()
    for number in range(1, WRITES + 1):
        client.write(pack(lane, number, [b"value %d" % number]))
        made.settle()
    made.agree()
    made.rest(10**9)
    return made


def rot(cluster: Cluster, node: int, index: int, kind: Kind, *, in_head: bool = False) -> None:
    """Flip a bit in a record of this message; in its head, it hides where the next one begins."""
    for sequence, data in segments_of(cluster.disks[node]):
        header = read_headers(data).header
        assert header is not None
        for head, record in scan(data, header).records:
            if is_message(record) and (record.index, record.kind) == (index, kind):
                place = head.position + 20 if in_head else head.end - 12
                cluster.disks[node][segment_name("journal", sequence)][place - header.base] ^= 1
                return
    raise AssertionError(f"node {node} holds no such record of {index}")


def read(cluster: Cluster, node: int) -> tuple[int, str]:
    """How many messages come, and how it ends."""
    client = Client(cluster).connect(node)
    ended, _ = client.ask(Read(1, "orders", 0, 1 << 20))
    assert isinstance(ended, Ended)
    count = sum(chunk.count for chunk in client.told(Chunk))
    client.disconnect()
    return count, ended.kind


def last(cluster: Cluster) -> int:
    return cluster.nodes[1].core.serializer.agreed[0]


@pytest.mark.parametrize("kind", [Kind.META, Kind.BATCH])
def test_damaged_message_is_repaired_while_the_node_runs(cluster: Cluster, kind: Kind) -> None:
    index = last(cluster) - 5
    before = cluster.nodes[2].core.execution.fingerprint()
    rot(cluster, 2, index, kind)
    count, ended = read(cluster, 2)
    assert count < WRITES
    assert ended == "damaged"
    cluster.until(lambda: any("repaired" in report.event for report in cluster.nodes[2].reports))
    assert read(cluster, 2) == (WRITES, "end")
    cluster.kill(2)
    cluster.start(2)
    cluster.agree()
    assert cluster.nodes[2].core.serializer.voting_status == "sound"
    assert cluster.nodes[2].core.execution.fingerprint() == before
    assert read(cluster, 2) == (WRITES, "end")


def test_adjacent_and_last_damaged_messages_are_repaired(cluster: Cluster) -> None:
    end = last(cluster)
    for index in (end - 6, end - 5, end - 4, end):
        rot(cluster, 3, index, Kind.META)
    for _ in range(4):
        read(cluster, 3)
        cluster.rest(10**10)
    assert read(cluster, 3) == (WRITES, "end")


def order_purpose(said) -> int:
    """Of an order message; 0 if it is none."""
    return said.payload[1] if said.body[1] == 1 else 0


def test_node_asked_for_a_message_finds_its_own_damage(cluster: Cluster) -> None:
    index = last(cluster) - 5
    rot(cluster, 2, index, Kind.BATCH)
    rot(cluster, 3, index, Kind.BATCH)
    cluster.spoil = lambda sender, receiver, said: order_purpose(said) == RECALL and (sender, receiver) == (2, 1)
    assert read(cluster, 2)[1] == "damaged"
    cluster.until(lambda: any("repaired" in report.event for report in cluster.nodes[2].reports))
    assert read(cluster, 2) == read(cluster, 3) == (WRITES, "end")


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def said(message: Recalled) -> Parcel:
    body, payload = peer.encode(ConsensusFrame(consensus.encode(message, 1)))
    return Parcel(1, Layer.JOURNAL, body, payload)


def hold_back(cluster: Cluster) -> list[Recalled]:
    """Nobody gets what it recalls from now on; here it is."""
    caught: list[Recalled] = []

    def spoil(sender: int, receiver: int, said) -> bool:
        if order_purpose(said) != RECALLED:
            return False
        message = consensus.decode(said.payload)
        assert isinstance(message, Recalled)
        caught.append(message)
        return True

    cluster.spoil = spoil
    return caught


def test_repair_accepts_only_the_message_with_the_expected_hash(cluster: Cluster) -> None:
    index = last(cluster) - 5
    rot(cluster, 2, index, Kind.BATCH)
    caught = hold_back(cluster)
    assert read(cluster, 2)[1] == "damaged"
    cluster.until(lambda: bool(caught))
    true, node = caught[0].messages[0], cluster.nodes[2]
    for false in (
        replace(true, body=flipped(true.body, 22)),  # its timestamp
        replace(true, payloads=(flipped(true.payloads[0], len(true.payloads[0]) - 1),)),
        replace(true, verdict=true.verdict[:-1]),
    ):
        node.take(JournalParcel(cluster.nodes[1].peer, said(Recalled(index, (false, true)))))
        cluster.settle()
    for elsewhere in (Recalled(index - 1, (true,)), Recalled(index, ())):
        node.take(JournalParcel(cluster.nodes[1].peer, said(elsewhere)))
        cluster.settle()
    assert [report.event for report in node.reports].count("recalled message does not fit") == 3
    assert read(cluster, 2)[1] == "damaged"
    cluster.spoil = None
    cluster.until(lambda: any("repaired" in report.event for report in node.reports))
    assert read(cluster, 2) == (WRITES, "end")


def test_malformed_verdict_is_refused(cluster: Cluster) -> None:
    core = cluster.nodes[1].core
    log = core.serializer._context.log
    message = log._recent[-1]
    for verdict in (b"", put_head(bytes(32)) + b"\x00\x00\x00\x00\x00\x00"):
        with pytest.raises(Malformed):
            core.execution.decision_of(message.body, message.payloads, verdict, verdict_hash(verdict))
