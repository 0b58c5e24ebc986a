"""A master is followed only if it shows the votes of a majority, and supplied messages are taken only if confirmed.

Serializers are 1, 2 and 3 unless a test changes that. Node 4 is a member without a vote, and lies.
"""

from __future__ import annotations

import pytest

from chaplain.journal.consensus import unconfirmed
from chaplain.journal.consensus.election_proof import Candidacy, sign_vote
from chaplain.journal.consensus.events import ConfigOffered, PeerDown, Role
from chaplain.journal.messages.cluster import Body, chain_hash, encode_body, genesis
from chaplain.journal.messages.consensus import (
    KNOWN_AGREED,
    AgreedMark,
    AskVote,
    Canvass,
    Canvassed,
    ElectionProof,
    Fetch,
    Handover,
    MarkHeard,
    ProposalAck,
    Propose,
    RecoveryQuestion,
    Supplied,
    Supply,
    Vote,
)
from chaplain.journal.messages.membership import EntryType, NewSet, Stage, encode_fields
from chaplain.journal.storage.last_known_members import LastKnownMembers
from simulator.adapters.consensus_node import identity_of
from tests.support.consensus_cluster import Cluster, ConsensusHost, election_proof, vote

LIAR = 4


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(4, founders=(1, 2, 3))
    made.run(3)
    for _ in range(3):
        made.arrive()
        made.settle()
    made.run(0.5)
    return made


def followers(cluster: Cluster) -> list[int]:
    return [node for node in (1, 2, 3) if node != cluster.master().node]


def forged(host: ConsensusHost, regime: int, master: int = LIAR, number: int = 1) -> tuple[bytes, bytes]:
    """A message that would be next at this node, and its hash."""
    index, previous = host.core.agreed
    raw = encode_body(Body(regime, index + 1, master, host.cluster.now_ns + number, previous, ()))
    return raw, chain_hash(previous, raw)


def reign(host: ConsensusHost, regime: int, master: int = LIAR, number: int = 1) -> None:
    """The node proposes a message to this one, and then says that it is agreed."""
    raw, digest = forged(host, regime, master, number)
    index = host.core.agreed[0] + 1
    host.hear(master, Propose(regime, index, raw))
    while host.persists:
        host.write()
    host.hear(master, AgreedMark(regime, index, digest))
    while host.persists:
        host.write()


# A member without a vote.


@pytest.mark.parametrize("leap", [0, 1])
def test_proposal_and_mark_of_a_member_without_a_vote_change_nothing(cluster: Cluster, leap: int) -> None:
    master, regime = cluster.master(), cluster.master().core.regime
    before = {node: cluster[node].core.agreed for node in (1, 2, 3)}
    for node in (1, 2, 3):
        due_ns = cluster[node].core._election.due_ns
        reign(cluster[node], regime + leap, number=node)
        assert cluster[node].core._election.due_ns == due_ns
        assert not any(isinstance(said, ProposalAck) for said in cluster[node].said(LIAR))
    assert {node: cluster[node].core.agreed for node in (1, 2, 3)} == before
    assert {cluster[node].core.regime for node in (1, 2, 3)} == {regime}
    assert not any(cluster[node].halted for node in (1, 2, 3))
    cluster.arrive()
    cluster.settle()
    assert cluster.master() is master
    assert master.agreed[-1].payloads


def test_unproven_marks_make_a_node_ask_a_serializer_at_intervals(cluster: Cluster) -> None:
    host = cluster[followers(cluster)[0]]
    for _ in range(20):
        host.hear(LIAR, AgreedMark(9, 1000, bytes(32)))
    fetches = [(to, said) for to in (1, 2, 3, LIAR) if to != host.node for said in host.said(to)]
    assert [isinstance(said, Fetch) and to != LIAR for to, said in fetches] == [True]


def test_member_without_a_vote_receives_no_votes(cluster: Cluster) -> None:
    regime = cluster.master().core.regime
    cluster.kill(cluster.master().node)
    for host in cluster.up()[:2]:
        host.hear(LIAR, Canvass(regime + 1, 1 << 40, KNOWN_AGREED))
        host.hear(LIAR, AskVote(regime + 1, 1 << 40, KNOWN_AGREED, True))
        assert not host.persists
        said = [one for one in host.said(LIAR) if isinstance(one, Canvassed | Vote)]
        assert [one.granted for one in said] == [False, False]
        assert host.core.regime == regime


def test_regimes_do_not_rise_because_of_a_member_without_a_vote(cluster: Cluster) -> None:
    master, regime = cluster.master(), cluster.master().core.regime
    for node in (1, 2, 3):
        host = cluster[node]
        host.hear(LIAR, MarkHeard(regime + 7, 99, 99))
        host.hear(LIAR, Canvassed(regime + 1, False, regime + 7))
        host.hear(LIAR, Vote(regime + 1, False, regime + 7, 0, {}))
        host.hear(LIAR, AskVote(regime + 7, 99, 99, True))
        host.hear(LIAR, Handover(regime, 1))
        host.hear(LIAR, Supply(99, 99, ()))
    cluster.run(1)
    assert cluster.master() is master
    cluster.kill(master.node)
    cluster.run(3)
    assert cluster.master().core.regime < regime + 7


@pytest.mark.parametrize("tail_ballot", [0, 1, 1 << 31])
def test_supply_of_a_member_without_a_vote_installs_nothing(cluster: Cluster, tail_ballot: int) -> None:
    host = cluster[followers(cluster)[0]]
    raw, _ = forged(host, 1)
    before = host.core.agreed
    host.hear(LIAR, Supply(before[0] + 1, before[0] + 5, (Supplied(raw, ()),), tail_ballot))
    assert (host.core.agreed, host.core._context.log.tail, host.core.regime) == (before, None, 1)
    assert not host.persists


def test_node_in_doubt_takes_no_tail_from_a_member_without_a_vote(cluster: Cluster) -> None:
    host = cluster[followers(cluster)[0]]
    cluster.kill(host.node)
    host.files.clear()
    host.disk = b"another disk    "
    cluster.restart(host.node)
    for _ in range(4):
        cluster.move()
        index, previous = host.core.agreed
        raw = encode_body(Body(1, index + 1, LIAR, 1, previous, ()))
        for ballot in (0, 1, 1 << 31):
            host.hear(LIAR, Supply(index + 1, index + 1, (Supplied(raw, ()),), ballot))
        tail = host.core._context.log.tail
        assert tail is None or tail.body.master != LIAR
    cluster.run(3)
    assert host.core.voting_status == "sound"
    assert host.core.agreed == cluster.master().core.agreed


# Proofs that prove nothing.


def proofs(regime: int) -> dict[str, ElectionProof]:
    """What node 2 may show for the regime."""
    good = {voter: vote(regime, 2, voter) for voter in (1, 2, 3, 4)}
    other = sign_vote(identity_of(3), Candidacy(genesis("another cluster"), regime, 2))
    return {
        "no votes": ElectionProof(regime, {}),
        "its own vote alone": ElectionProof(regime, {2: good[2]}),
        "a vote of a member without a vote": ElectionProof(regime, {2: good[2], 4: good[4]}),
        "its own vote as another's": ElectionProof(regime, {2: good[2], 3: good[2]}),
        "forged": ElectionProof(regime, {2: good[2], 3: b"x" * 64}),
        "a valid majority and a forged vote": ElectionProof(regime, {1: b"x" * 64, 2: good[2], 3: good[3]}),
        "of another regime": ElectionProof(regime, {2: good[2], 3: vote(regime - 1, 2, 3)}),
        "for another candidate": ElectionProof(regime, {2: good[2], 3: vote(regime, 1, 3)}),
        "of another cluster": ElectionProof(regime, {2: good[2], 3: other}),
        "a proof of node 3": election_proof(regime, 3, 1, 3),
    }


@pytest.mark.parametrize("name", proofs(2))
def test_proof_without_a_valid_majority_is_not_believed(cluster: Cluster, name: str) -> None:
    host = cluster[1]
    before, regime = host.core.agreed, host.core.regime
    claimed = regime + 1
    host.hear(2, proofs(claimed)[name])
    reign(host, claimed, 2)
    assert (host.core.agreed, host.core.regime) == (before, regime)
    assert host.reports[-1].event == "election not proven"
    host.hear(2, ElectionProof(claimed, {2: vote(claimed, 2, 2), 3: vote(claimed, 2, 3)}))
    reign(host, claimed, 2)
    assert (host.core.agreed[0], host.core.regime) == (before[0] + 1, claimed)


def test_proof_of_a_past_regime_is_no_proof_of_the_next(cluster: Cluster) -> None:
    host, regime = cluster[followers(cluster)[0]], cluster.master().core.regime
    other = next(node for node in followers(cluster) if node != host.node)
    host.hear_proof(other, regime + 1, 1, 2, 3)
    before = host.core.agreed
    reign(host, regime + 2, other)
    assert (host.core.agreed, host.core.regime) == (before, regime)


def test_votes_that_elected_another_node_do_not_prove_the_sender(cluster: Cluster) -> None:
    """The liar replays the proof of the master, under the master's regime."""
    master = cluster.master()
    proof = master.core._election.proof()
    host = cluster[followers(cluster)[0]]
    host.hear(LIAR, proof)
    reign(host, proof.regime)
    assert host.core.agreed == master.core.agreed


def test_node_halts_when_a_double_vote_elected_two_masters(cluster: Cluster) -> None:
    """This is what a lying serializer can do; both proofs hold its signature for one regime."""
    host = cluster[1]
    host.hear_proof(2, 9, 1, 2)
    reign(host, 9, 2)
    host.hear_proof(3, 9, 2, 3)
    host.hear(3, AgreedMark(9, *host.core.agreed))
    host.hear(3, AgreedMark(9, host.core.agreed[0], forged(host, 9, 3)[1]))
    assert "not the same" in host.halted


def test_candidate_counts_only_votes_with_a_valid_signature(cluster: Cluster) -> None:
    old, (a, b) = cluster.master().node, followers(cluster)
    cluster.kill(old)
    cluster.cut |= {(a, b)}
    candidate = cluster[a]
    candidate.core._election._campaign_regime = regime = candidate.core.regime + 1
    candidate.core._election.role = Role.CANDIDATE
    candidate.core._election._begin_election(handover=False)
    candidate.step(PeerDown(old))
    candidate.write()
    candidate.hear(b, Vote(regime, True, regime, 0, {}, vote(regime, b, b)))
    assert candidate.core.role is Role.CANDIDATE
    assert candidate.reports[-1].event == "vote with an invalid signature"
    candidate.hear(b, Vote(regime, True, regime, 0, {}, vote(regime, a, b)))
    assert candidate.core.role is Role.MASTER
    assert candidate.said(LIAR)[-2] == election_proof(regime, a, a, b)


# Getting the proof.


def test_restarted_follower_is_shown_the_proof_when_it_connects(cluster: Cluster) -> None:
    master, node = cluster.master(), followers(cluster)[0]
    cluster.kill(node)
    cluster.restart(node)
    assert isinstance(master.said(node)[0], ElectionProof)
    cluster.arrive()
    cluster.settle()
    assert cluster[node].core.agreed[0] >= master.core.agreed[0] - 1


def test_lost_proof_is_shown_again_with_the_next_heartbeats() -> None:
    cluster = Cluster(4, founders=(1, 2, 3))
    cluster.cut = {(node, 4) for node in (1, 2, 3)}
    cluster.run(3)
    assert cluster[4].core.agreed[0] == 0
    cluster.cut = set()
    cluster.run(0.5)
    assert cluster[4].core.agreed == cluster.master().core.agreed


def test_proof_is_checked_once_in_a_regime(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    host, master = cluster[followers(cluster)[0]], cluster.master()
    checks: list[object] = []
    monkeypatch.setattr("chaplain.journal.consensus.election_proof.verify", lambda *said: checks.append(said))
    for _ in range(3):
        host.hear(master.node, master.core._election.proof())
        cluster.arrive()
        cluster.settle()
    assert not checks


# Supplies.


def behind(cluster: Cluster) -> ConsensusHost:
    """Restart a follower that missed four messages and does not know who is master."""
    host = next(host for host in cluster.up() if host.core.role is Role.FOLLOWER)
    cluster.kill(host.node)
    for _ in range(4):
        cluster.arrive()
        cluster.settle()
    cluster.run(0.1)
    host.start()
    cluster.rise(host)
    for pair in cluster.wires:
        cluster.wires[pair].clear()
    return host


def supply(cluster: Cluster, giver: int, index: int, count: int) -> Supply:
    """Real messages from this index on."""
    log = cluster[giver].core._context.log
    messages = [log.recent(at, 1)[0] for at in range(index, index + count)]  # type: ignore[index]
    return Supply(index, log.agreed, tuple(Supplied(message.raw, message.payloads) for message in messages))


def test_supplied_messages_are_taken_once_two_serializers_confirm_them(cluster: Cluster) -> None:
    host = behind(cluster)
    a, b = (node for node in (1, 2, 3) if node != host.node)
    first = host.core.agreed[0] + 1
    host.hear(a, supply(cluster, a, first, 3))
    assert host.core.agreed[0] == first - 1
    host.hear(LIAR, supply(cluster, a, first, 3))
    assert host.core.agreed[0] == first - 1
    assert host.core._fetcher._supplies.next_index_for(b) == first + 2
    host.hear(b, supply(cluster, b, first + 2, 1))
    assert host.core.agreed[0] == first + 2


def test_supply_of_a_proven_master_is_taken_at_once(cluster: Cluster) -> None:
    host = behind(cluster)
    master = cluster.master()
    first = host.core.agreed[0] + 1
    host.hear(master.node, master.core._election.proof())
    host.hear(master.node, supply(cluster, master.node, first, 3))
    assert host.core.agreed[0] == first + 2


def test_supply_of_one_serializer_is_taken_if_it_leads_to_a_proven_mark(cluster: Cluster) -> None:
    host = behind(cluster)
    master, first = cluster.master(), host.core.agreed[0] + 1
    other = next(node for node in (1, 2, 3) if node not in (host.node, master.node))
    host.hear(master.node, AgreedMark(1, *master.core.agreed))
    host.hear(other, supply(cluster, other, first, 3))
    assert host.core.agreed[0] == first - 1, "the mark is of a later message, and the master is not proven"
    host.hear(master.node, master.core._election.proof())
    host.hear(master.node, AgreedMark(1, *master.core.agreed))
    host.hear(other, supply(cluster, other, first + 2, 2))
    assert host.core.agreed == master.core.agreed


def test_proven_mark_confirms_no_message_after_the_marked_one(cluster: Cluster) -> None:
    host = behind(cluster)
    master = cluster.master()
    other = next(node for node in (1, 2, 3) if node not in (host.node, master.node))
    first = host.core.agreed[0] + 1
    [marked] = master.core._context.log.recent(first, 1) or []
    host.hear(master.node, master.core._election.proof())
    host.hear(master.node, AgreedMark(1, marked.index, marked.hash))
    host.hear(other, supply(cluster, other, first, 3))
    assert host.core.agreed == (marked.index, marked.hash)


def test_forged_supply_of_one_serializer_loses_against_two_others() -> None:
    """Two of five are enough: of a set that was replaced since, a majority may never come together again."""
    cluster = Cluster(5)
    cluster.run(3)
    host = behind(cluster)
    a, b, c, liar = (node for node in cluster.nodes if node != host.node)
    index, previous = host.core.agreed
    raw = encode_body(Body(1, index + 1, liar, 1, previous, ()))
    host.hear(a, supply(cluster, a, index + 1, 2))
    host.hear(liar, Supply(index + 1, index + 1, (Supplied(raw, ()),)))
    host.hear(b, supply(cluster, b, index + 1, 2))
    assert host.core.agreed[0] == index
    host.hear(c, supply(cluster, c, index + 1, 2))
    assert host.core.agreed[0] == index + 2
    assert host.core.agreed[1] == cluster[a].core._context.log.recent(index + 2, 1)[0].hash  # type: ignore[index]
    assert any(report.event == "suppliers differ" for report in host.reports)


def test_supplied_message_with_forged_payloads_does_not_keep_the_real_one_out(cluster: Cluster) -> None:
    host = behind(cluster)
    master = cluster.master()
    first = host.core.agreed[0] + 1
    real = supply(cluster, master.node, first, 1)
    other = next(node for node in (1, 2, 3) if node not in (host.node, master.node))
    fake = Supplied(real.messages[0].body, (b"something else",))
    host.hear(other, Supply(first, first, (fake,)))
    host.hear_proof(master.node, 1, 1, 2, 3)
    host.hear(master.node, real)
    assert host.core.agreed[0] == first


def test_unconfirmed_supplies_are_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unconfirmed, "BATCHES_MAX", 1)
    host = cluster[followers(cluster)[0]]
    giver = next(node for node in followers(cluster) if node != host.node)
    (last, previous), bound = host.core.agreed, host.settings.supply_bytes_max
    for index in range(last + 1, last + 101):
        raw = encode_body(Body(1, index, giver, index, previous, ()))
        previous = chain_hash(previous, raw)
        host.hear(giver, Supply(index, index + 1, (Supplied(raw, ()),)))
    supplies = host.core._fetcher._supplies
    sizes = [entry.size_bytes for entry in supplies._entries.values()]
    assert bound <= supplies._size_bytes == sum(sizes) < bound + max(sizes)


def test_supplier_in_doubt_lends_no_ballot(cluster: Cluster) -> None:
    """A fetched message is held under the regime in which it was proposed, whatever the supplier says of itself."""
    host = behind(cluster)
    a, b = (node for node in (1, 2, 3) if node != host.node)
    first = host.core.agreed[0] + 1
    for node in (a, b):
        host.hear(node, supply(cluster, node, first, 1))
    assert [agreed.ballot for agreed in host.agreed] == [host.agreed[0].body.regime]


# Other sets of serializers.


def replaced(cluster: Cluster, *nodes: int) -> None:
    new_set = ConfigOffered(EntryType.NEW_SERIALIZER_SET, Stage.NOMINATE, encode_fields(NewSet(nodes)))
    cluster.master().step(new_set)
    cluster.run(1)
    assert cluster.master().core.context.quorum.sets == (nodes,)


def test_follower_that_missed_a_change_of_serializers_catches_up_and_then_believes_the_master() -> None:
    cluster = Cluster(6, founders=(1, 2, 3))
    cluster.run(3)
    cluster.kill(3)
    replaced(cluster, 4, 5, 6)
    cluster.kill(cluster.master().node)
    cluster.run(3)
    master = cluster.master()
    assert set(master.core._election.proof().votes) == {4, 5, 6} - {4}
    cluster.restart(3)
    host = cluster[3]
    host.hear(master.node, master.core._election.proof())
    assert host.reports[-1].event == "election not proven"
    cluster.run(3)
    assert host.core.agreed == master.core.agreed
    assert host.core._election.master == master.node


def test_follower_that_missed_a_change_does_not_believe_a_single_node() -> None:
    """Of the serializers that it knows only one is there: it waits."""
    cluster = Cluster(6, founders=(1, 2, 3))
    cluster.run(3)
    cluster.kill(3)
    replaced(cluster, 4, 5, 6)
    cluster.kill(cluster.master().node)
    cluster.run(3)
    cluster.kill(2)
    cluster.restart(3)
    host, before = cluster[3], cluster[3].core.agreed
    cluster.run(3)
    assert host.core.agreed == before
    sets, keys = cluster.master().core.context.quorum.sets, {node: identity_of(node).key.hex() for node in (4, 5, 6)}
    host.core.context.last_known_members = LastKnownMembers(cluster.master().core.agreed[0], sets, keys)
    cluster.run(3)
    assert host.core.agreed == cluster.master().core.agreed


def test_restarted_node_believes_a_master_by_its_messages_if_the_voters_were_replaced() -> None:
    """Node 1 was elected by others than those who serialize now, and is master still."""
    cluster = Cluster(5, founders=(1, 2, 3))
    cluster.run(3)
    master = cluster.master()
    others = [node for node in (1, 2, 3, 4, 5) if node != master.node]
    voters = set(master.core._election.proof().votes)
    fresh = [node for node in others if node not in voters][:2]
    replaced(cluster, master.node, *fresh)
    assert cluster.master() is master
    host = cluster[fresh[0]]
    cluster.kill(host.node)
    cluster.restart(host.node)
    cluster.run(0.5)
    assert host.core._election.master == master.node
    cluster.arrive()
    cluster.settle()
    assert host.agreed[-1].payloads


def test_proof_by_a_majority_of_all_members_is_invalid() -> None:
    """Three of five members voted, and only one of them serializes."""
    cluster = Cluster(5, founders=(1, 2, 3))
    cluster.run(3)
    regime = cluster.master().core.regime + 1
    host = cluster[1]
    host.hear_proof(2, regime, 2, 4, 5)
    reign(host, regime, 2)
    assert host.core.regime == regime - 1


def test_lone_serializer_proves_its_election_by_its_own_vote() -> None:
    cluster = Cluster(2, founders=(1,))
    cluster.run(3)
    cluster.arrive()
    cluster.settle()
    cluster.run(0.1)
    assert cluster[2].core.agreed == cluster[1].core.agreed
    assert cluster[1].core._election.proof() == election_proof(1, 1, 1)


def test_recovery_question_of_a_member_is_still_answered(cluster: Cluster) -> None:
    host = cluster[followers(cluster)[0]]
    host.hear(LIAR, RecoveryQuestion(5, 0))
    assert host.said(LIAR)
