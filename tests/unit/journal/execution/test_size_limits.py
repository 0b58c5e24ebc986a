"""What is too large for a record is refused where it arrives, and rows are the same on every node."""

from __future__ import annotations

from chaplain.journal.messages.client import NotWritten, Open, Opened
from chaplain.journal.storage.records import is_message
from chaplain.segment.header import read_headers
from chaplain.segment.record import Kind, Record
from chaplain.segment.scan import scan
from tests.support.execution_stage import pack
from tests.support.journal_cluster import SEGMENT_BYTES, Client, Cluster, segments_of


def records(cluster: Cluster, number: int) -> list[Record]:
    found: list[Record] = []
    for _, data in segments_of(cluster.disks[number]):
        header = read_headers(data).header
        assert header is not None
        found += [record for _, record in scan(data, header).records if is_message(record)]
    return found


def test_pack_larger_than_a_record_is_refused_and_its_lane_continues() -> None:
    cluster = Cluster()
    cluster.elect()
    client = Client(cluster).connect(1)
    lane = client.lease()
    opened, _ = client.ask(Open(7))
    assert isinstance(opened, Opened)
    bound = opened.pack_bytes_max
    assert 0 < bound < SEGMENT_BYTES // 2
    client.write(pack(lane, 1, [bytes(SEGMENT_BYTES // 2 - 300)]))
    cluster.settle()
    (refused,) = client.told(NotWritten)
    assert refused.kind == "too_large"
    assert str(bound) in refused.reason
    largest = pack(lane, 1, [bytes(bound - 200)])
    assert bound - 100 < len(largest.raw) <= bound
    client.write(largest, pack(lane, 2, [b"small"]))
    cluster.until(lambda: len(client.runs) == 2)


def test_many_packs_of_one_tick_fit_into_messages() -> None:
    cluster = Cluster()
    cluster.elect()
    client = Client(cluster).connect(1)
    lane = client.lease()
    client.write(*(pack(lane, number, [bytes(5000)]) for number in range(1, 31)))
    cluster.until(lambda: sum(run.requests for run in client.runs) == 30)


def test_row_regime_is_that_of_the_body_and_not_of_the_ballot() -> None:
    cluster = Cluster()
    master = cluster.elect()
    client = Client(cluster).connect(master)
    lane = client.lease()
    others = [number for number in cluster.numbers if number != master]
    cluster.cut |= {(others[0], master), (master, others[1])}  # one holds what it proposes, and nobody tells it
    client.write(pack(lane, 1))
    cluster.settle()
    assert not client.runs
    origin = cluster.nodes[master].core.serializer.regime
    cluster.kill(master)
    cluster.cut.clear()
    cluster.elect()
    cluster.start(master)
    cluster.until(lambda: len({node.core.serializer.agreed for node in cluster.nodes.values()}) == 1)
    held = {number: records(cluster, number) for number in cluster.numbers}
    rows = {number: {r.regime for r in found if r.kind == Kind.BATCH} for number, found in held.items()}
    assert rows == {number: {origin} for number in cluster.numbers}
    ballots = {number: {r.regime for r in found if r.kind == Kind.META} for number, found in held.items()}
    assert max(ballots[others[1]]) > origin
