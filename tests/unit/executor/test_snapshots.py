"""Copies of databases, step by step: when one is kept, who is asked for one, and when it is the next one's turn."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chaplain.core import Drained, Report, Woken
from chaplain.executor import messages
from chaplain.executor.apply_queue import ApplyPhase, ApplyQueue
from chaplain.executor.events import CopyTaken, DatabaseKept, DatabaseOpened, KeepDatabase, KeptRead, ReadKept, TakeCopy
from chaplain.executor.messages import AskCopy, CopyPiece, PeerMessage
from chaplain.executor.snapshots import PATIENCE_NS, READS_MAX, SnapshotTransfer
from chaplain.gossip.events import GossipParcel
from chaplain.mesh.events import Entered
from chaplain.wire.parcel import Layer, Parcel
from tests.unit.executor.core_stage import Stage, peer, works

ONE, TWO, THREE = (bytes([number]) * 32 for number in (1, 2, 3))
DIGEST, OTHER = b"d" * 32, b"e" * 32
SIZE = 10


class CoreHost:
    """The part alone, with a feed that is open and has applied message 5 of 5, 8 and 9."""

    def __init__(self, peers: Sequence[bytes] = (ONE, TWO)) -> None:
        self.peers = list(peers)
        self.said: list[tuple[bytes, PeerMessage, bytes]] = []
        self.transfer = SnapshotTransfer(lambda *words: self.said.append(words), lambda: self.peers)
        self.queue = ApplyQueue("main", lambda: (1, 2, 3))
        for index in (5, 8, 9):
            self.queue.add_message(index)
        self.queue.phase = ApplyPhase.OPENING
        self.queue.opened(5, bytes(32))

    def effects(self) -> list[object]:
        found = [*self.transfer.effects]
        self.transfer.effects.clear()
        return found

    def asked(self) -> list[tuple[bytes, int]]:
        """Who was asked, from which octet on."""
        found = [(whom, ask.position) for whom, ask, _ in self.said if isinstance(ask, AskCopy)]
        self.said.clear()
        return found

    def asks(self, position: int) -> None:
        """Another executor asks here."""
        self.queue.kept = 5
        self.transfer.on_request(TWO, AskCopy("main", position), self.queue)

    def want(self, now_ns: int = 0) -> None:
        self.transfer.start(now_ns, self.queue)

    def comes(self, position: int, data: bytes, *, whom: bytes = ONE, index: int = 9, digest: bytes = DIGEST) -> None:
        self.transfer.on_piece(1, whom, CopyPiece("main", index, position, SIZE, digest), data)


# Keeping.


def test_copy_is_made_once_its_message_is_applied() -> None:
    host = CoreHost()
    host.transfer.keep_copy(host.queue, 8)
    assert host.effects() == [], "message 8 is not applied"
    host.transfer.keep_copy(host.queue, 7)
    assert host.effects() == [KeepDatabase("main")]
    host.transfer.keep_copy(host.queue, 7)
    assert host.effects() == [], "one is being made"
    host.transfer.on_kept(host.queue, DatabaseKept("main", 5))
    assert host.queue.first_after_kept() == 8
    host.transfer.keep_copy(host.queue, 7)
    assert host.effects() == [], "the one there is has all of it"


def test_database_that_cannot_be_copied_keeps_its_log() -> None:
    host = CoreHost()
    host.transfer.keep_copy(host.queue, 5)
    host.effects()
    host.transfer.on_kept(host.queue, DatabaseKept("main", failed="no room"))
    host.transfer.keep_copy(host.queue, 5)
    assert host.effects() == []
    assert host.queue.first_after_kept() == 5


# Giving.


def test_copy_piece_is_read_and_sent_to_the_asker() -> None:
    host = CoreHost()
    host.asks(4)
    assert host.effects() == [ReadKept(1, "main", 4)]
    host.transfer.on_read(KeptRead(1, 9, SIZE, DIGEST, b"octets"), {})
    assert host.said == [(TWO, CopyPiece("main", 9, 4, SIZE, DIGEST), b"octets")]


def test_node_without_a_copy_does_not_answer() -> None:
    host = CoreHost()
    host.asks(0)
    host.transfer.on_read(KeptRead(1), {})
    assert host.said == []


def test_node_asked_for_a_copy_that_it_lacks_makes_one() -> None:
    host = CoreHost()
    host.transfer.on_request(TWO, AskCopy("main", 0), host.queue)
    assert host.effects() == [KeepDatabase("main")]
    host.transfer.on_request(TWO, AskCopy("main", 0), host.queue)
    assert host.effects() == [], "one is being made"
    host.transfer.on_kept(host.queue, DatabaseKept("main", 5))
    host.transfer.on_request(TWO, AskCopy("main", 0), host.queue)
    assert host.effects() == [ReadKept(1, "main", 0)]


def test_damaged_copy_is_dropped_and_reported() -> None:
    host = CoreHost()
    host.asks(0)
    host.transfer.on_read(KeptRead(1, damage="rows"), {"main": host.queue})
    assert host.said == []
    assert host.queue.first_after_kept() == 5, "the log has to have it"
    assert [effect.event for effect in host.effects() if isinstance(effect, Report)] == ["copy damaged"]


def test_reads_of_copies_for_others_are_bounded() -> None:
    host = CoreHost()
    for _ in range(READS_MAX + 5):
        host.asks(0)
    assert len(host.effects()) == READS_MAX
    host.transfer.on_read(KeptRead(1), {})
    host.asks(0)
    assert len(host.effects()) == 1


# Taking.


def test_copy_is_received_piece_by_piece() -> None:
    host = CoreHost()
    host.want()
    assert host.queue.phase is ApplyPhase.LACKING
    assert host.asked() == [(ONE, 0)]
    host.comes(0, b"sixsix")
    assert host.effects() == [TakeCopy("main", 0, b"sixsix", SIZE, DIGEST)]
    assert host.asked() == [], "one piece at a time"
    host.transfer.on_written(2, CopyTaken("main", 6))
    assert host.asked() == [(ONE, 6)]
    host.comes(6, b"four")
    assert host.effects() == [TakeCopy("main", 6, b"four", SIZE, DIGEST)]
    host.queue.opened(9, bytes(32), 9)
    host.transfer.opened(host.queue)
    assert (host.transfer.due_ns, host.queue.next_needed()) == (None, None)


def test_unrequested_piece_is_ignored() -> None:
    host = CoreHost()
    host.comes(0, b"before anything was wanted")
    host.want()
    host.comes(0, b"of another", whom=TWO)
    host.comes(3, b"from the middle")
    assert host.effects() == []
    host.comes(0, b"sixsix")
    host.comes(0, b"twice")
    assert len(host.effects()) == 1


@pytest.mark.parametrize("index", [4, 5])
def test_copy_that_is_not_newer_is_refused(index: int) -> None:
    host = CoreHost()
    host.want()
    host.comes(0, b"sixsix", index=index)
    assert host.effects() == []
    assert host.asked() == [(ONE, 0), (TWO, 0)]


def test_piece_of_another_copy_restarts_at_another_node() -> None:
    host = CoreHost()
    host.want()
    host.comes(0, b"sixsix")
    host.transfer.on_written(2, CopyTaken("main", 6))
    host.comes(6, b"four", digest=OTHER)
    assert host.asked() == [(ONE, 0), (ONE, 6), (TWO, 0)]
    host.effects()
    host.comes(0, b"sixsix", whom=TWO, digest=OTHER)
    assert host.effects() == [TakeCopy("main", 0, b"sixsix", SIZE, OTHER)]


def test_empty_piece_moves_to_another_node() -> None:
    host = CoreHost()
    host.want()
    host.comes(0, b"")
    assert host.effects() == []
    assert host.asked() == [(ONE, 0), (TWO, 0)]


def test_copy_with_a_wrong_digest_is_requested_from_the_next_node() -> None:
    host = CoreHost()
    host.want()
    host.comes(0, b"sixsix")
    host.transfer.on_written(2, CopyTaken("main", 0, failed="its digest is another"))
    assert host.asked() == [(ONE, 0), (TWO, 0)]
    host.comes(0, b"sixsix", whom=TWO)
    host.transfer.on_written(3, CopyTaken("main", 0, failed="again"))
    assert host.asked() == [(ONE, 0)], "they take turns"


def test_silent_supplier_is_replaced_by_the_next() -> None:
    host = CoreHost()
    host.want()
    host.transfer.woken(PATIENCE_NS - 1)
    assert host.asked() == [(ONE, 0)]
    host.transfer.woken(PATIENCE_NS)
    assert host.asked() == [(TWO, 0)]
    assert host.transfer.due_ns == 2 * PATIENCE_NS


def test_transfer_waits_for_a_piece_that_is_being_written() -> None:
    host = CoreHost()
    host.want()
    host.comes(0, b"sixsix")
    host.asked()
    host.transfer.woken(PATIENCE_NS + 1)
    assert host.asked() == []
    assert host.transfer.due_ns == 2 * PATIENCE_NS + 1


def test_transfer_without_suppliers_is_tried_again() -> None:
    host = CoreHost(peers=())
    host.want()
    assert host.asked() == []
    host.peers = [THREE]
    host.transfer.woken(PATIENCE_NS)
    assert host.asked() == [(THREE, 0)]


def test_stopped_executor_requests_no_copy() -> None:
    host = CoreHost()
    host.want()
    host.comes(0, b"sixsix")
    host.effects()
    host.queue.stop("it differs")
    assert host.transfer.due_ns is None, "its host would be woken for ever"
    host.asked()
    host.transfer.on_written(2, CopyTaken("main", 6))
    host.comes(6, b"four")
    host.transfer.woken(10 * PATIENCE_NS)
    assert (host.effects(), host.asked()) == ([], [])


# In the executor.


def lacking(nodes: int = 3) -> Stage:
    """Three messages were agreed, the first two are in the log no more, and the database has none."""
    stage = Stage(nodes)
    for _ in range(3):
        stage.agree()
    stage.journal.first = 3
    for number in range(2, nodes + 1):
        stage.step(Entered(peer(number), {}))
    return stage


def tell(stage: Stage, node: int, piece: CopyPiece, data: bytes) -> list[object]:
    return stage.step(GossipParcel(peer(node), Parcel(node, Layer.EXECUTOR, messages.encode(piece), data)))


def test_database_without_a_log_is_copied_and_continues_there() -> None:
    stage = lacking()
    assert stage.said(stage.open()) == [(2, AskCopy("main", 0))]
    piece = CopyPiece("main", 2, 0, 4, DIGEST)
    assert tell(stage, 2, piece, b"four") == [TakeCopy("main", 0, b"four", 4, DIGEST)]
    opened = stage.step(DatabaseOpened("main", 2, b"f" * 32, kept=2))
    assert stage.core.deadline() is None
    assert stage.core.first_needed() == 3
    effects = [*opened, *stage.step(Drained())]
    assert not stage.said(effects)
    assert not works(effects), "message 3 is read from the log first"
    assert any(type(effect).__name__ == "ReadBack" for effect in effects)


def test_copy_that_arrives_after_the_stop_changes_nothing() -> None:
    stage = lacking()
    stage.open()
    tell(stage, 2, CopyPiece("main", 2, 0, 4, DIGEST), b"four")
    queue = stage.core._queues["main"]
    queue.stop("it differs")
    assert stage.step(DatabaseOpened("main", 2, b"f" * 32)) == []
    assert queue.phase is ApplyPhase.STOPPED


def test_copy_that_cannot_be_opened_stops_the_executor() -> None:
    stage = lacking()
    stage.open()
    stage.step(DatabaseOpened("main", failed="not a database"))
    stage.now_ns = 10 * PATIENCE_NS
    assert stage.core.deadline() is None
    assert stage.step(Woken()) == []


def test_copies_are_made_before_the_log_is_dropped() -> None:
    stage = Stage()
    stage.agree()
    stage.open(index=1)
    assert stage.core.first_needed() == 1
    stage.journal.keep_through = 1
    assert stage.step(Drained()) == [KeepDatabase("main")]
    stage.step(DatabaseKept("main", 1))
    assert stage.core.first_needed() > 1
    assert stage.step(Drained()) == []
