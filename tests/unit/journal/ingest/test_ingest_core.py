"""Ingest, step by step: journal ids, batches, checks, acknowledgements, and messages of others."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaplain.core import Drained, Persist, Persisted, Replace, Report, Woken
from chaplain.errors import Malformed
from chaplain.journal.consensus.events import ConsensusStarted, NeedPayload, PayloadArrived, PeerDown, PeerUp
from chaplain.journal.events import (
    FromPeer,
    Ordered,
    PackWritten,
    SessionClosed,
    SessionOpened,
    ToClient,
    ToPeer,
    Verified,
    Verify,
)
from chaplain.journal.ingest import core
from chaplain.journal.ingest.core import IngestCore
from chaplain.journal.ingest.flow_control import CreditBook
from chaplain.journal.ingest.payload_cache import PayloadCache, ReceivedVector
from chaplain.journal.ingest.signature_queue import SignatureQueue
from chaplain.journal.messages import ingest as ingest_message
from chaplain.journal.messages import peer
from chaplain.journal.messages.client import GoBack, NotWritten, Receipts
from chaplain.journal.messages.cluster import Reference, genesis
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.peer import Ack, AskPayload, ForwardConfigRequest, NodeReached, Payload
from chaplain.journal.messages.signing import PackCheck, holds
from chaplain.journal.settings import ConsensusSettings, JournalSettings
from chaplain.segment.headers import encode_headers
from tests.support.execution_stage import ADMIN_ACL, BOB, CLUSTER, Stage, lease, pack

ME = b"me".ljust(16)
NOW = 10**12


def order_settings() -> ConsensusSettings:
    disk = b"d" * 16
    return ConsensusSettings(1, genesis(CLUSTER), disk, disk, b"b" * 16)


class Bench:
    """An ingest core with a lane, a client and two peers."""

    def __init__(self, stored: bytes | None = b"\x00\x06", *, ready: bool = True, **changed: int) -> None:
        self.stage = Stage()
        self.lane = self.stage.lane()
        self.settings = JournalSettings(order_settings(), **{"checks_inline_max": 0, **changed})
        self.core = IngestCore(self.settings, random.Random(1), self.stage.execution, stored)
        (self.persist,) = self.step(ConsensusStarted())
        if ready:
            self.step(Persisted(self.persist.ticket))
        for event in (PeerUp(2), PeerUp(3), SessionOpened(ME)):
            self.step(event)

    def step(self, event, now_ns: int = NOW) -> list:
        return self.core.step(now_ns, event)

    def write(self, *entries: IngestEntry) -> list:
        return [
            effect for one in entries for effect in self.step(PackWritten(ME, ADMIN_ACL, one.stream, bytes(one.raw)))
        ]

    def drain(self) -> list:
        """Drained, with checks answered at once, until nothing more comes of it."""
        effects = self.step(Drained())
        for question in [one for one in effects if isinstance(one, Verify)]:
            effects += self.step(Verified(question.ticket, tuple(map(holds, question.items))))
            effects += self.step(Drained())
        return effects

    def ship(self, *entries: IngestEntry) -> list[PayloadArrived]:
        assert not self.write(*entries)
        return arrivals(self.drain())

    def order(self, *shipped: PayloadArrived) -> list:
        """These messages are agreed and executed."""
        from chaplain.journal.messages.cluster import DataEntry

        self.stage.prefix.order([(DataEntry(one.reference, one.digest), one.payload) for one in shipped])
        return self.step(Ordered(tuple(one.reference for one in shipped), self.stage.executed[-1]))


def arrivals(effects) -> list[PayloadArrived]:
    return [effect for effect in effects if isinstance(effect, PayloadArrived)]


def sent(effects, kind) -> list[tuple[int, object]]:
    return [(one.node, one.message) for one in effects if isinstance(one, ToPeer) and isinstance(one.message, kind)]


# Journal ids.


def test_start_uses_the_next_journal_id_and_stores_it_first():
    bench = Bench(b"\x00\x06", ready=False)
    assert bench.persist == Persist(1, (Replace("journal.ingest", b"\x00\x07"),))
    assert not bench.ship(pack(bench.lane, 1)), "a reference was used before its journal id was on disk"
    bench.step(Persisted(1))
    (arrived,) = arrivals(bench.step(Drained()))
    assert arrived.reference == Reference(1, 7, 1)


def test_journal_ids_wrap_and_a_disk_without_one_draws_it():
    assert Bench(b"\xff\xff").core.journal == 1
    drawn = {Bench(stored).core.journal for stored in (None, b"", b"x")}
    assert len(drawn) == 1
    assert 1 <= drawn.pop() <= 0xFFFF


def test_full_ingest_journal_is_followed_by_another(monkeypatch):
    monkeypatch.setattr(core, "INDEX_MAX", 2)
    bench = Bench()
    one, two = bench.ship(pack(bench.lane, 1)), bench.ship(pack(bench.lane, 2))
    assert [one[0].reference, two[0].reference] == [Reference(1, 7, 1), Reference(1, 7, 2)]
    bench.write(pack(bench.lane, 3))
    assert not arrivals(bench.drain()), "the new id is not on disk"
    bench.step(Persisted(2))
    assert arrivals(bench.drain())[0].reference == Reference(1, 8, 1)


# Batches.


def test_packs_of_one_tick_are_sent_unchanged_in_one_message_to_all():
    bench = Bench()
    entries = [pack(bench.lane, number, stream=stream) for number, stream in ((1, "x"), (2, "y"), (3, "x"))]
    bench.write(*entries)
    effects = bench.drain()
    (arrived,) = arrivals(effects)
    decoded = ingest_message.decode(arrived.payload)
    assert [(one.stream, bytes(one.raw)) for one in decoded.entries] == [(one.stream, one.raw) for one in entries]
    assert arrived.digest == ingest_message.digest_of(arrived.payload)
    assert sent(effects, Payload) == [(2, Payload(arrived.payload)), (3, Payload(arrived.payload))]


def test_ingest_batches_are_bounded_and_a_large_pack_is_sent_alone():
    small, large = (len(pack(1, 1, (b"x" * size,)).raw) for size in (10, 5000))
    bench = Bench(batch_bytes_max=2 * small)
    sizes = (10, 10, 10, 5000, 10)
    shipped = bench.ship(*(pack(bench.lane, number, (b"x" * size,)) for number, size in enumerate(sizes, 1)))
    counts = [len(ingest_message.decode(one.payload).entries) for one in shipped]
    assert counts == [2, 1, 1, 1]
    assert [one.reference.index for one in shipped] == [1, 2, 3, 4]
    assert large > 2 * small


def test_pack_with_an_invalid_signature_is_refused_and_left_out():
    bench = Bench()
    bench.write(pack(bench.lane, 1), pack(bench.lane, 2, signer=BOB))
    effects = bench.drain()
    (arrived,) = arrivals(effects)
    assert len(ingest_message.decode(arrived.payload).entries) == 1
    (told,) = [one.message for one in effects if isinstance(one, ToClient) and isinstance(one.message, NotWritten)]
    assert (told.kind, told.first_id) == ("signature", 2)


@pytest.mark.parametrize("messages", [1, 100])
def test_pack_with_malformed_headers_is_refused_and_its_id_stays_free(messages):
    bench = Bench()
    fine = encode_headers({"a": b"1"})
    values = (b"v",) * messages
    [answer] = bench.write(pack(bench.lane, 1, values, headers=(fine,) * (messages - 1) + (b"\xff",)))
    assert isinstance(answer.message, NotWritten)
    assert (answer.message.kind, answer.message.expected_id) == ("malformed", 1)
    assert "shorter than their count" in answer.message.reason
    [arrived] = bench.ship(pack(bench.lane, 1, values, headers=(None,) + (fine,) * (messages - 1)))
    assert len(ingest_message.decode(arrived.payload).entries) == 1


def test_malformed_pack_with_headers_is_refused_as_malformed():
    bench = Bench()
    entry = pack(bench.lane, 1, (b"v",), headers=(encode_headers({"a": b"1"}),))
    raw = bytearray(entry.raw)
    raw[132:136] = (1 << 31).to_bytes(4, "little")  # the size of the headers, behind that of the value
    [answer] = bench.write(IngestEntry(entry.stream, bytes(raw)))
    assert (answer.message.kind, answer.message.reason) == ("malformed", "request: sizes do not add up")


def test_signature_checked_at_ingest_is_not_checked_at_execution(monkeypatch):
    bench = Bench()
    shipped = bench.ship(pack(bench.lane, 1))
    monkeypatch.setattr("chaplain.journal.execution.state_machine.holds", lambda check: pytest.fail("checked twice"))
    bench.order(*shipped)
    assert bench.stage.execution.state.lanes[bench.lane].last_id == 1
    assert bench.core.waiting_bytes == 0


def test_two_requests_for_one_id_are_both_ordered():
    bench = Bench()
    shipped = bench.ship(pack(bench.lane, 1, (b"a",)), pack(bench.lane, 1, (b"b",)))
    bench.order(*shipped)
    assert bench.stage.execution.state.proofs
    assert bench.core.waiting_bytes == 0


def test_pipelined_packs_stay_adjacent_and_gaps_are_sent_back():
    bench = Bench()
    (gap,) = bench.write(pack(bench.lane, 1, (b"a", b"b")), pack(bench.lane, 4))
    assert gap.message == GoBack(bench.lane, 3)
    assert not bench.write(pack(bench.lane, 3))


def test_pack_sent_again_after_its_verdict_gets_its_receipt():
    bench = Bench()
    entry = pack(bench.lane, 1)
    bench.order(*bench.ship(entry))
    (answer,) = bench.write(entry)
    assert isinstance(answer.message, Receipts)


def test_pack_void_because_of_a_gap_may_be_sent_again():
    bench = Bench()
    first, second = pack(bench.lane, 1), pack(bench.lane, 2)
    (one,), (two,) = bench.ship(first), bench.ship(second)
    bench.order(two)
    assert bench.stage.execution.state.lanes[bench.lane].last_id == 0
    bench.order(one)
    (again,) = bench.ship(second)
    bench.order(again)
    assert bench.stage.execution.state.lanes[bench.lane].last_id == 2


# Messages of others.


def foreign(bench: Bench, *entries: IngestEntry, index: int = 1, node: int = 2) -> bytes:
    return ingest_message.encode(Reference(node, 5, index), entries)


def test_message_of_another_node_is_checked_offered_and_acknowledged():
    bench = Bench()
    payload = foreign(bench, pack(bench.lane, 1), pack(bench.lane, 2, signer=BOB), pack(99, 1))
    assert not bench.step(FromPeer(2, Payload(payload)))
    effects = bench.step(Drained())
    (question,) = [one for one in effects if isinstance(one, Verify)]
    assert len(question.items) == 2
    (arrived,) = arrivals(bench.step(Verified(question.ticket, tuple(map(holds, question.items)))))
    assert (arrived.reference, arrived.payload) == (Reference(2, 5, 1), payload)
    assert not sent(bench.step(Drained()), Ack), "an acknowledgement that could wait has cost a frame"
    due = bench.core.due_ns
    assert due is not None
    acks = sent(bench.step(Woken(), due), Ack)
    assert acks == [(node, Ack((Reference(2, 5, 1),))) for node in (2, 3)], "its ingest node, and the other serializer"
    assert bench.core.due_ns is None


def test_message_under_check_is_neither_requested_nor_checked_again():
    bench = Bench()
    payload = foreign(bench, pack(bench.lane, 1))
    digest = ingest_message.digest_of(payload)
    bench.step(FromPeer(2, Payload(payload)))
    assert not sent(bench.step(NeedPayload(Reference(2, 5, 1), digest, 3)), AskPayload)
    assert len(sent(bench.step(NeedPayload(Reference(2, 5, 1), bytes(32), 3)), AskPayload)) == 2
    bench.step(FromPeer(2, Payload(payload)))
    (question,) = [one for one in bench.step(Drained()) if isinstance(one, Verify)]
    assert len(question.items) == 1
    assert len(arrivals(bench.step(Verified(question.ticket, (True,))))) == 1


def test_malformed_message_of_another_node_is_still_offered():
    bench = Bench()
    payload = foreign(bench, IngestEntry("x", b"no pack"))
    assert len(arrivals(bench.step(FromPeer(2, Payload(payload))))) == 1
    (report,) = bench.step(FromPeer(2, Payload(b"\x01\x02")))
    assert isinstance(report, Report)


def test_message_sent_for_another_node_is_refused_unless_a_proposal_names_it():
    bench = Bench()
    payload = foreign(bench, pack(bench.lane, 1))
    (report,) = bench.step(FromPeer(3, Payload(payload)))
    assert report.event == "ingest message of another node refused"
    asked = bench.step(NeedPayload(Reference(2, 5, 1), ingest_message.digest_of(payload), 3))
    assert [node for node, _ in sent(asked, AskPayload)] == [2, 3]
    assert not bench.step(FromPeer(3, Payload(payload)))
    assert len(arrivals(bench.drain())) == 1
    other = foreign(bench, pack(bench.lane, 2))
    assert isinstance(bench.step(FromPeer(3, Payload(other)))[0], Report)


def test_gap_is_requested_only_from_its_ingest_node():
    bench = Bench()
    asked = bench.step(NeedPayload(Reference(2, 5, 1), b"", 3))
    assert asked == [ToPeer(2, AskPayload(Reference(2, 5, 1), b""))]


def test_requested_payload_is_supplied_if_its_digest_matches():
    bench = Bench()
    (arrived,) = bench.ship(pack(bench.lane, 1))
    for wanted in (arrived.digest, b""):
        assert bench.step(FromPeer(3, AskPayload(arrived.reference, wanted))) == [ToPeer(3, Payload(arrived.payload))]
    assert not bench.step(FromPeer(3, AskPayload(arrived.reference, b"x" * 32)))
    assert not bench.step(FromPeer(3, AskPayload(Reference(1, 7, 9), b"")))
    bench.order(arrived)
    assert bench.step(FromPeer(3, AskPayload(arrived.reference, arrived.digest)))


def test_own_message_from_before_a_restart_is_accepted_if_proposed():
    bench = Bench()
    payload = foreign(bench, pack(bench.lane, 1), node=1)
    assert isinstance(bench.step(FromPeer(2, Payload(payload)))[0], Report)
    bench.step(NeedPayload(Reference(1, 5, 1), ingest_message.digest_of(payload), 2))
    bench.step(FromPeer(2, Payload(payload)))
    assert len(arrivals(bench.drain())) == 1


def test_unacknowledged_message_is_sent_again_until_ordered():
    bench = Bench()
    (arrived,) = bench.ship(pack(bench.lane, 1))
    bench.step(FromPeer(2, Ack((Reference(1, 7, 1), Reference(3, 9, 4)))))
    due = bench.core.due_ns
    assert due == NOW + bench.settings.resend_ns
    assert sent(bench.step(Woken(), due), Payload) == [(3, Payload(arrived.payload))]
    bench.step(PeerDown(3))
    assert not sent(bench.step(Woken(), due + 10**9), Payload)
    bench.order(arrived)
    assert not bench.step(Woken(), due + 10**10)
    assert bench.core.due_ns is None


def test_acknowledged_message_that_stays_unordered_is_sent_again_to_all():
    bench = Bench()
    (arrived,) = bench.ship(pack(bench.lane, 1))
    for node in (2, 3):
        bench.step(FromPeer(node, Ack((Reference(1, 7, 1),))))
    effects = []
    for _ in range(10):
        effects += bench.step(Woken(), bench.core.due_ns)
    assert sent(effects, Payload) == [(2, Payload(arrived.payload)), (3, Payload(arrived.payload))]
    assert arrivals(effects) == [arrived]


def test_acknowledgements_of_another_own_journal_do_not_count():
    bench = Bench()
    bench.ship(pack(bench.lane, 1))
    bench.step(FromPeer(2, Ack((Reference(1, 6, 9),))))
    assert len(sent(bench.step(Woken(), bench.core.due_ns), Payload)) == 2


def test_view_of_a_serializer_saves_a_resend_to_a_node_that_it_knows_of():
    bench = Bench()
    (arrived,) = bench.ship(pack(bench.lane, 1))
    bench.step(FromPeer(2, Ack((Reference(1, 7, 1),), (NodeReached(3, (Reference(1, 7, 1),)),))))
    due = bench.core.due_ns
    assert not sent(bench.step(Woken(), due), Payload)
    bench.step(PeerDown(3))
    bench.step(PeerUp(3))  # it may have lost its memory
    assert sent(bench.step(Woken(), bench.core.due_ns), Payload) == [(3, Payload(arrived.payload))]


def test_serializer_acknowledges_to_all_serializers_with_its_view_of_the_others():
    bench = Bench()
    assert {1, 2, 3} == set(bench.stage.execution.cluster_config.serializers)
    bench.step(FromPeer(3, Ack((Reference(2, 5, 4),))))
    receive(bench)
    acks = sent(bench.step(Woken(), bench.core.due_ns), Ack)
    ack = Ack((Reference(2, 5, 1),), (NodeReached(3, (Reference(2, 5, 4),)),))
    assert acks == [(2, ack), (3, ack)]
    assert bench.core.received_by_node == {1: (Reference(2, 5, 1),), 3: (Reference(2, 5, 4),)}


def receive(bench: Bench) -> None:
    """Node 2 sends the first message of its journal."""
    bench.step(FromPeer(2, Payload(foreign(bench, pack(bench.lane, 1)))))
    bench.drain()


def test_message_that_arrives_again_is_acknowledged_at_once():
    bench = Bench()
    receive(bench)
    assert bench.core.due_ns == NOW + bench.settings.ack_ns
    bench.step(Woken(), NOW + bench.settings.ack_ns)
    assert bench.core.due_ns is None
    receive(bench)
    assert bench.core.due_ns == NOW, "its ingest node waits for the acknowledgement"
    assert [node for node, _ in sent(bench.step(Woken()), Ack)] == [2, 3]


def test_octets_of_a_client_that_left_count_until_their_verdict():
    bench = Bench()
    shipped = bench.ship(pack(bench.lane, 1))
    bench.step(SessionClosed(ME))
    assert bench.core.waiting_bytes > 0
    bench.order(*shipped)
    assert bench.core.waiting_bytes == 0


# The pieces.


def test_received_vector_has_no_gaps():
    reach = ReceivedVector()
    for index in (3, 1):
        reach.received(Reference(2, 5, index))
    assert reach.vector() == (Reference(2, 5, 1),)
    reach.received(Reference(2, 5, 2))
    assert reach.vector() == (Reference(2, 5, 3),)
    reach.mark_ordered([Reference(2, 5, 7), Reference(2, 4, 99), Reference(3, 1, 1)])
    assert reach.vector() == (Reference(2, 5, 7),)
    reach.received(Reference(2, 6, 2))
    assert reach.vector() == (Reference(2, 6, 0),)


def test_payload_cache_stays_within_its_bounds():
    cache = PayloadCache(1, 100, 50)
    for index in range(1, 5):
        cache.put(Reference(2, 1, index), b"d", b"x" * 40)
    cache.put(Reference(1, 1, 1), b"d", b"x" * 400)
    assert cache.get(Reference(2, 1, 1), b"") is None
    assert cache.get(Reference(1, 1, 1), b"d") is not None
    assert cache.get(Reference(1, 1, 1), b"e") is None
    cache.mark_ordered([Reference(1, 1, 1)])
    assert cache.get(Reference(1, 1, 1), b"d") is None


def test_credit_is_withheld_from_all_while_too_much_waits():
    book = CreditBook(100, 100)
    assert (book.open(b"a"), book.open(b"b")) == (100, 100)
    assert book.spend(b"a", 60)
    assert not book.spend(b"b", 60), "more than may wait in all"
    book.release(b"b", 60)
    assert book.take_announcements() == []
    book.release(b"a", 60)
    assert book.take_announcements() == [(b"b", 160), (b"a", 160)]


def test_credit_is_announced_once_an_eighth_of_the_window_was_answered() -> None:
    book = CreditBook(800, 8000)
    book.open(b"a")
    book.spend(b"a", 800)
    book.release(b"a", 99)
    assert book.take_announcements() == []
    book.release(b"a", 1)
    assert book.take_announcements() == [(b"a", 900)]


def test_first_signatures_of_a_round_are_checked_at_once_unless_others_wait():
    checking: SignatureQueue[int] = SignatureQueue(2)
    check = PackCheck(1, b"", "", "", b"")
    assert [len(checking.add(1, number, [check])) for number in range(4)] == [1, 1, 0, 0]
    verify = checking.request_checks()
    assert len(verify.items) == 2
    assert not checking.add(2, 4, [check]), "it must not overtake the items that wait"
    last = checking.request_checks()
    assert [item for item, _ in checking.on_verified(Verified(verify.ticket, (True, True)))] == [2, 3]
    assert [item for item, _ in checking.on_verified(Verified(last.ticket, (True,)))] == [4]
    assert checking.add(2, 5, [check]) == ((5, (False,)),)


@given(st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=8), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=100)
def test_checked_packs_are_released_in_arrival_order(rounds, rng):
    checking: SignatureQueue[int] = SignatureQueue()
    questions, number, out = [], 0, []
    for things in rounds:
        for checks in things:
            out += checking.add(1, number, [PackCheck(1, b"", "", "", b"%d" % number), None][:checks])
            number += 1
        questions += [checking.request_checks()] if checking.pending else []
    rng.shuffle(questions)
    for question in questions:
        items = question.items if isinstance(question, Verify) else ()
        results = tuple(check.raw[-1] % 2 == 0 for check in items)
        out += checking.on_verified(Verified(question.ticket, results))
    wanted = [checks for things in rounds for checks in things]
    for thing, (checks, came) in enumerate(zip(wanted, out, strict=True)):
        assert came == (thing, ((b"%d" % thing)[-1] % 2 == 0, None)[:checks])


@pytest.mark.parametrize(
    "message",
    [
        peer.ConsensusFrame(b"x"),
        Payload(b""),
        AskPayload(Reference(1, 2, 3), b"d" * 32),
        AskPayload(Reference(1, 2, 3), b""),
        Ack(()),
        Ack((Reference(1, 2, 0), Reference(2, 0xFFFF, 0xFFFFFFFF))),
        Ack((Reference(1, 2, 3),), (NodeReached(2, (Reference(1, 2, 2),)), NodeReached(3, ()))),
        ForwardConfigRequest(8, 0, lease().data),
    ],
)
def test_peer_messages_round_trip_or_are_malformed(message):
    body, payload = peer.encode(message)
    assert peer.decode(body, payload) == message
    for broken in (body[:-1], body + b"\0", b"\2" + body[1:], b"\1\x09" + body[2:]):
        with pytest.raises(Malformed):
            peer.decode(broken, payload)


@given(st.binary(max_size=80))
def test_any_octets_decode_as_ingest_message_or_are_malformed(data):
    try:
        message = ingest_message.decode(data)
    except Malformed:
        return
    assert ingest_message.encode(message.reference, message.entries) == data
    assert message.front == data[: len(message.front)]
    assert [size for _, size in ingest_message.heads_of(message.front)] == [len(one.raw) for one in message.entries]
