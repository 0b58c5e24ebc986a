"""What a serializer makes of its disk after a restart, and how it gets back what is gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from chaplain.core import Drained, Replace, WriteAt
from chaplain.errors import Malformed, StorageError
from chaplain.journal.consensus.events import ConsensusStarted, PeerUp, Role
from chaplain.journal.consensus.hard_state import VotingState, decode_hard_state
from chaplain.journal.messages.cluster import genesis
from chaplain.journal.messages.consensus import (
    KNOWN_AGREED,
    AskVote,
    ProposalAck,
    RecoveryAnswer,
    RecoveryQuestion,
    Supplied,
    Supply,
    Vote,
)
from chaplain.journal.model.records import LogPosition
from chaplain.journal.storage.records import (
    Grouper,
    RecordGroup,
    SyncHint,
    decode_sync_hint,
    encode_sync_hint,
    is_message,
)
from chaplain.journal.storage.recovery import _RecordSet, recover
from chaplain.segment.header import read_headers
from chaplain.segment.record import Kind
from chaplain.segment.scan import scan
from simulator.adapters.consensus_node import segments_of
from tests.support.consensus_cluster import Cluster, elected
from tests.unit.journal.storage.consensus_disks import SEGMENT, damage, follower, positions, state


@pytest.fixture
def cluster() -> Cluster:
    made = elected()
    for _ in range(6):
        made.arrive()
        made.run(0.05)
    return made


def test_clean_restart_keeps_prefix_and_regime(cluster: Cluster) -> None:
    host = follower(cluster)
    before, regime = host.core.agreed, host.core.regime
    offsets = host.execution.count
    cluster.kill(host.node)
    cluster.restart(host.node)
    assert (host.core.agreed, host.core.regime, host.execution.count) == (before, regime, offsets)
    assert not host.agreed, "what was agreed before is not announced again"
    cluster.run(0.5)
    cluster.arrive()
    cluster.settle()
    assert host.core.agreed == cluster.master().core.agreed


def test_reading_back_a_log_costs_the_same_per_message(cluster: Cluster) -> None:
    class Unsearched(dict[int, RecordGroup]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("all messages are looked through for one")

    data = bytes(follower(cluster).files[SEGMENT])
    header = read_headers(data).header
    assert header is not None
    grouper, heap = Grouper(), _RecordSet(())
    heap.groups = Unsearched()
    held = []
    for head, record in scan(data, header).records:
        if is_message(record) and (group := grouper.feed(head.position, head.end, record)) is not None:
            heap._store(head.position, group)
            held.append((record.index, head.position))
    assert (heap.last, heap.end) == held[-1]
    assert heap.floor()[0] == heap.last > 3


def test_damaged_last_record_takes_the_vote_until_caught_up(cluster: Cluster) -> None:
    host = follower(cluster)
    before = host.core.agreed
    cluster.kill(host.node)
    damage(host, positions(host)[-1][0] + 60)
    host.boot = b"another boot    "
    others = [node for node in cluster.nodes if node != host.node]
    cluster.cut |= {(others[0], host.node), (others[1], host.node)}
    cluster.restart(host.node)
    cluster.settle()
    assert host.core.role is Role.OUT
    assert state(host) is VotingState.DOUBTFUL
    host.hear(others[0], AskVote(50, 1000, KNOWN_AGREED, True))
    assert not any(isinstance(message, Vote) for message in host.said(others[0]))
    cluster.cut.clear()
    cluster.run(3)
    assert state(host) is VotingState.SOUND
    assert host.core.agreed >= before
    standing = decode_hard_state(bytes(host.files["journal.standing"]))
    assert standing.incarnation == 1
    assert all(
        decode_hard_state(bytes(cluster[node].files["journal.standing"])).incarnations == {host.node: 1}
        for node in others
    )


def test_log_that_was_begun_and_is_gone_counts_as_lost(cluster: Cluster) -> None:
    """Regime and vote are still there, and so would be a sound standing with nothing behind it."""
    host, master = follower(cluster), cluster.master()
    third = next(node for node in cluster.nodes if node not in (host.node, master.node))
    cluster.kill(third)
    cluster.arrive()
    cluster.settle()
    counted = master.core.agreed
    for node in (host.node, master.node):
        cluster.kill(node)
    for name in [name for name in host.files if name.endswith((".segment", ".jot"))]:
        del host.files[name]
    cluster.restart(host.node)
    cluster.restart(third)
    cluster.run(8)
    assert state(host) is VotingState.LOST
    assert host.core.role is Role.OUT
    assert any("lost what was acknowledged" in report.event for report in host.reports)
    assert cluster[third].core.role is not Role.MASTER, "what two had agreed to would be forgotten"
    cluster.restart(master.node)
    cluster.run(5)
    assert state(host) is VotingState.SOUND
    assert host.core.agreed[0] >= counted[0]


def test_log_that_never_began_may_be_empty() -> None:
    made = Cluster(3)
    made.settle()
    assert made[1].files.keys() == {"journal.standing"}
    made.kill(1)
    made.restart(1)
    made.run(3)
    assert state(made[1]) is VotingState.SOUND
    assert decode_hard_state(bytes(made[1].files["journal.standing"])).log_begun


def test_doubt_is_not_resolved_by_one_of_two_others(cluster: Cluster) -> None:
    host = follower(cluster)
    cluster.kill(host.node)
    host.files.clear()
    host.disk = b"a new directory!"
    third = next(node for node in cluster.nodes if node not in (host.node, cluster.master().node))
    cluster.kill(third)
    cluster.restart(host.node)
    cluster.run(8)
    assert host.core.role is Role.OUT
    assert any("no vote" in report.event for report in host.reports)
    cluster.restart(third)
    cluster.run(3)
    assert host.core.role is Role.FOLLOWER
    assert host.core.agreed == cluster.master().core.agreed


def test_wiped_disk_regains_an_acknowledged_message_before_it_votes(cluster: Cluster) -> None:
    """The master has counted on the copy; so the copy must be there again before its holder votes."""
    master, host = cluster.master(), follower(cluster)
    cluster.kill(next(node for node in cluster.nodes if node not in (host.node, master.node)))
    cluster.arrive()
    cluster.settle()
    counted = master.core.agreed
    cluster.kill(host.node)
    host.files.clear()
    host.disk = b"a new directory!"
    for node in cluster.nodes:
        if node in cluster.down:
            cluster.restart(node)
    cluster.run(5)
    assert state(host) is VotingState.SOUND
    assert host.core.agreed >= counted
    assert {agreed.hash for agreed in host.agreed} >= {counted[1]}


def test_torn_end_behind_the_hint_is_cut_on_the_same_boot(cluster: Cluster) -> None:
    host = follower(cluster)
    before = host.core.agreed
    cluster.kill(host.node)
    jot = decode_sync_hint(bytes(host.files["journal.jot"]))
    host.files[SEGMENT][jot.position : jot.position + 8] = b"\xff" * 8
    cluster.restart(host.node)
    cluster.settle()
    assert state(host) is VotingState.SOUND
    assert host.core.agreed[0] >= before[0] - 1
    cluster.run(1)
    assert host.core.agreed == cluster.master().core.agreed


def test_damage_in_the_middle_is_fetched_and_the_vote_stays(cluster: Cluster) -> None:
    host = follower(cluster)
    before = host.core.agreed
    cluster.kill(host.node)
    start = next(start for start, _, index in positions(host) if index == 4)
    damage(host, start + 20)
    cluster.restart(host.node)
    assert host.core.agreed[0] < 4
    assert any("missing" in report.event for report in host.reports)
    other = next(node for node in cluster.nodes if node != host.node)
    host.hear(other, AskVote(60, 3, 9, True))
    assert not any(isinstance(message, Vote) and message.granted for message in host.said(other))
    cluster.run(2)
    assert state(host) is VotingState.SOUND
    assert host.core.agreed[0] >= before[0]
    cluster.kill(host.node)
    cluster.restart(host.node)
    assert host.core.agreed[0] >= before[0], "the repair is on disk"


def test_own_messages_behind_damage_are_used_again(cluster: Cluster) -> None:
    """Only what is missing is fetched; and it may come from one who does not know that it is agreed."""
    host = follower(cluster)
    before = host.core.agreed[0]
    cluster.kill(host.node)
    start = next(start for start, _, index in positions(host) if index == before - 1)
    damage(host, start + 20)
    other = cluster.master().node
    cluster.restart(host.node)
    host.hear_proof(other, 1, *cluster.nodes)
    host.step(PeerUp(other))
    written = len(host.persists)
    assert host.core.agreed[0] == before - 3, "what nothing behind it names is not yet believed"
    log = cluster[other].core._context.log
    wanted = log.recent(before - 2, 1)
    missing = log.recent(before - 1, 1)
    assert wanted is not None
    assert missing is not None
    supplied = tuple(Supplied(message.raw, message.payloads) for message in (wanted[0], missing[0]))
    host.hear(other, Supply(before - 2, before - 2, supplied, tail_ballot=1))
    assert host.core.agreed[0] >= before - 1
    assert len(host.persists) == written + 1


def test_cluster_in_which_every_last_record_is_damaged_resolves_it_together() -> None:
    cluster = Cluster(3)
    cluster.run(3)
    cluster.arrive()
    cluster.settle()
    for host in cluster.up():
        cluster.kill(host.node)
        host.boot = b"another boot    "
        jot = decode_sync_hint(bytes(host.files["journal.jot"]))
        host.files[SEGMENT][jot.position : jot.position + 200] = b"\xee" * 200
    agreed = max(host.core.agreed[0] for host in cluster.hosts.values())
    for node in cluster.nodes:
        cluster.restart(node)
    assert {host.core.role for host in cluster.up()} == {Role.OUT}
    cluster.run(6)
    assert cluster.master().core.agreed[0] > agreed
    assert len({host.core.agreed for host in cluster.up()}) == 1


def test_wiped_node_does_not_help_a_doubtful_one() -> None:
    cluster = Cluster(3)
    cluster.run(3)
    for node in cluster.nodes:
        cluster.kill(node)
    for node in (1, 2):
        cluster[node].files.clear()
        cluster[node].disk = b"new directory %02d" % node
    for node in cluster.nodes:
        cluster.restart(node)
    cluster.run(8)
    assert cluster[1].core.role is Role.OUT
    assert cluster[2].core.role is Role.OUT
    assert not [host for host in cluster.up() if host.core.role is Role.MASTER]


def test_lost_hard_state_counts_as_lost_memory(cluster: Cluster) -> None:
    host = follower(cluster)
    cluster.kill(host.node)
    host.files["journal.standing"][12] ^= 1
    host.start()
    assert host.core.role is Role.OUT
    cluster.rise(host)
    cluster.settle()
    assert host.core.role is Role.FOLLOWER or state(host) is VotingState.WIPED
    cluster.run(3)
    assert state(host) is VotingState.SOUND


def test_log_shorter_than_its_hint_is_in_doubt(cluster: Cluster) -> None:
    host = follower(cluster)
    files = {name: bytes(data) for name, data in host.files.items()}
    jot = decode_sync_hint(files["journal.jot"])
    ahead = encode_sync_hint(SyncHint(jot.boot, jot.position, host.core.agreed[0] + 5))
    found = recover("journal", segments_of(files), ahead, host.boot, LogPosition(0, 0, 0, genesis("tested")))
    assert "were on disk" in found.doubt
    assert not recover(
        "journal", segments_of(files), files["journal.jot"], host.boot, LogPosition(0, 0, 0, genesis("tested"))
    ).doubt
    assert not recover("journal", segments_of(files), None, host.boot, LogPosition(0, 0, 0, genesis("tested"))).doubt


def test_log_of_another_cluster_is_refused(cluster: Cluster) -> None:
    host = follower(cluster)
    host.cluster = Cluster(1)
    settings = host.settings
    from random import Random

    from chaplain.journal.consensus.core import SerializerCore
    from simulator.adapters.consensus_node import CountingExecution, identity_of

    files = {name: bytes(data) for name, data in host.files.items()}
    other = replace(settings, genesis=genesis("another"))
    with pytest.raises(StorageError, match="another cluster"):
        SerializerCore(other, identity_of(1), Random(1), CountingExecution((1, 2, 3)), segments=segments_of(files))


def test_follower_far_behind_receives_messages_read_from_disk() -> None:
    cluster = Cluster(3)
    cluster.run(3)
    host = follower(cluster)
    cluster.kill(host.node)
    for _ in range(40):
        cluster.arrive()
        cluster.run(0.02)
    cluster.restart(host.node)
    cluster.run(1)
    assert host.core.agreed == cluster.master().core.agreed
    assert host.execution.count == cluster.master().execution.count == 40


def test_node_in_doubt_answers_questions_but_acknowledges_nothing(cluster: Cluster) -> None:
    host = follower(cluster)
    cluster.kill(host.node)
    host.files.clear()
    host.disk = b"a new directory!"
    for pair in cluster.wires:
        if host.node in pair:
            cluster.cut.add(pair)
    cluster.restart(host.node)
    cluster.settle()
    other = next(node for node in cluster.nodes if node != host.node)
    host.hear(other, RecoveryQuestion(5, 0))
    answer = host.said(other)[-1]
    assert answer.standing == VotingState.WIPED  # type: ignore[union-attr]
    cluster.arrive()
    cluster.run(0.5)
    assert not any(isinstance(message, ProposalAck) for message in host.said(other))


def test_vote_is_regained_only_after_the_log_is_synced(cluster: Cluster) -> None:
    """A power cut may tear one `Persist`: the log is synced before the words that vouch for it are written."""
    host = follower(cluster)
    cluster.kill(host.node)
    host.files.clear()
    host.disk = b"a new directory!"
    written: list[tuple[bool, bool, int]] = []
    write = host.write

    def watched() -> None:
        operations = host.persists[0].operations
        standings = [decode_hard_state(one.data) for one in operations if isinstance(one, Replace)]
        regained = any(standing.state is VotingState.SOUND for standing in standings)
        log = any(one.file.endswith(".segment") for one in operations if isinstance(one, WriteAt))
        written.append((regained, log, len(host.persists)))
        write()

    host.write = watched  # type: ignore[method-assign]
    cluster.restart(host.node)
    cluster.run(1)
    assert state(host) is VotingState.SOUND
    regained = [place for place, one in enumerate(written) if one[0]]
    assert written[regained[0]] == (True, False, 1), "alone in its ticket, and nothing before it outstanding"
    assert any(log for _, log, _ in written[: regained[0]])


def test_forgotten_incarnation_is_not_used_again(cluster: Cluster) -> None:
    host = follower(cluster)
    cluster.kill(host.node)
    host.files.clear()
    host.disk = b"a new directory!"
    others = [node for node in cluster.nodes if node != host.node]
    host.start()
    host.step(ConsensusStarted())
    host.write()
    for node in others:
        asked = host.said(node)[-1]
        assert isinstance(asked, RecoveryQuestion)
        host.hear(node, RecoveryAnswer(asked.nonce, 1, 3, 1, VotingState.SOUND, 0, {}))
    host.write()
    begun = host.said(others[0])[-1]
    assert isinstance(begun, RecoveryQuestion)
    assert begun.life == 1
    host.hear(others[0], RecoveryAnswer(begun.nonce, 1, 3, 1, VotingState.SOUND, 4, {host.node: 4}))
    again = host.said(others[0])[-1]
    assert isinstance(again, RecoveryQuestion)
    assert (again.life, again.nonce != begun.nonce) == (0, True)
    for node in others:
        host.hear(node, RecoveryAnswer(again.nonce, 1, 3, 1, VotingState.SOUND, 4, {host.node: 4}))
    host.write()
    assert host.said(others[1])[-1].life == 5  # type: ignore[union-attr]


def test_forgotten_vote_is_not_given_again_after_the_vote_is_regained(cluster: Cluster) -> None:
    """A node that lost its memory may have voted in any regime up to the highest that others answer."""
    host = follower(cluster)
    cluster.kill(host.node)
    host.files.clear()
    host.disk = b"a new directory!"
    others = [node for node in cluster.nodes if node != host.node]
    host.start()
    host.step(ConsensusStarted())
    for _ in range(2):  # which lives do you know; what do you hold
        while host.persists:
            host.write()
        for node in others:
            asked = host.said(node)[-1]
            assert isinstance(asked, RecoveryQuestion)
            host.hear(node, RecoveryAnswer(asked.nonce, 7, 0, 0, VotingState.SOUND, 0, {}))
    while host.persists:
        host.write()
    assert state(host) is VotingState.SOUND
    host.hear(others[0], AskVote(7, 1000, KNOWN_AGREED, True))
    host.hear(others[1], AskVote(8, 1000, KNOWN_AGREED, True))
    while host.persists:
        host.write()
    votes = {node: [one for one in host.said(node) if isinstance(one, Vote)] for node in others}
    assert [vote.granted for vote in votes[others[0]]] == [False]
    assert [vote.granted for vote in votes[others[1]]] == [True]


def test_mark_behind_a_damaged_message_shows_the_end_of_the_log(cluster: Cluster) -> None:
    """Also without a jot: nobody is voted for who has less than the mark calls agreed."""
    host = follower(cluster)
    cluster.run(1)
    agreed = host.core.agreed[0]
    start = next(start for start, _, index in positions(host) if index == agreed)
    damage(host, start + 20)
    files = {name: bytes(data) for name, data in host.files.items()}
    found = recover("journal", segments_of(files), None, host.boot, LogPosition(0, 0, 0, genesis("tested")))
    assert max(found.groups) == agreed - 1
    assert found.floor[0] == agreed


def test_damage_behind_the_last_message_causes_doubt(cluster: Cluster) -> None:
    """A mark or a stamp was there, or a message: something that was synced, and is not known any more."""
    host = follower(cluster)
    cluster.run(1)
    data = bytes(host.files[SEGMENT])
    header = read_headers(data).header
    assert header is not None
    heads = [head for head, _ in scan(data, header).records]
    position = heads[-1].position
    assert heads[-1].record.kind == Kind.MARK
    for _ in range(2):  # the first is proven by the second
        host.core._context.write_mark()
        host.step(Drained())
        host.write()
    damage(host, position + 20)
    files = {name: bytes(data) for name, data in host.files.items()}
    found = recover(
        "journal", segments_of(files), files["journal.jot"], host.boot, LogPosition(0, 0, 0, genesis("tested"))
    )
    assert "behind its last message" in found.doubt


def test_supply_with_a_wrong_payload_is_refused(cluster: Cluster) -> None:
    host = follower(cluster)
    cluster.kill(host.node)
    cluster.arrive()
    cluster.settle()
    other = cluster.master().node
    message = cluster.master().agreed[-1]
    log = cluster[other].core._context.log
    raw = log.recent(message.body.index, 1)
    assert raw is not None
    host.start()
    cluster.rise(host)
    before = host.core.agreed[0]
    assert before == message.body.index - 1
    host.hear_proof(other, 1, *cluster.nodes)
    host.hear(other, Supply(before + 1, before + 1, (Supplied(raw[0].raw, (b"something else",)),)))
    assert host.core.agreed[0] == before
    assert host.reports[-1].event == "supply does not fit"
    host.hear(other, Supply(before + 1, before + 1, (Supplied(raw[0].raw, raw[0].payloads),)))
    assert host.core.agreed[0] == before + 1


def test_messages_read_back_must_form_a_chain(cluster: Cluster) -> None:
    host = follower(cluster)
    data = bytes(host.files[SEGMENT])
    header = read_headers(data).header
    assert header is not None
    records = [record for _, record in scan(data, header).records]
    log = host.core._context.log
    assert [message.index for message in log.read_forward(records, 2)] == list(range(2, host.core.agreed[0] + 1))
    torn = [
        replace(record, previous_hash=b"x" * 32) if record.index == 4 and record.part == 0 else record
        for record in records
    ]
    assert [message.index for message in log.read_forward(torn, 2)] == [2]


def test_hint_round_trips_and_damage_is_malformed() -> None:
    jot = encode_sync_hint(SyncHint(b"b" * 16, 8192, 3))
    assert decode_sync_hint(jot) == SyncHint(b"b" * 16, 8192, 3)
    for bad in (b"", jot[:-1], jot[:5] + b"x" + jot[6:]):
        with pytest.raises(Malformed):
            decode_sync_hint(bad)
