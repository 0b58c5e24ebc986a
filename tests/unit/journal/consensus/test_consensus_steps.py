"""The serializer step by step: what it says, what it writes, and what it refuses."""

from __future__ import annotations

from hashlib import sha256

import pytest

from chaplain.core import Drained, PersistFailed, Replace, Stopping, Woken
from chaplain.journal.consensus.events import ConfigOffered, DiskSpace, PayloadArrived, PeerDown, Role
from chaplain.journal.consensus.hard_state import VotingState, decode_hard_state
from chaplain.journal.messages.cluster import Reference
from chaplain.journal.messages.consensus import (
    AgreedMark,
    AskVote,
    Canvass,
    Canvassed,
    Handover,
    MarkHeard,
    ProposalAck,
    Propose,
    RecoveryQuestion,
    Vote,
)
from chaplain.journal.messages.membership import EntryType, NewSet, Stage, encode_fields
from chaplain.journal.storage.last_known_members import LastKnownMembers
from simulator.adapters.consensus_node import identity_of
from tests.support.consensus_cluster import MILLISECOND, Cluster, elected, vote


@pytest.fixture
def cluster() -> Cluster:
    return elected()


def test_founders_elect_one_master_that_opens_its_regime(cluster: Cluster) -> None:
    assert [host.core.agreed[0] for host in cluster.up()] == [1, 1, 1]
    assert not cluster.master().agreed[0].body.entries
    assert {host.core.regime for host in cluster.up()} == {1}


def test_payload_is_agreed_on_all_nodes_with_its_octets(cluster: Cluster) -> None:
    arrived = cluster.arrive()
    cluster.settle()
    for host in cluster.up():
        assert host.agreed[-1].payloads == (arrived.payload,)
        assert host.agreed[-1].body.entries[0].reference == arrived.reference  # type: ignore[union-attr]
    assert len({host.core.agreed for host in cluster.up()}) == 1


def test_payload_larger_than_a_segment_is_stored_and_found_after_a_restart(cluster: Cluster) -> None:
    """Another node may have larger segments, and let in what does not fit in ours."""
    arrived = cluster.arrive(size_bytes=3 * cluster[1].settings.segment_bytes)
    cluster.settle()
    index = cluster.master().core.agreed[0]
    assert [host.agreed[-1].payloads for host in cluster.up()] == [(arrived.payload,)] * 3
    for node in cluster.nodes:
        cluster.kill(node)
        cluster.restart(node)
        cluster.run(3)
        assert (cluster[node].core.voting_status, cluster[node].core.agreed[0] >= index) == ("sound", True)
    assert not any(host.halted for host in cluster.up())


def test_proposal_is_sent_before_the_masters_own_sync(cluster: Cluster) -> None:
    master = cluster.master()
    cluster.arrive()
    master.step(Drained())
    assert isinstance(master.said(cluster.followers()[0])[-1], Propose)
    assert len(master.persists) == 1
    cluster.arrive()
    master.step(Drained())
    assert len(master.persists) == 1, "a second message was proposed while one is in flight"


def test_follower_acknowledges_only_after_sync(cluster: Cluster) -> None:
    master, node = cluster.master(), cluster.followers()[0]
    cluster.arrive()
    master.step(Drained())
    proposal = next(message for message in master.said(node) if isinstance(message, Propose))
    follower = cluster[node]
    follower.hear(master.node, proposal)
    assert not follower.said(master.node)
    follower.write()
    acknowledged = follower.said(master.node)[-1]
    assert isinstance(acknowledged, ProposalAck)
    assert (acknowledged.regime, acknowledged.index) == (1, 2)


def test_follower_does_not_acknowledge_while_a_payload_is_missing(cluster: Cluster) -> None:
    master, node = cluster.master(), cluster.followers()[0]
    arrived = cluster.arrive(master.node)
    master.step(Drained())
    follower = cluster[node]
    follower.hear(master.node, next(m for m in master.said(node) if isinstance(m, Propose)))
    assert follower.needs[-1].reference == arrived.reference
    assert follower.needs[-1].master == master.node
    assert not follower.persists
    follower.step(PayloadArrived(arrived.reference, b"x" * 32, b"not the one"))
    assert not follower.persists
    follower.step(arrived)
    assert len(follower.persists) == 1


def test_acknowledgements_of_another_regime_or_body_do_not_count(cluster: Cluster) -> None:
    master = cluster.master()
    a, b = cluster.followers()
    cluster.arrive()
    master.step(Drained())
    master.write()
    proposal = next(m for m in master.said(a) if isinstance(m, Propose))
    before = master.core.agreed[0]
    master.hear(a, ProposalAck(7, proposal.index, b"h" * 32, 0, {}))
    master.hear(a, ProposalAck(1, proposal.index, b"h" * 32, 0, {}))
    assert master.core.agreed[0] == before
    cluster[b].hear(master.node, proposal)
    cluster[b].write()
    master.hear(b, cluster[b].said(master.node)[-1])
    assert master.core.agreed[0] == before + 1


def test_acknowledgement_of_an_ended_incarnation_does_not_count(cluster: Cluster) -> None:
    """Node a spoke, lost its disk, and told b. b's word makes the master forget what a said."""
    cluster5 = Cluster(5)
    cluster5.run(3)
    master = cluster5.master()
    a, b, c, _ = (node for node in cluster5.nodes if node != master.node)
    cluster5.arrive()
    master.step(Drained())
    master.write()
    digest = master.said(a)[-1]
    assert isinstance(digest, Propose)
    cluster5[c].hear(master.node, digest)
    cluster5[c].write()
    acknowledged = cluster5[c].said(master.node)[-1]
    assert isinstance(acknowledged, ProposalAck)
    before = master.core.agreed[0]
    master.hear(a, acknowledged)
    master.hear(b, ProposalAck(acknowledged.regime, acknowledged.index, acknowledged.hash, 0, {a: 1}))
    assert master.core.agreed[0] == before
    master.hear(c, acknowledged)
    assert master.core.agreed[0] == before + 1


def test_mark_is_sent_when_there_is_nothing_to_propose(cluster: Cluster) -> None:
    master, node = cluster.master(), cluster.followers()[0]
    cluster.arrive()
    cluster.settle()
    assert cluster[node].core.agreed == master.core.agreed
    cluster.now_ns += 10 * MILLISECOND
    due = master.core.deadline()
    assert due is not None
    assert due <= cluster.now_ns, "the mark is to be written within milliseconds"


def test_mark_that_only_local_clients_await_is_sent_later(cluster: Cluster) -> None:
    master, node = cluster.master(), cluster.followers()[0]
    payload = b"mine"
    arrived = PayloadArrived(Reference(master.node, 1, 1), sha256(payload).digest(), payload)
    for host in cluster.up():
        host.step(arrived)
    cluster.settle()
    assert cluster[node].core.agreed[0] == master.core.agreed[0] - 1, (
        "a mark left although the next message would say it"
    )
    cluster.now_ns += 2 * MILLISECOND
    due = master.core.deadline()
    assert due is not None
    assert due <= cluster.now_ns
    master.step(Woken())
    cluster.settle()
    assert cluster[node].core.agreed == master.core.agreed


def test_many_marks_are_answered_once(cluster: Cluster) -> None:
    master, node = cluster.master(), cluster.followers()[0]
    follower = cluster[node]
    cluster.run(0.5)
    mark = AgreedMark(master.core.regime, *master.core.agreed)
    cluster.now_ns += 150 * MILLISECOND
    for _ in range(3):
        follower.hear(master.node, mark)
    assert len([m for m in follower.said(master.node) if isinstance(m, MarkHeard)]) == 1
    cluster.now_ns += 100 * MILLISECOND
    follower.hear(master.node, mark)
    assert len([m for m in follower.said(master.node) if isinstance(m, MarkHeard)]) == 2


def test_vote_is_given_once_per_regime_and_synced_before_it_is_sent(cluster: Cluster) -> None:
    master = cluster.master()
    a, b = cluster.followers()
    cluster.kill(master.node)
    voter = cluster[b]
    index = voter.core.agreed[0]
    voter.hear(a, AskVote(5, index, 0xFFFFFFFF, False))
    assert not voter.said(a)
    assert isinstance(voter.persists[-1].operations[0], Replace)
    voter.write()
    assert voter.said(a) == [Vote(5, True, 5, 0, {}, vote(5, a, b))]
    voter.hear(master.node, AskVote(5, index, 0xFFFFFFFF, False))
    assert voter.said(master.node)[-1] == Vote(5, False, 5, 0, {})
    cluster.restart(b)
    cluster[b].hear(master.node, AskVote(5, index, 0xFFFFFFFF, False))
    assert not any(isinstance(m, Vote) and m.granted for m in cluster[b].said(master.node))


def test_candidate_with_a_shorter_log_gets_no_vote(cluster: Cluster) -> None:
    master = cluster.master()
    a, b = cluster.followers()
    cluster.arrive()
    cluster.settle()
    cluster.kill(master.node)
    index = cluster[b].core.agreed[0]
    cluster[b].hear(a, AskVote(9, index - 1, 8, False))
    assert cluster[b].said(a)[-1] == Vote(9, False, 1, 0, {})


def test_follower_that_hears_the_master_refuses_a_canvass_until_the_connection_closes(cluster: Cluster) -> None:
    master = cluster.master()
    a, b = cluster.followers()
    ask = Canvass(2, cluster[b].core.agreed[0], 0xFFFFFFFF)
    master.hear(a, ask)
    assert master.said(a)[-1] == Canvassed(2, False, 1)
    cluster[b].hear(master.node, AgreedMark(1, *master.core.agreed))
    cluster[b].hear(a, ask)
    assert cluster[b].said(a)[-1] == Canvassed(2, False, 1)
    cluster[b].step(PeerDown(master.node))
    cluster[b].hear(a, ask)
    assert cluster[b].said(a)[-1] == Canvassed(2, True, 1)


def test_follower_that_hears_the_master_votes_only_in_a_handover(cluster: Cluster) -> None:
    a, b = cluster.followers()
    last = (cluster[b].core.agreed[0], 0xFFFFFFFF)
    cluster[b].hear(a, AskVote(2, *last, False))
    assert cluster[b].said(a)[-1] == Vote(2, False, 1, 0, {})
    cluster[b].hear(a, AskVote(2, *last, True))
    cluster[b].write()
    assert cluster[b].said(a)[-1] == Vote(2, True, 2, 0, {}, vote(2, a, b))


def test_heartbeat_repeats_unacknowledged_proposals(cluster: Cluster) -> None:
    master = cluster.master()
    a, b = cluster.followers()
    cluster.arrive()
    master.step(Drained())
    cluster.wires[master.node, a].clear()
    cluster.wires[master.node, b].clear()
    cluster.now_ns += 250 * MILLISECOND
    master.step(Woken())
    assert any(isinstance(message, Propose) for message in master.said(a))
    cluster.settle()
    assert master.agreed[-1].payloads


def test_failed_disk_ends_all_promises(cluster: Cluster) -> None:
    master, node = cluster.master(), cluster.followers()[0]
    cluster.arrive()
    master.step(Drained())
    follower = cluster[node]
    follower.hear(master.node, next(m for m in master.said(node) if isinstance(m, Propose)))
    follower.step(PersistFailed(follower.persists[-1].ticket, "EIO"))
    assert follower.halted == "the disk failed: EIO"
    assert follower.core.role is Role.OUT
    assert not follower.said(master.node)
    follower.hear(master.node, AgreedMark(1, *master.core.agreed))
    assert not follower.said(master.node)
    assert follower.core.deadline() is None


def test_two_masters_in_one_regime_stop_the_node(cluster: Cluster) -> None:
    """Two quorums voted in one regime: somebody voted twice."""
    master, node = cluster.master(), cluster.followers()[0]
    master.hear(node, AgreedMark(1, *master.core.agreed))
    assert not master.halted
    master.hear_proof(node, 1, *cluster.followers())
    master.hear(node, AgreedMark(1, *master.core.agreed))
    assert "both master" in master.halted


def test_two_bodies_under_one_regime_stop_the_node(cluster: Cluster) -> None:
    master, node = cluster.master(), cluster.followers()[0]
    cluster.arrive()
    master.step(Drained())
    proposal = next(m for m in master.said(node) if isinstance(m, Propose))
    follower = cluster[node]
    follower.hear(master.node, proposal)
    other = bytearray(proposal.body)
    other[22] ^= 1
    follower.hear(master.node, Propose(1, proposal.index, bytes(other)))
    assert "two bodies" in follower.halted


def test_full_disk_deposes_the_master_and_free_space_restores_the_node(cluster: Cluster) -> None:
    master = cluster.master()
    master.step(DiskSpace(0))
    assert master.core.role is Role.FOLLOWER
    cluster.run(5)
    assert cluster.master() is not master
    cluster.arrive()
    cluster.settle()
    assert master.core.agreed[0] < cluster.master().core.agreed[0], "a full disk must not take more"
    master.step(DiskSpace(1 << 40))
    cluster.run(1)
    assert master.core.agreed == cluster.master().core.agreed


def test_leaving_master_hands_over(cluster: Cluster) -> None:
    master = cluster.master()
    master.step(Stopping())
    cluster.settle()
    assert master.core.role is Role.OUT
    assert master.agreed[-1].body.final
    successor = cluster.master()
    assert successor.core.regime == 2
    assert successor.agreed[-1].body.regime == 2


def test_handover_of_a_node_that_is_not_master_is_ignored(cluster: Cluster) -> None:
    a, b = cluster.followers()
    cluster[a].hear(b, Handover(1, 1))
    assert cluster[a].core.role is Role.FOLLOWER
    assert not cluster[a].persists


def test_configuration_entries_are_ordered_by_the_master_alone(cluster: Cluster) -> None:
    master, node = cluster.master(), cluster.followers()[0]
    master.step(ConfigOffered(3, 1, b"node 4"))
    cluster[node].step(ConfigOffered(3, 1, b"node 5"))
    cluster.settle()
    assert [entry.data for entry in cluster[node].agreed[-1].body.entries] == [b"node 4"]  # type: ignore[union-attr]
    assert cluster[node].reports[-1].event == "configuration entry refused"


def test_question_of_a_recovering_node_is_answered_after_its_incarnation_is_synced(cluster: Cluster) -> None:
    master, node = cluster.master(), cluster.followers()[0]
    master.hear(node, RecoveryQuestion(77, 3))
    assert not master.said(node)
    master.write()
    assert decode_hard_state(bytes(master.files["journal.standing"])).incarnations == {node: 3}
    assert master.said(node)[-1].asker_life == 3  # type: ignore[union-attr]


def test_single_node_is_a_cluster() -> None:
    alone = Cluster(1)
    alone.run(3)
    alone.arrive()
    alone.settle()
    assert alone.master().agreed[-1].payloads
    state = decode_hard_state(bytes(alone[1].files["journal.standing"]))
    assert (state.state, state.vote) == (VotingState.SOUND, 1)


def test_payload_larger_than_a_frame_is_refused(cluster: Cluster) -> None:
    master = cluster.master()
    master.step(PayloadArrived(Reference(9, 1, 1), b"d" * 32, bytes(master.settings.payload_bytes_max + 1)))
    assert master.reports[-1].event == "payload refused: too large"
    master.step(Drained())
    assert not master.persists


def test_malformed_messages_are_reported_without_other_effects(cluster: Cluster) -> None:
    from chaplain.journal.consensus.events import Received

    master, node = cluster.master(), cluster.followers()[0]
    for message in (b"", b"\x01", b"\x01" * 40, b"\x02\x63" + bytes(14)):
        master.step(Received(node, message))
        assert master.reports[-1].event == "malformed consensus message"
    master.step(Received(99, b"whoever"))
    cluster[node].hear(master.node, Propose(1, 2, b"not a body"))
    assert cluster[node].reports[-1].event == "malformed proposal"
    assert master.core.role is Role.MASTER


def test_wiped_node_recovers_from_the_current_serializers() -> None:
    """Its empty log names the founders; having caught up with them it finds that others serialize."""
    cluster = Cluster(5, founders=(1, 2, 3))
    cluster.run(3)
    new_set = ConfigOffered(EntryType.NEW_SERIALIZER_SET, Stage.NOMINATE, encode_fields(NewSet((4, 3, 5))))
    cluster.master().step(new_set)
    cluster.run(1)
    assert cluster.master().node == 4
    cluster.kill(3)
    cluster[3].files.clear()
    cluster[3].disk = b"another disk    "
    cluster.cut = {(4, 3), (5, 3)}
    cluster.restart(3)
    cluster.run(8)
    wiped = cluster[3]
    assert (wiped.core.role, wiped.core.voting_status) == (Role.OUT, "wiped")
    assert wiped.core.agreed[0] >= cluster[1].core.agreed[0]
    cluster.cut = set()
    cluster.run(8)
    assert wiped.core.voting_status == "sound"


def test_wiped_node_recovers_by_its_last_known_members_when_the_founders_are_gone() -> None:
    """A majority of those whom its empty log names will never answer."""
    cluster = Cluster(5, founders=(1, 2, 3))
    cluster.run(3)
    new_set = ConfigOffered(EntryType.NEW_SERIALIZER_SET, Stage.NOMINATE, encode_fields(NewSet((4, 3, 5))))
    cluster.master().step(new_set)
    cluster.run(1)
    cluster.kill(1)
    cluster.kill(2)
    cluster.kill(3)
    wiped = cluster[3]
    wiped.files.clear()
    wiped.disk = b"another disk    "
    cluster.restart(3)
    cluster.run(8)
    assert (wiped.core.role, wiped.core.voting_status) == (Role.OUT, "wiped")
    cluster.kill(3)
    wiped.start()
    keys = {node: identity_of(node).key.hex() for node in (3, 4, 5)}
    wiped.core.context.last_known_members = LastKnownMembers(cluster[4].core.agreed[0], ((4, 3, 5),), keys)
    cluster.rise(wiped)
    cluster.run(8)
    assert wiped.core.voting_status == "sound"
    assert wiped.core.context.quorum.sets == ((4, 3, 5),)
    assert wiped.core.agreed == cluster[4].core.agreed
