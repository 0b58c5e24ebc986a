"""Verdicts that a peer supplies for repair and backfill are checked against the hash chain through all verdicts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from chaplain.journal.consensus.events import LogRead, ReadLog
from chaplain.journal.events import JournalParcel
from chaplain.journal.messages import consensus
from chaplain.journal.messages.consensus import Recalled, RecalledMessage
from chaplain.journal.model.reason import Reason
from chaplain.journal.model.results import DataVerdict, ExecutionVerdict
from chaplain.journal.model.verdict_chain import NO_VERDICT, previous_of, verdict_hash
from chaplain.journal.storage import verdict as verdicts
from chaplain.segment.layout import NO_OFFSET
from chaplain.segment.record import Kind
from tests.support.execution_stage import Stage, pack
from tests.support.journal_cluster import Cluster, Node
from tests.unit.journal.consensus.test_backfill import Journal, journal, misfits  # noqa: F401  a fixture
from tests.unit.journal.consensus.test_repair import RECALLED, WRITES, cluster, last, order_purpose, read, rot, said  # noqa: F401  a fixture


def without_its_packs(verdict: ExecutionVerdict) -> ExecutionVerdict:
    """As if no pack of the message had been applied."""
    entries = []
    for entry in verdict.entries:
        if isinstance(entry, DataVerdict):
            packs = tuple(replace(one, reason=Reason.GAP, base_offset=NO_OFFSET) for one in entry.packs)
            entries.append(replace(entry, packs=packs))
        else:
            entries.append(entry)
    return replace(verdict, entries=tuple(entries), streams=())


def moved(verdict: ExecutionVerdict) -> ExecutionVerdict:
    """As if the message had been written elsewhere in its streams."""
    entries = []
    for entry in verdict.entries:
        if isinstance(entry, DataVerdict):
            packs = tuple(replace(one, base_offset=one.base_offset + 1) for one in entry.packs)
            entries.append(replace(entry, packs=packs))
        else:
            entries.append(entry)
    return replace(verdict, entries=tuple(entries))


def with_another_predecessor(verdict: ExecutionVerdict) -> ExecutionVerdict:
    return replace(verdict, previous=bytes(32))


FORGERIES = [without_its_packs, moved, with_another_predecessor]


def forged(kept: RecalledMessage, forge: Callable[[ExecutionVerdict], ExecutionVerdict]) -> RecalledMessage:
    return replace(kept, verdict=verdicts.encode(forge(verdicts.decode(kept.verdict))))


class Liar:
    """Whichever peer the receiver asks first: from then on it forges every verdict that it supplies there."""

    def __init__(self, cluster: Cluster, receiver: int, forge: Callable[[ExecutionVerdict], ExecutionVerdict]) -> None:  # noqa: F811
        self._cluster = cluster
        self._receiver = receiver
        self._forge = forge
        self.node = 0
        self.lies = 0
        cluster.spoil = self._spoil

    def _spoil(self, sender: int, receiver: int, parcel) -> bool:
        if receiver != self._receiver or order_purpose(parcel) != RECALLED:
            return False
        self.node = self.node or sender
        if sender != self.node:
            return False
        self.lies += 1
        message = consensus.decode(parcel.payload)
        assert isinstance(message, Recalled)
        false = Recalled(message.index, tuple(forged(kept, self._forge) for kept in message.messages))
        self._cluster.nodes[receiver].inbox.append(JournalParcel(self._cluster.nodes[sender].peer, said(false)))
        return True


def stored(cluster: Cluster, number: int, index: int) -> bytes:  # noqa: F811
    """The verdict that lies beside this message in a node's log."""
    node = cluster.nodes[number]
    log = node.core.serializer.context.log
    span = log.span(index, 1)
    assert span is not None
    answers: deque[LogRead] = deque()
    inbox, node.inbox = node.inbox, answers
    node._perform(ReadLog(1, *span))
    node.inbox = inbox
    return log.read_backward(answers[0].records, index)[0][1]


def accused(node: Node) -> set[str]:
    return {report.peer for report in node.reports if "does not fit" in report.event}


@pytest.mark.parametrize("forge", FORGERIES)
def test_repair_refuses_forged_verdict_names_peer_and_asks_another(cluster: Cluster, forge) -> None:  # noqa: F811
    index = last(cluster) - 5
    true = stored(cluster, 2, index)
    rot(cluster, 2, index, Kind.BATCH)
    liar, node = Liar(cluster, 2, forge), cluster.nodes[2]
    assert read(cluster, 2)[1] == "damaged"
    cluster.until(lambda: any("repaired" in report.event for report in node.reports))
    assert liar.lies
    assert accused(node) == {str(liar.node)}
    assert stored(cluster, 2, index) == true
    assert read(cluster, 2) == (WRITES, "end")


@pytest.mark.parametrize("forge", FORGERIES)
def test_backfill_refuses_forged_verdicts_and_still_finishes(journal: Journal, forge) -> None:  # noqa: F811
    liar = Liar(journal.cluster, 3, forge)
    journal.replace_disk(3)
    journal.wait()
    node = journal.cluster.nodes[3]
    assert misfits(node) == liar.lies > 0
    assert accused(node) == {str(liar.node)}
    assert journal.has_all(3)
    first = max(journal.cluster.nodes[number].core.serializer.context.log.segment_index.first for number in (2, 3))
    for index in range(first, node.core.serializer.context.log.agreed + 1):
        assert stored(journal.cluster, 3, index) == stored(journal.cluster, 2, index)


def test_each_verdict_contains_hash_of_predecessor_and_state_that_of_last() -> None:
    stage = Stage()
    lane = stage.lane()
    stage.write(pack(lane, 1))
    stage.write(pack(lane, 2), pack(lane, 9))
    before = NO_VERDICT
    for executed in stage.executed:
        encoded = verdicts.encode(executed.verdict)
        assert previous_of(encoded) == before
        before = verdict_hash(encoded)
    assert stage.execution.verdict_hash == stage.execution.state.verdict == before
