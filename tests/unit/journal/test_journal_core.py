"""Three journals and their clients: what is written is answered once, whoever dies in between."""

from __future__ import annotations

import json

import pytest

from chaplain.costs import REQUEST, STATEMENT
from chaplain.journal.clients import queries
from chaplain.journal.messages.client import (
    AskLane,
    AskProof,
    Failed,
    LaneIs,
    ListClients,
    ListStreams,
    NotWritten,
    Open,
    ProofIs,
    SubmitPetition,
    Wrapped,
    WrapSecret,
)
from chaplain.journal.messages.config import AddIdentity, FenceLane
from chaplain.journal.messages.peer import ConsensusFrame, Payload, decode
from chaplain.journal.messages.signing import PackCheck, SignatureType, holds
from chaplain.journal.messages.write_request import STATEMENTS
from tests.support.execution_stage import ADMIN, ADMIN_ACL, BOB, CLUSTER, WRAPPING, lease, pack, petition
from tests.support.journal_cluster import MILLISECOND, Client, Cluster, others, refused


def test_write_is_answered_with_a_receipt_and_executed_on_all_nodes(cluster, client):
    lane = client.lease()
    client.write(pack(lane, 1, (b"a", b"b")), pack(lane, 3, (b"c",)), pack(lane, 4, stream="other"))
    cluster.until(lambda: len(client.runs) == 2)
    first, second = client.runs
    assert (first.client_id, first.first_id, first.requests, first.stream, first.base_offset, first.messages) == (
        lane,
        1,
        3,
        "orders",
        0,
        3,
    )
    assert (second.first_id, second.stream, second.base_offset) == (4, "other", 0)
    cluster.agree()
    moment = cluster.nodes[2].core.execution.state.lanes[lane].recent[0].position
    assert (first.index, first.regime, first.timestamp_ns, first.hash) == (
        moment.index,
        moment.regime,
        moment.timestamp_ns,
        moment.hash,
    )


def test_every_node_reports_writing_clients_once(cluster, client):
    lane = client.lease()
    client.write(pack(lane, 1), pack(lane, 2))
    cluster.until(lambda: client.runs)
    cluster.agree()
    for node in cluster.nodes.values():
        assert [key for key, _ in node.core.take_writers()] == [ADMIN.key]
        assert node.core.take_writers() == []


def test_packs_are_charged_at_the_nodes_to_which_they_are_forwarded(cluster, client):
    lane = client.lease()
    client.write(pack(lane, 1), pack(lane, 2))
    client.write(pack(lane, 3, (b"INSERT",) * 9, message_type=STATEMENTS))
    cluster.until(lambda: client.runs)
    cluster.agree()
    charged = {number: node.core.take_writers() for number, node in cluster.nodes.items()}
    served = next(number for number, writers in charged.items() if writers == [(ADMIN.key, 0)])
    others = [writers for number, writers in charged.items() if number != served]
    assert others == [[(ADMIN.key, 3 * REQUEST + 9 * STATEMENT)]] * len(others)


def test_accepted_packs_are_under_way_until_they_are_executed():
    cluster = Cluster()
    master = cluster.elect()
    client = Client(cluster).connect(master)
    lane = client.lease()
    core = cluster.nodes[master].core
    assert core.under_way == (0, 0)
    for other in others(cluster, master):
        cluster.cut |= {(other, master)}
    packs = pack(lane, 1), pack(lane, 2)
    client.write(*packs)
    cluster.settle()
    assert core.under_way == (2, sum(len(one.raw) for one in packs))
    cluster.cut.clear()
    cluster.until(lambda: client.runs)
    assert core.under_way == (0, 0)


def test_only_the_writing_session_is_answered(cluster, client):
    """A lane may be leased at one node and written on at another: the first has nothing to say about it."""
    lane = client.lease()
    writer = Client(cluster).connect(2)
    writer.write(pack(lane, 1))
    cluster.until(lambda: writer.runs)
    cluster.agree()
    assert not client.runs
    client.write(pack(lane, 2))
    cluster.until(lambda: client.runs)
    assert [run.first_id for run in client.runs] == [2]


def test_receipt_is_sent_only_after_a_quorum_has_the_message():
    cluster = Cluster()
    master = cluster.elect()
    client = Client(cluster).connect(master)
    lane = client.lease()
    for other in others(cluster, master):
        cluster.cut |= {(other, master)}
    client.write(pack(lane, 1))
    cluster.settle()
    assert not client.runs


@pytest.mark.parametrize("at_master", [True, False])
def test_same_octets_at_another_node_get_the_same_receipt_after_a_death(at_master):
    cluster = Cluster()
    master = cluster.elect()
    first = master if at_master else others(cluster, master)[0]
    client = Client(cluster).connect(first)
    lane = client.lease()
    entry = pack(lane, 1, (b"once",))
    client.write(entry)
    client.node = 0  # answers no longer reach it
    cluster.agree()
    cluster.kill(first)
    cluster.elect()
    client.connect(others(cluster, first)[0]).write(entry)
    cluster.until(lambda: client.runs)
    cluster.agree()
    state = next(iter(cluster.nodes.values())).core.execution.state
    assert state.streams["orders"].next_offset == 1
    remembered = state.lanes[lane].recent[0]
    run = client.runs[0]
    assert (run.base_offset, run.index, run.hash) == (0, remembered.position.index, remembered.position.hash)


def test_pack_sent_to_two_nodes_is_applied_once_after_a_death():
    """Sent to two nodes, ordered twice or once: applied once."""
    cluster = Cluster()
    master = cluster.elect()
    first, second = others(cluster, master)
    client = Client(cluster).connect(first)
    lane = client.lease()
    cluster.cut = {(first, master), (first, second)}
    entry = pack(lane, 1)
    client.write(entry)
    cluster.settle()
    assert not client.runs
    client.node = 0
    client.connect(second).write(entry)
    cluster.until(lambda: client.runs)
    cluster.cut = set()
    cluster.until(lambda: cluster.nodes[first].core.ingest.waiting_bytes == 0)
    cluster.agree()
    assert cluster.nodes[master].core.execution.state.streams["orders"].next_offset == 1
    assert {run.base_offset for run in client.runs} == {0}


def test_writes_under_way_survive_the_death_of_the_master():
    cluster = Cluster()
    master = cluster.elect()
    ingest = others(cluster, master)[0]
    client = Client(cluster).connect(ingest)
    lane = client.lease()
    client.write(*(pack(lane, number) for number in range(1, 4)))
    cluster.nodes[ingest].work()
    cluster.kill(master)
    client.write(*(pack(lane, number) for number in range(4, 7)))
    cluster.until(lambda: sum(run.requests for run in client.runs) == 6)
    assert [run.base_offset + at for run in client.runs for at in range(run.requests)] == list(range(6))
    cluster.agree()


def test_state_survives_a_restart_of_all_nodes():
    cluster = Cluster()
    cluster.elect()
    client = Client(cluster).connect(1)
    lane = client.lease()
    entries = [pack(lane, number) for number in range(1, 6)]
    client.write(*entries)
    cluster.until(lambda: client.runs)
    cluster.agree()
    cluster.rest(20 * MILLISECOND)  # the agreed mark is written
    before = cluster.nodes[1].core.execution.fingerprint()
    journals = {number: node.core.ingest.journal for number, node in cluster.nodes.items()}
    for number in cluster.numbers:
        cluster.kill(number)
    for number in cluster.numbers:
        cluster.start(number)
    assert cluster.nodes[1].core.execution.fingerprint() == before
    cluster.elect()
    again = Client(cluster).connect(2)
    again.write(*entries, pack(lane, 6))
    cluster.until(lambda: any(run.first_id == 6 for run in again.runs))
    assert {run.base_offset for run in again.runs} == set(range(6))
    assert cluster.nodes[2].core.ingest.journal == journals[2] % 0xFFFF + 1


def test_lease_repeated_at_another_node_gives_the_same_lane(cluster, client):
    lane = client.lease()
    other = Client(cluster).connect(3)
    assert other.lease() == lane
    assert other.lease(b"another one 0000") == lane + 1


def test_config_request_reaches_the_next_master():
    cluster = Cluster()
    master = cluster.elect()
    client = Client(cluster).connect(others(cluster, master)[0])
    cluster.settle()
    cluster.kill(master)
    assert client.lease() == 1


def test_undecided_config_request_is_given_up():
    cluster = Cluster(petition_ns=10**9)
    client = Client(cluster).connect(1)
    for number in (2, 3):
        cluster.kill(number)
    entry = lease()
    client.say(SubmitPetition(9, entry.entry_type, 0), entry.data)
    cluster.until(lambda: client.told(Failed))
    assert client.told(Failed)[0].kind == "unknown"


# Getting messages to everybody.


def test_lost_payload_is_sent_again():
    cluster = Cluster()
    master = cluster.elect()
    ingest = others(cluster, master)[0]
    client = Client(cluster).connect(ingest)
    lane = client.lease()
    lost = []

    def spoil(sender, to, said):
        message = decode(said.body, said.payload)
        if isinstance(message, Payload) and to == master and len(lost) < 2:
            lost.append(1)
            return True
        return False

    cluster.spoil = spoil
    client.write(pack(lane, 1))
    cluster.until(lambda: client.runs)
    assert len(lost) == 2


def test_follower_fetches_a_missing_payload():
    cluster = Cluster()
    master = cluster.elect()
    one, two = others(cluster, master)
    client = Client(cluster).connect(master)
    lane = client.lease()
    lost = []

    def spoil(sender, to, said):
        if isinstance(decode(said.body, said.payload), Payload) and not any(node == to for node in lost):
            lost.append(to)
            return True
        return False

    cluster.spoil = spoil
    client.write(pack(lane, 1))
    cluster.until(lambda: client.runs)
    assert sorted(lost) == sorted((one, two))
    cluster.agree()


def test_payload_sent_for_another_ingest_node_is_refused(cluster, client):
    lane = client.lease()
    client.write(pack(lane, 1))
    cluster.until(lambda: client.runs)
    from chaplain.journal.events import JournalParcel
    from chaplain.journal.messages import ingest as ingest_message
    from chaplain.journal.messages import peer as peer_messages
    from chaplain.journal.messages.cluster import Reference
    from chaplain.wire.parcel import Layer, Parcel

    forged = ingest_message.encode(Reference(3, 1, 1), [pack(lane, 2)])
    body, payload = peer_messages.encode(Payload(forged))
    cluster.nodes[1].take(JournalParcel(cluster.nodes[2].peer, Parcel(2, Layer.JOURNAL, body, payload)))
    assert cluster.nodes[1].reports[-1].event == "ingest message of another node refused"


# Fences, proof, lists.


def test_fence_result_is_final(cluster, client):
    lane = client.lease()
    client.write(pack(lane, 1))
    cluster.until(lambda: client.runs)
    decided = Client(cluster).connect(2).petition(petition(FenceLane(lane)))
    assert (decided.kind, decided.last_id) == ("applied", 1)
    assert refused(client, pack(lane, 2)) == [("fenced", 2)]
    assert client.ask(AskLane(50, lane))[0] == LaneIs(
        50, lane, True, 1, True, cluster.nodes[1].core.execution.applied_index
    )
    assert client.ask(AskLane(51, 99))[0].known is False


def test_compromised_identity_is_refused_and_both_requests_are_returned_as_proof(cluster, client):
    added = client.petition(petition(AddIdentity("bob", 1, BOB.key, ("*",), ("*",)), nonce=b"b" * 16))
    owner = Client(cluster, BOB, added.acl, "bob").connect(1)
    thief = Client(cluster, BOB, added.acl, "bob").connect(2)
    lane = owner.lease()
    first, second = pack(lane, 1, (b"mine",), signer=BOB), pack(lane, 1, (b"stolen",), signer=BOB, stream="other")
    owner.write(first)
    cluster.until(lambda: owner.runs)
    cluster.agree()
    thief.write(second)
    cluster.until(lambda: thief.told(NotWritten))
    assert thief.told(NotWritten)[0].kind == "compromised"
    cluster.agree()
    assert refused(owner, pack(lane, 2, signer=BOB)) == [("compromised", 2)]
    client.say(AskProof(60, added.acl))  # at once: the verdict on the last message is not on disk yet
    cluster.until(lambda: client.told(ProofIs))
    proof, packs = next(one for one in client.inbox if isinstance(one[0], ProofIs))
    assert isinstance(proof, ProofIs)
    shown = packs[: proof.first_bytes], packs[proof.first_bytes :]
    assert shown == (first.raw, second.raw)
    for raw, stream in zip(shown, (proof.first_stream, proof.second_stream), strict=True):
        assert holds(PackCheck(SignatureType.ED25519, proof.key, proof.cluster, stream, raw))
    assert client.ask(AskProof(61, ADMIN_ACL))[0].kind == "unknown"


def test_streams_and_clients_are_listed(cluster, client):
    lane = client.lease()
    client.write(pack(lane, 1), pack(lane, 2, stream="b"))
    cluster.until(lambda: sum(run.requests for run in client.runs) == 2)
    page = json.loads(client.ask(ListStreams(70))[1])
    assert [(one["stream"], one["next_offset"]) for one in page["streams"]] == [("b", 1), ("orders", 1)]
    assert page["after"] == ""
    (listed,) = json.loads(client.ask(ListClients(71))[1])
    assert (listed["name"], listed["lanes"], listed["status"]) == ("default", 1, "active")


def test_streams_are_listed_in_bounded_pages(cluster, client, monkeypatch):
    monkeypatch.setattr(queries, "PAGE_STREAMS_MAX", 2)
    lane = client.lease()
    client.write(*(pack(lane, number, stream=f"s{number}") for number in range(1, 6)))
    cluster.until(lambda: sum(run.requests for run in client.runs) == 5)
    pages: list[list[str]] = []
    after = ""
    while True:
        page = json.loads(client.ask(ListStreams(70 + len(pages), after))[1])
        pages.append([one["stream"] for one in page["streams"]])
        after = page["after"]
        if not after:
            break
    assert pages == [["s1", "s2"], ["s3", "s4"], ["s5"]]


def test_node_wraps_a_secret_for_an_admin():
    cluster = Cluster(wrapping=WRAPPING)
    cluster.elect()
    client = Client(cluster).connect(1)
    answer, wrapped = client.ask(WrapSecret(80, BOB.key), b"s" * 32)
    assert isinstance(answer, Wrapped)
    assert WRAPPING.unwrap(wrapped, BOB.key) == b"s" * 32
    assert client.ask(WrapSecret(81, BOB.key), b"short")[0].kind == "malformed"


# Reading.


def test_malformed_parcels_are_reported(cluster, client):
    from chaplain.journal.events import JournalParcel
    from chaplain.wire.parcel import Layer, Parcel

    cluster.settle()
    for peer in (client.peer, cluster.nodes[2].peer):
        cluster.nodes[1].take(JournalParcel(peer, Parcel(1, Layer.JOURNAL, b"\xff\xff")))
        assert cluster.nodes[1].reports[-1].event == "malformed journal parcel"


def test_cluster_of_one_node_works():
    cluster = Cluster(1)
    cluster.elect()
    client = Client(cluster).connect(1)
    lane = client.lease()
    client.write(pack(lane, 1))
    cluster.until(lambda: client.runs)
    assert ADMIN.key in cluster.nodes[1].admitted.clients
    assert client.ask(Open(90))[0].cluster == CLUSTER
    assert ConsensusFrame(b"x") == decode(b"\x01\x01", b"x")
