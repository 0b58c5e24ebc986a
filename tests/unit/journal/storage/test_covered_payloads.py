"""A node that restarts from a checkpoint still serves the payloads of the last message that the checkpoint covers."""

from __future__ import annotations

from chaplain.journal.model.bootstrap import ExecutionPolicy
from tests.support.execution_stage import pack
from tests.support.journal_cluster import Client, Cluster


def test_payloads_of_the_last_message_are_served_after_a_restart_from_its_checkpoint() -> None:
    """Index-only serializers may have agreed on it without its payloads, and only data holders have them."""
    cluster = Cluster(3, ExecutionPolicy(checkpoint_bytes=1))
    cluster.elect()
    client = Client(cluster).connect(cluster.master)
    lane = client.lease()
    node = next(one for number, one in cluster.nodes.items() if number != cluster.master)
    for first_id in range(1, 20):
        client.write(pack(lane, first_id, (b"x" * 100,)))
        cluster.rest(10**9)
        log = node.core.serializer.context.log
        last = log.recent(log.agreed, 1)[0]
        if node.core.snapshots.checkpointer.durable == log.agreed and last.body.data_entries:
            break
    else:
        raise AssertionError("no checkpoint covers a message with data as its last one")
    cluster.cut = {(one, other) for one in cluster.numbers for other in cluster.numbers}
    cluster.kill(node.number)
    execution = cluster.start(node.number).core.execution
    assert execution.applied_index == last.index
    for entry, payload in zip(last.body.data_entries, last.payloads, strict=True):
        assert execution.cached_payload(entry.reference, entry.digest) == payload
