"""Prechecks: which requests a node refuses early, and the order in which it takes the others."""

from __future__ import annotations

from chaplain.core import Stopping
from chaplain.journal.clients.sessions import LINGER_NS
from chaplain.journal.messages.client import AlreadyWritten, Credit, GoBack, NotWritten, Open, Opened
from chaplain.journal.messages.config import AddIdentity, RemoveIdentity
from chaplain.journal.messages.write_request import STATEMENTS
from chaplain.journal.model.bootstrap import ExecutionPolicy
from tests.support.execution_stage import ADMIN_ACL, BOB, pack, petition
from tests.support.journal_cluster import Client, Cluster, others, refused

SECOND = 10**9

# Requests that are refused early.


def test_early_refusals_name_the_reason(cluster, client):
    lane = client.lease()
    settled = cluster.nodes[1].core.execution.applied_index
    assert refused(client, pack(77, 1)) == [("unknown_lane", 1)]
    assert refused(client, pack(lane, 1, signer=BOB)) == [("signature", 1)]
    assert refused(client, pack(lane, 1, stream="_x")) == [("no_right", 1)]
    client.write(pack(lane, 3))
    cluster.settle()
    assert client.told(GoBack)[-1].expected_id == 1
    assert cluster.nodes[1].core.execution.applied_index == settled, "nothing of this was worth ordering"
    assert cluster.nodes[1].core.ingest.waiting_bytes == 0


def test_statements_for_one_database_too_many_are_refused_before_they_are_logged():
    cluster = Cluster(policy=ExecutionPolicy(databases_max=2))
    cluster.elect()
    client = Client(cluster).connect(1)
    lane = client.lease()
    for number in (1, 2):
        client.write(pack(lane, number, stream=f"db{number}", message_type=STATEMENTS))
        cluster.until(lambda number=number: any(run.first_id == number for run in client.runs))
    cluster.agree()
    settled = cluster.nodes[1].core.execution.applied_index
    assert refused(client, pack(lane, 3, stream="db3", message_type=STATEMENTS)) == [("databases_full", 3)]
    assert "as many databases" in client.told(NotWritten)[-1].reason
    cluster.rest(SECOND)
    assert cluster.nodes[1].core.execution.applied_index == settled
    client.write(pack(lane, 3, stream="db3"), pack(lane, 4, stream="db2", message_type=STATEMENTS))
    cluster.until(lambda: sum(run.requests for run in client.runs) == 4)


def test_malformed_pack_is_refused(cluster, client):
    client.lease()
    entry = pack(1, 1)
    broken = bytearray(entry.raw)
    broken[0] ^= 8
    assert refused(client, type(entry)("orders", bytes(broken))) == [("malformed", 0)]


def test_lane_of_another_client_is_refused(cluster, client):
    lane = client.lease()
    added = client.petition(petition(AddIdentity("bob", 1, BOB.key, ("*",), ("*",)), nonce=b"b" * 16))
    other = Client(cluster, BOB, added.acl, "bob").connect(2)
    assert refused(other, pack(lane, 1)) == [("not_yours", 1)]
    client.write(pack(lane, 1))
    cluster.until(lambda: client.runs)
    assert not other.runs


def test_unknown_and_removed_clients_are_refused(cluster, client):
    stranger = Client(cluster, BOB, ADMIN_ACL, "bob").connect(2)
    assert stranger.ask(Open(1))[0].kind == "unknown_signer"
    added = client.petition(petition(AddIdentity("bob", 1, BOB.key, ("*",), ("*",)), nonce=b"b" * 16))
    assert isinstance(stranger.ask(Open(2))[0], Opened)
    assert BOB.key in cluster.nodes[3].admitted.clients
    client.petition(petition(RemoveIdentity(added.acl)))
    assert stranger.ask(Open(3))[0].kind == "removed"
    assert refused(stranger, pack(1, 1)) == [("removed", 1)]
    cluster.rest(LINGER_NS // 2)
    assert BOB.key in cluster.nodes[3].admitted.clients, "so that it hears why"
    cluster.rest(LINGER_NS)
    assert BOB.key not in cluster.nodes[3].admitted.clients


def test_packs_checked_in_worker_threads_stay_in_order(cluster, client):
    lane = client.lease()
    client.write(*(pack(lane, number) for number in range(1, 11)))
    cluster.until(lambda: sum(run.requests for run in client.runs) == 10)
    assert cluster.nodes[1].verifies == 1
    assert client.runs[0].requests == 10


def test_check_results_out_of_order_do_not_reorder_packs(cluster, client):
    lane = client.lease()
    node = cluster.nodes[1]
    held = []
    real = node._perform
    node._perform = lambda effect: held.append(effect) if type(effect).__name__ == "Verify" else real(effect)
    for start in (1, 4):
        client.write(*(pack(lane, number) for number in range(start, start + 3)))
        cluster.settle()
    for effect in reversed(held):
        real(effect)
    cluster.until(lambda: sum(run.requests for run in client.runs) == 6)
    assert not client.told(GoBack)


def test_waiting_pack_is_not_accepted_twice(cluster, client):
    lane = client.lease()
    entry = pack(lane, 1)
    client.write(entry, entry, entry)
    cluster.until(lambda: client.runs)
    cluster.settle()
    assert len(client.runs) == 1
    client.write(entry)
    cluster.settle()
    assert client.runs[1] == client.runs[0]
    assert cluster.nodes[1].core.ingest.waiting_bytes == 0


def test_pack_written_long_ago_is_answered_as_written():
    cluster = Cluster(policy=ExecutionPolicy(remembered_packs=1))
    cluster.elect()
    client = Client(cluster).connect(1)
    lane = client.lease()
    client.write(pack(lane, 1), pack(lane, 2))
    cluster.until(lambda: client.runs)
    client.write(pack(lane, 1))
    cluster.settle()
    assert client.told(AlreadyWritten) == [AlreadyWritten(lane, 2)]


def test_credit_bounds_waiting_octets_and_is_returned():
    cluster = Cluster(window_bytes=2000)
    master = cluster.elect()
    client = Client(cluster).connect(master)
    lane = client.lease()
    for other in others(cluster, master):
        cluster.cut |= {(other, master)}
    assert client.told(Credit)[0].credit_bytes == 2000
    client.write(*(pack(lane, number, (b"x" * 500,)) for number in range(1, 6)))
    cluster.settle()
    assert [one.kind for one in client.told(NotWritten)] == ["busy", "busy"]
    cluster.cut = set()
    cluster.until(lambda: sum(run.requests for run in client.runs) == 3)
    cluster.settle()
    spent = 5 * len(pack(lane, 1, (b"x" * 500,)).raw)
    assert client.told(Credit)[-1].credit_bytes == 2000 + spent
    client.write(*(pack(lane, number, (b"x" * 500,)) for number in range(4, 6)))
    cluster.until(lambda: sum(run.requests for run in client.runs) == 5)


def test_stopping_node_accepts_no_pack(cluster, client):
    lane = client.lease()
    cluster.nodes[1].take(Stopping())
    assert refused(client, pack(lane, 1))[0][0] == "busy"
