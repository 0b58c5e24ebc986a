"""Serializers that are index-only: what is ordered and when, who holds it, and what happens when it cannot be found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chaplain.journal.consensus.unconfirmed import UnconfirmedSupplies
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.client import Ended, Open, Opened, Read
from chaplain.journal.messages.consensus import ProposalAck, Propose, decode
from chaplain.journal.messages.membership import AddNode, EntryType, NewSet, RemoveNode
from chaplain.journal.messages.peer import AskState, ConsensusFrame, SnapshotOffer
from chaplain.journal.messages.peer import decode as decode_peer
from chaplain.journal.model.cluster_config import ClusterConfig, open_change
from chaplain.journal.model.reason import Reason
from chaplain.journal.snapshots.install import SnapshotInstaller
from tests.support.execution_stage import NODES, founding, pack, petition
from tests.support.journal_cluster import Client, Cluster

SERIALIZERS, HOLDERS = (1, 2, 3), (4, 5)
SECOND = 10**9
MESSAGES = 20
VALUE = b"a payload that can be found again on disks"


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(5, copies=2)
    made.elect()
    return made


def writer(cluster: Cluster, node: int = 4) -> tuple[Client, int]:
    client = Client(cluster).connect(node)
    return client, client.lease()


def write(client: Client, lane: int, first_id: int, value: bytes = VALUE) -> None:
    client.write(pack(lane, first_id, (value,)))
    client.cluster.until(lambda: any(run.first_id == first_id for run in client.runs))


def has_payload(cluster: Cluster, number: int, value: bytes = VALUE) -> bool:
    return any(value in data for name, data in cluster.disks[number].items() if name.endswith(".segment"))


def said(parcel, kind: type) -> bool:
    """Whether this is a message of the order, of this kind."""
    message = decode_peer(parcel.body, parcel.payload)
    return isinstance(message, ConsensusFrame) and isinstance(decode(message.message), kind)


# What is ordered, and who holds it.


def test_serializers_store_the_order_and_data_nodes_the_payloads(cluster: Cluster) -> None:
    assert cluster.master in SERIALIZERS
    client, lane = writer(cluster)
    write(client, lane, 1)
    cluster.agree()
    assert [has_payload(cluster, number) for number in (*SERIALIZERS, *HOLDERS)] == [False] * 3 + [True] * 2


def test_too_few_data_nodes_stop_writes_but_not_configuration(cluster: Cluster) -> None:
    client, lane = writer(cluster)
    cluster.kill(5)
    cluster.rest(2 * SECOND)
    client.write(pack(lane, 1))
    cluster.rest(8 * SECOND)
    assert not client.runs
    assert Client(cluster).connect(4).lease(b"m" * 16) == lane + 1
    reports = [report.event for node in cluster.nodes.values() for report in node.reports]
    assert "too few data holders are reachable: nothing is ordered" in reports
    cluster.start(5)
    cluster.until(lambda: bool(client.runs))
    cluster.agree()


def test_message_on_one_data_node_is_not_proposed_to_serializers(cluster: Cluster) -> None:
    """Node 5 has it, and its word is lost: a master that cannot know steps down, and what is written comes through."""
    client, lane = writer(cluster)
    regime = cluster.nodes[1].core.serializer.regime
    shown: list[int] = []

    def spoil(sender: int, to: int, parcel) -> bool:
        if said(parcel, Propose) and to in SERIALIZERS:
            shown.append(to)
        return sender == 5 and said(parcel, ProposalAck)

    cluster.spoil = spoil
    client.write(pack(lane, 1))
    cluster.rest(3 * SECOND)
    assert (shown, client.runs) == ([], [])
    assert all(has_payload(cluster, number, b"value") for number in HOLDERS)
    cluster.until(lambda: cluster.nodes[1].core.serializer.regime > regime)
    cluster.spoil = None
    cluster.until(lambda: bool(client.runs))
    cluster.agree()


def test_new_master_proposes_an_inherited_message_without_its_payload(cluster: Cluster) -> None:
    client, lane = writer(cluster)
    master = cluster.master
    cluster.spoil = lambda sender, to, parcel: to == master and sender in SERIALIZERS and said(parcel, ProposalAck)
    client.write(pack(lane, 1, (VALUE,)))
    cluster.settle()
    tails = [cluster.nodes[number].core.serializer.context.log.tail for number in SERIALIZERS]
    assert all(tail is not None and tail.entries for tail in tails)
    for number in SERIALIZERS:
        cluster.kill(number)
    cluster.spoil = None
    for number in SERIALIZERS:
        cluster.start(number)
    cluster.until(lambda: bool(client.runs))
    cluster.agree()
    assert not any(has_payload(cluster, number) for number in SERIALIZERS)


def test_serializer_in_doubt_ignores_messages_never_proposed_to_serializers(cluster: Cluster) -> None:
    client, lane = writer(cluster)
    write(client, lane, 1)
    doubter = next(number for number in SERIALIZERS if number != cluster.master)
    agreed = cluster.nodes[cluster.master].core.serializer.agreed[0]
    cluster.spoil = lambda sender, to, parcel: sender in HOLDERS and said(parcel, ProposalAck)
    client.write(pack(lane, 2))
    cluster.settle()
    tails = [cluster.nodes[number].core.serializer.context.log.tail for number in HOLDERS]
    assert [tail and tail.index for tail in tails] == [agreed + 1] * 2
    cluster.kill(doubter)
    cluster.wipe(doubter)
    node = cluster.start(doubter).core.serializer
    cluster.until(lambda: node.voting_status == "sound", 4 * SECOND)
    assert (node.agreed[0], node.context.log.tail) == (agreed, None)


# Coming back.


@pytest.mark.parametrize("order", [{"supply_bytes_max": 1}, {"supply_messages_max": 1}])
def test_wiped_serializer_asks_serializers_for_confirmations_and_data_nodes_for_payloads(
    monkeypatch: pytest.MonkeyPatch, order: dict[str, int]
) -> None:
    """Each answer contains one message here, as if every message were large. No supply repeats what is known."""
    cluster = Cluster(5, copies=2, order=order)
    cluster.elect()
    client, lane = writer(cluster)
    for first_id in range(1, MESSAGES + 1):
        write(client, lane, first_id)
    cluster.agree()
    wiped = next(number for number in SERIALIZERS if number != cluster.master)
    useless: list[tuple[int, int]] = []
    add = UnconfirmedSupplies.add

    def noted(supplies: UnconfirmedSupplies, node: int, index: int, agreed: int, messages: tuple) -> bool:
        news = add(supplies, node, index, agreed, messages)
        if messages and not news:
            useless.append((node, index))
        return news

    monkeypatch.setattr(UnconfirmedSupplies, "add", noted)
    cluster.kill(wiped)
    cluster.wipe(wiped)
    node = cluster.start(wiped).core.serializer
    cluster.until(lambda: node.voting_status == "sound", 3 * SECOND)
    cluster.agree()
    assert not useless


def test_restarted_serializers_fetch_payloads_from_data_nodes(cluster: Cluster) -> None:
    client, lane = writer(cluster)
    for first_id in range(1, 6):
        write(client, lane, first_id)
    for number in SERIALIZERS:
        cluster.kill(number)
    for number in SERIALIZERS:
        cluster.start(number)
    cluster.elect()
    write(client, lane, 6)
    cluster.agree()
    assert not any(has_payload(cluster, number) for number in SERIALIZERS)


def test_data_node_that_lost_its_copies_fetches_them_from_another(cluster: Cluster) -> None:
    client, lane = writer(cluster)
    write(client, lane, 1)
    cluster.agree()
    cluster.kill(5)
    cluster.wipe(5)
    cluster.start(5)
    cluster.until(lambda: has_payload(cluster, 5))
    write(client, lane, 2)
    cluster.agree()


def test_payload_that_no_node_has_is_named_and_never_skipped(cluster: Cluster) -> None:
    client, lane = writer(cluster)
    write(client, lane, 1)
    cluster.agree()
    index = client.runs[0].index
    for number in (1, 2, 3, 4, 5):
        cluster.kill(number)
    for number in HOLDERS:
        cluster.wipe(number)
    for number in (1, 2, 3, 4, 5):
        cluster.start(number)
    cluster.rest(30 * SECOND)
    assert {node.core.serializer.agreed[0] for node in cluster.nodes.values()} == {index - 1}
    for number in (cluster.master, *HOLDERS):
        node = cluster.nodes[number]
        assert f"messages from {index} on are missing" in node.core.serializer.voting_status
    told = [one for node in cluster.nodes.values() for one in node.reports if one.event == "payloads are missing"]
    assert told
    assert {one.detail["index"] for one in told} == {index}
    assert all(str(one.detail["references"]).startswith("4/") for one in told)


def test_replaced_proposal_remains_available_until_one_is_agreed(cluster: Cluster) -> None:
    """Both nodes that hold data took a message, and then another of a later regime; a serializer may have the first."""
    client, lane = writer(cluster)
    cluster.spoil = lambda sender, to, parcel: sender in HOLDERS and said(parcel, ProposalAck)
    client.write(pack(lane, 1, (VALUE,)))
    cluster.settle()
    tails = [cluster.nodes[number].core.serializer.context.log.tail for number in HOLDERS]
    (entry,) = tails[0].entries
    regime = cluster.nodes[4].core.serializer.regime
    master = cluster.master
    cluster.kill(master)
    cluster.until(lambda: cluster.nodes[4].core.serializer.regime > regime)
    cluster.until(lambda: cluster.nodes[4].core.serializer.context.log.tail.hash != tails[0].hash)
    for number in HOLDERS:
        assert cluster.nodes[number].core.execution.cached_payload(entry.reference, entry.digest)
        cluster.kill(number)
        cluster.start(number)
        assert cluster.nodes[number].core.execution.cached_payload(entry.reference, entry.digest)


def asked_for_a_checkpoint(said: dict[int, SnapshotOffer]) -> bool:
    """Whether node 5, which has nothing, wants a checkpoint when it hears this, then or after a while."""
    execution = JournalExecution(founding(None, b"", SERIALIZERS, count=5, copies=2))
    settings: Any = SimpleNamespace(node=5, order=SimpleNamespace(retry_ns=10, patience_ns=100))
    archive: Any = SimpleNamespace(offers=said)
    log: Any = SimpleNamespace(agreed=0)
    adoption = SnapshotInstaller(settings, execution, archive, log)
    adoption.update(0)
    adoption.on_timer(50)
    adoption.update(1000)
    return any(isinstance(effect.message, AskState) for effect in adoption.effects)  # type: ignore[union-attr]


def covered(first: int) -> SnapshotOffer:
    """Somebody has a checkpoint behind message 25, and its log from there on."""
    return SnapshotOffer(25, bytes(32), 5, first, 30, confirmed=True)


def test_messages_that_only_data_nodes_have_are_not_skipped() -> None:
    """Serializers have dropped the beginning; a copy of it is still to be had."""
    gone = dict.fromkeys(SERIALIZERS, covered(26))
    assert not asked_for_a_checkpoint({**gone, 4: covered(1)})
    assert not asked_for_a_checkpoint(gone), "who may have it is not here"
    assert asked_for_a_checkpoint({**gone, 4: covered(26)})


def test_order_without_payloads_does_not_prevent_a_checkpoint_installation() -> None:
    bare = dict.fromkeys(SERIALIZERS, covered(1))
    assert asked_for_a_checkpoint({**bare, 4: covered(26)})
    assert not asked_for_a_checkpoint({**bare, 4: covered(1)})


def test_serializer_of_an_index_only_set_can_be_replaced(cluster: Cluster) -> None:
    client, lane = writer(cluster)
    write(client, lane, 1)
    cluster.start(6)
    admin = Client(cluster).connect(4)
    master = cluster.master
    left = [number for number in SERIALIZERS if number != master]
    for nonce, message in ((b"a", added(EntryType.ADD_CONFIG_NODE, 6)), (b"s", NewSet((6, *left)))):
        decided = admin.petition(petition(message, nonce=nonce * 16))
        assert decided.kind == "applied", decided
        cluster.until(lambda: not any(one.open for one in cluster.nodes[4].core.execution.cluster_config.changes))
    cluster.until(lambda: cluster.master == 6)
    cluster.kill(master)
    write(client, lane, 2, b"written after it came")
    cluster.agree()
    assert not has_payload(cluster, 6, b"written after it came")
    for number in (6, *left):
        cluster.kill(number)
    for number in (6, *left):
        cluster.start(number)
    write(client, lane, 3)
    cluster.agree()


# What clients are told, and what may be asked for.


def test_clients_of_a_serializer_without_data_are_refused_with_a_reason(cluster: Cluster) -> None:
    client = Client(cluster).connect(1)
    opened, _ = client.ask(Open(1))
    assert isinstance(opened, Opened)
    assert opened.reserved == ("",)
    ended, _ = client.ask(Read(2, "orders", 0, 1000))
    assert isinstance(ended, Ended)
    assert Client(cluster).connect(4).ask(Open(1))[0].reserved == ()


def added(kind: EntryType, node: int) -> AddNode:
    return AddNode(kind, node, f"tcp://127.0.0.1:{7000 + node}", NODES[node].key, bytes((node,)) * 16)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (AddNode(EntryType.ADD_INGEST_NODE, 1), Reason.INDEX_ONLY),
        (AddNode(EntryType.ADD_EXECUTOR_NODE, 2), Reason.INDEX_ONLY),
        (NewSet((1, 2, 4)), Reason.INDEX_ONLY),
        (NewSet((1, 2)), Reason.APPLIED),
        (added(EntryType.ADD_CONFIG_NODE, 6), Reason.APPLIED),
        (added(EntryType.ADD_EXECUTOR_NODE, 6), Reason.APPLIED),
        (RemoveNode(EntryType.REMOVE_INGEST_NODE, 4), Reason.APPLIED),
        (RemoveNode(EntryType.REMOVE_EXECUTOR_NODE, 4), Reason.APPLIED),
    ],
)
def test_data_node_cannot_become_a_serializer(message, reason: Reason) -> None:
    cluster_config = founding(None, b"", SERIALIZERS, count=5, copies=2).cluster_config()
    assert open_change(cluster_config, message, b"c", b"a", 1, copies=2)[1] is reason


def test_data_node_needed_for_the_copies_cannot_be_removed() -> None:
    cluster_config: ClusterConfig = founding(None, b"", SERIALIZERS, count=5, copies=2).cluster_config()
    removed = RemoveNode(EntryType.REMOVE_INGEST_NODE, 4)
    without, reason = open_change(cluster_config, removed, b"c", b"a", 1, copies=2)
    assert reason is Reason.APPLIED
    without = ClusterConfig(without.nodes, without.serializers)  # the change is over
    last = RemoveNode(EntryType.REMOVE_EXECUTOR_NODE, 4)
    assert open_change(without, last, b"d", b"b", 2, copies=2)[1] is Reason.APPLIED  # blocked: it holds data still
    dropped = ClusterConfig(
        tuple(type(one)(one.node, one.key, one.uri, one.disk, one.executor) for one in without.nodes), SERIALIZERS
    )
    assert open_change(dropped, last, b"d", b"b", 3, copies=2)[1] is Reason.NEEDED


def test_founding_digest_without_copies_is_unchanged() -> None:
    """Its state on disk names it."""
    assert founding().digest().hex() == "c9ec1268f8f859317669c842f36f7675e37721cda70ae6cf91643a44b9f17935"
    assert founding(copies=1, serializers=(1, 2)).digest() != founding(serializers=(1, 2)).digest()
