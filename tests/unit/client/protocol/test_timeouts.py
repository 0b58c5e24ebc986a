"""How long a client's journal waits for receipts: for a call, and for a writer with much under way."""

from __future__ import annotations

from chaplain.client.protocol.call_events import Failure
from chaplain.journal.messages.client import Receipts
from tests.unit.client.journal_stage import Bench, Cluster


def test_timeout_counts_from_the_last_progress_of_a_writer() -> None:
    cluster = Cluster(3)
    cluster.elect()
    bench = Bench(cluster, 1, 2)
    bench.end(bench.write(b"warm"))
    reached = 1

    def slow(to_node: bool, message: object) -> int:
        runs = message.runs if isinstance(message, Receipts) else ()
        return int(all(run.first_id + run.requests - 1 <= reached for run in runs))

    bench.spoil = slow
    chunks = []
    for number in range(4):
        chunks.append(bench.write(b"%d" % number, group=1, wait_s=10))
        bench.settle()
    single = bench.write(b"a call ends in time", wait_s=10)
    for call in chunks[:3]:
        bench.rest(6)
        reached += 1
        assert bench.end(call).place.base_offset == reached - 1
    assert bench.end(single).failure is Failure.UNKNOWN, "somebody waits for it alone"
    bench.rest(9)
    assert not bench.outcomes.get(chunks[3]), "of the writer that it belongs to, one was answered since"
    bench.rest(2)
    assert bench.end(chunks[3]).failure is Failure.UNKNOWN
