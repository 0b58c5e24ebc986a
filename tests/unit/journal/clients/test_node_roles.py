"""Roles of nodes in whole journals: who takes writes, answers reads and takes requests, and who is let in or out."""

from __future__ import annotations

import pytest

from chaplain.core import Halt
from chaplain.journal.consensus.events import Role
from chaplain.journal.events import JournalParcel
from chaplain.journal.execution.local_roles import REMOVED
from chaplain.journal.messages import peer
from chaplain.journal.messages.client import (
    Ended,
    Failed,
    ListNodes,
    MembersAre,
    NodeAddress,
    NotWritten,
    Read,
    SubmitPetition,
)
from chaplain.journal.messages.config import AddIdentity, acl_id
from chaplain.journal.messages.membership import AddNode, EntryType, NewSet, RemoveNode, Stage, StageStep, encode_step
from chaplain.wire.parcel import Layer, Parcel
from tests.support.execution_stage import BOB, NODES, pack, petition
from tests.support.journal_cluster import Client, others

NEWCOMER = AddNode(EntryType.ADD_EXECUTOR_NODE, 4, "tcp://127.0.0.1:7004", NODES[4].key, b"\x04" * 16)


@pytest.fixture
def admin(cluster) -> Client:
    return Client(cluster).connect(cluster.master)


def cluster_config(cluster, number=0):
    return cluster.nodes[number or cluster.master].core.execution.cluster_config


def change(cluster, admin, message, nonce=b"m" * 16) -> bytes:
    """Ask for it, and wait until it is over."""
    decided = admin.petition(petition(message, nonce=nonce))
    assert decided.kind == "applied", decided
    cluster.until(lambda: not [one for one in cluster_config(cluster).changes if one.id == decided.acl and one.open])
    return decided.acl


def follower(cluster) -> int:
    return next(number for number in cluster.numbers if number != cluster.master)


def test_added_node_accepts_writes_and_before_that_has_no_role(cluster, admin):
    node = cluster.start(4)
    cluster.rest(10**9)
    assert (node.core.execution.applied_index, node.role) == (0, Role.FOLLOWER)
    change(cluster, admin, NEWCOMER)
    change(cluster, admin, AddNode(EntryType.ADD_INGEST_NODE, 4), b"i" * 16)
    cluster.agree()
    client = Client(cluster).connect(4)
    lane = client.lease()
    client.write(pack(lane, 1))
    cluster.until(lambda: client.runs)


def test_running_config_node_can_be_removed(cluster, admin):
    cluster.start(4)
    change(cluster, admin, AddNode(EntryType.ADD_CONFIG_NODE, 4, NEWCOMER.uri, NEWCOMER.key, NEWCOMER.disk))
    change(cluster, admin, RemoveNode(EntryType.REMOVE_INGEST_NODE, 4), b"r" * 16)
    assert 4 not in cluster_config(cluster).members


def test_new_node_can_become_the_only_serializer(cluster, admin):
    cluster.start(4)
    change(cluster, admin, NEWCOMER)
    change(cluster, admin, NewSet((4,)), b"s" * 16)
    assert cluster.master == 4
    for number in (1, 2, 3):
        cluster.kill(number)
    assert Client(cluster).connect(4).lease()
    assert cluster_config(cluster).serializers == (4,)


def test_blocked_ingest_node_finishes_its_writes_and_accepts_no_more(cluster, admin):
    number = follower(cluster)
    client = Client(cluster).connect(number)
    lane = client.lease()
    client.write(pack(lane, 1))
    change(cluster, admin, RemoveNode(EntryType.REMOVE_INGEST_NODE, number))
    assert len(client.runs) == 1
    client.write(pack(lane, 2))
    cluster.settle()
    assert client.told(NotWritten)[-1].kind == "not_ingest"
    client.connect(cluster.master)
    client.write(pack(lane, 2))
    cluster.until(lambda: len(client.runs) == 2)


def test_unordered_writes_of_a_dropped_node_are_returned(cluster, admin):
    number = follower(cluster)
    client = Client(cluster).connect(number)
    lane = client.lease()
    cluster.cut |= {(number, other) for other in cluster.numbers}
    client.write(pack(lane, 1))
    change(cluster, admin, RemoveNode(EntryType.REMOVE_INGEST_NODE, number))
    cluster.cut.clear()
    cluster.until(lambda: client.told(NotWritten))
    assert client.told(NotWritten)[-1].kind == "not_ingest"
    assert not cluster_config(cluster).takes_writes(number)
    client.connect(cluster.master)
    client.write(pack(lane, 1))
    cluster.until(lambda: client.runs)
    cluster.agree()
    assert cluster.nodes[1].core.execution.state.streams["orders"].next_offset == 1


def test_node_without_the_executor_role_refuses_readers(cluster, admin):
    number = follower(cluster)
    change(cluster, admin, RemoveNode(EntryType.REMOVE_EXECUTOR_NODE, number))
    cluster.agree()
    answer, _ = Client(cluster).connect(number).ask(Read(7, "orders", 0, 1000))
    assert isinstance(answer, Ended)
    assert answer.kind == "not_executor"


def test_master_can_get_a_role_back(cluster, admin):
    """It tells itself of no progress, so it waited for its own word for ever."""
    master = cluster.master
    change(cluster, admin, RemoveNode(EntryType.REMOVE_EXECUTOR_NODE, master))
    change(cluster, admin, AddNode(EntryType.ADD_EXECUTOR_NODE, master), b"r" * 16)
    assert cluster.master == master
    assert cluster_config(cluster).node(master).executor == Stage.LIVE


def test_node_without_the_config_role_refuses_node_requests_but_leases_lanes(cluster, admin):
    number = follower(cluster)
    change(cluster, admin, RemoveNode(EntryType.REMOVE_INGEST_NODE, number))
    cluster.agree()
    client = Client(cluster).connect(number)
    entry = petition(NewSet((1, 2)), nonce=b"x" * 16)
    answer, _ = client.ask(SubmitPetition(9, entry.entry_type, entry.stage), entry.data)
    assert isinstance(answer, Failed)
    assert answer.kind == "not_config"
    assert client.lease()


def test_removed_node_stops_whether_or_not_it_executed_its_removal(cluster, admin):
    node = cluster.start(4)
    change(cluster, admin, NEWCOMER)
    cluster.cut |= {(number, 4) for number in cluster.numbers}
    change(cluster, admin, RemoveNode(EntryType.REMOVE_EXECUTOR_NODE, 4), b"r" * 16)
    assert not node.core.removed
    cluster.cut.clear()
    cluster.kill(4)
    node = cluster.start(4)
    cluster.until(lambda: node.core.removed)
    cluster.until(lambda: not node.admitted.clients)
    assert node.role is Role.OUT
    assert [report.event for report in node.reports].count("removed from the cluster") == 1
    cluster.until(lambda: node.halts)
    assert node.halts == [Halt(REMOVED, removed=True)]
    assert admin.petition(petition(NEWCOMER, nonce=b"a" * 16)).kind == "node_taken"


def test_one_malicious_member_makes_no_node_leave(cluster, admin):
    number, liar, other = (follower(cluster), *others(cluster, follower(cluster)))
    node = cluster.nodes[number]
    said = Parcel(NODES[liar].identifier, Layer.JOURNAL, *peer.encode(peer.Removed(9)))
    for _ in range(3):
        node.inbox.append(JournalParcel(cluster.nodes[liar].peer, said))
        cluster.settle()
    assert not node.core.removed
    node.inbox.append(JournalParcel(cluster.nodes[other].peer, said))
    cluster.settle()
    assert node.core.removed


def test_addresses_of_members_are_reported_at_start_and_at_every_change(cluster, admin):
    def where(number: int) -> tuple[set[int], tuple[str, ...]]:
        told = cluster.nodes[number].assembled
        return {node for node in NODES if NODES[node].identifier in told.nodes}, told.gone

    uris = {one.node: one.uri for one in cluster_config(cluster).nodes}
    assert cluster.nodes[1].assembled.nodes == {NODES[node].identifier: uris[node] for node in (2, 3)}
    cluster.start(4)
    change(cluster, admin, NEWCOMER)
    cluster.agree()
    assert [where(number) for number in (1, 4)] == [({2, 3, 4}, ()), ({1, 2, 3}, ())]
    change(cluster, admin, RemoveNode(EntryType.REMOVE_EXECUTOR_NODE, 4), b"r" * 16)
    assert where(cluster.master) == ({1, 2, 3} - {cluster.master}, (NEWCOMER.uri,))
    heir = AddNode(EntryType.ADD_EXECUTOR_NODE, 5, NEWCOMER.uri, NODES[5].key, b"\x05" * 16)
    admin.petition(petition(heir, nonce=b"h" * 16))
    assert where(cluster.master) == ({1, 2, 3, 5} - {cluster.master}, ())


def test_clients_receive_members_and_removed_nodes(cluster, admin):
    places = {node: NodeAddress(NODES[node].key, one.uri) for node, one in enumerate(cluster_config(cluster).nodes, 1)}
    places[4] = NodeAddress(NEWCOMER.key, NEWCOMER.uri)
    cluster.settle()
    assert admin.told(MembersAre) == [MembersAre((places[1], places[2], places[3]), ())]
    stranger = Client(cluster, BOB, name="bob").connect(cluster.master)
    leaving = follower(cluster)
    guest = Client(cluster).connect(leaving)

    assert admin.petition(petition(NEWCOMER, nonce=b"m" * 16)).kind == "applied"
    cluster.rest(10**9)
    assert len(admin.told(MembersAre)) == 1, "it is not here yet, and would let nobody in"
    cluster.start(4)
    cluster.until(lambda: len(admin.told(MembersAre)) == 2)
    assert admin.told(MembersAre)[-1] == MembersAre(tuple(places.values()), ())
    change(cluster, admin, AddNode(EntryType.ADD_INGEST_NODE, 4), b"i" * 16)
    assert len(admin.told(MembersAre)) == 2, "nobody came, and nobody went"

    stay = tuple(number for number in (1, 2, 3) if number != leaving)
    change(cluster, admin, NewSet(stay), b"s" * 16)
    change(cluster, admin, RemoveNode(EntryType.REMOVE_INGEST_NODE, leaving), b"j" * 16)
    change(cluster, admin, RemoveNode(EntryType.REMOVE_EXECUTOR_NODE, leaving), b"e" * 16)
    cluster.agree()
    now = MembersAre(tuple(places[node] for node in (*stay, 4)), (places[leaving],))
    assert admin.told(MembersAre)[-1] == now
    assert guest.told(MembersAre)[-1] == now, "the one that goes says so itself"
    assert stranger.told(MembersAre) == []


def test_only_admins_change_nodes_and_later_stages_cannot_be_requested(cluster, admin):
    bob = AddIdentity("bob", 1, BOB.key, ("*",), ("*",))
    added = admin.petition(petition(bob, nonce=b"b" * 16))
    client = Client(cluster, BOB, added.acl, "bob").connect(cluster.master)
    wish = petition(NewSet((1, 2)), BOB, added.acl)
    assert client.petition(wish).kind == "not_allowed"
    step = StageStep(EntryType.NEW_SERIALIZER_SET, Stage.CONFIRM, (1, 2), acl_id(1, 1, 0))
    answer, _ = admin.ask(SubmitPetition(50, step.entry_type, step.stage), encode_step(step))
    assert answer.kind == "unknown_type"
    assert cluster_config(cluster).serializers == (1, 2, 3)


def test_repeated_request_opens_no_second_change(cluster, admin):
    first = change(cluster, admin, NewSet((1, 2)))
    assert admin.petition(petition(NewSet((1, 2)), nonce=b"m" * 16)).acl == first
    assert len(cluster_config(cluster).changes) == 1
    assert cluster_config(cluster).serializers == (1, 2)


def test_configuration_is_listed_to_all_and_survives_a_restart(cluster, admin):
    change(cluster, admin, NewSet((2, 1)))
    cluster.agree()
    before = cluster_config(cluster, 3)
    cluster.kill(3)
    cluster.start(3)
    cluster.agree()
    assert cluster_config(cluster, 3) == before
    _, listed = admin.ask(ListNodes(60))
    assert b'"serializers":[2,1]' in listed
    assert b'"stage":"confirm"' in listed
