"""A node that is reserved for clients: whose packs it takes, and what it tries out before it is ordered."""

from __future__ import annotations

import random

import pytest

from chaplain.core import Drained, Persisted
from chaplain.journal.consensus.events import ConsensusStarted, PayloadArrived
from chaplain.journal.events import (
    DryRun,
    DryRunDone,
    IngestRoleDropped,
    Ordered,
    PackWritten,
    SessionOpened,
    ToClient,
    Verified,
    Verify,
)
from chaplain.journal.ingest.core import IngestCore
from chaplain.journal.messages.client import GoBack, NotWritten, Receipts
from chaplain.journal.messages.cluster import DataEntry, genesis
from chaplain.journal.messages.config import AddIdentity
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.signing import holds
from chaplain.journal.model.records import IdentityStatus
from chaplain.journal.settings import ConsensusSettings, JournalSettings
from chaplain.link.auth.identity import Identity
from tests.support.execution_stage import ADMIN_ACL, BOB, CLUSTER, Stage, pack, petition

ME = b"me".ljust(16)
SQL = 1
FAILS = ("constraint", "UNIQUE constraint failed: t.a")


class Bench:
    """The ingest of node 1, reserved, with the lanes of two clients: `default` and `bob`."""

    def __init__(self, *reserved: str, prevalidate: bool = True) -> None:
        self.stage = Stage()
        (added,) = self.stage.config(petition(AddIdentity("bob", 1, BOB.key, ("*",), ("*",))))
        self.bobs_acl = added.acl
        self.lane = self.stage.lane()
        self.bobs = self.stage.lane(1, BOB, self.bobs_acl)
        order = ConsensusSettings(1, genesis(CLUSTER), b"d" * 16, b"d" * 16, b"b" * 16)
        settings = JournalSettings(order, reserved=reserved, prevalidate=prevalidate, checks_inline_max=0)
        self.core = IngestCore(settings, random.Random(1), self.stage.execution, None)
        (persist,) = self.step(ConsensusStarted())
        self.step(Persisted(persist.ticket))
        self.step(SessionOpened(ME))

    def step(self, event) -> list:
        return self.core.step(10**12, event)

    def write(self, entry: IngestEntry, acl: bytes = ADMIN_ACL, *, check: bool = True) -> list:
        return self.step(PackWritten(ME, acl, entry.stream, bytes(entry.raw), check))

    def drain(self) -> list:
        effects = self.step(Drained())
        for question in [one for one in effects if isinstance(one, Verify)]:
            effects += self.step(Verified(question.ticket, tuple(map(holds, question.items))))
            effects += self.step(Drained())
        return effects

    def asked(self, *entries: IngestEntry) -> list[DryRun]:
        """What is tried out of these."""
        for entry in entries:
            assert not self.write(entry)
        return [one for one in self.drain() if isinstance(one, DryRun)]

    def answer(self, ticket: int, *fails: str) -> list:
        return [*self.step(DryRunDone(ticket, *fails)), *self.drain()]

    def order(self, shipped: PayloadArrived) -> None:
        self.stage.prefix.order([(DataEntry(shipped.reference, shipped.digest), shipped.payload)])
        self.step(Ordered((shipped.reference,), self.stage.executed[-1]))


def sql(bench: Bench, first_id: int, text: bytes = b"insert", counts: tuple[int, ...] | None = None) -> IngestEntry:
    values = (text,) * (sum(counts) if counts else 1)
    return pack(bench.lane, first_id, values, message_type=SQL, counts=counts)


def shipped(effects: list) -> list[PayloadArrived]:
    return [effect for effect in effects if isinstance(effect, PayloadArrived)]


def told(effects: list, kind: type) -> list:
    return [one.message for one in effects if isinstance(one, ToClient) and isinstance(one.message, kind)]


# Whose packs are taken.


def test_clients_of_others_are_refused_with_the_reason() -> None:
    bench = Bench("alice", "default")
    bobs = pack(bench.bobs, 1, signer=BOB)
    (refused,) = told(bench.write(bobs, bench.bobs_acl), NotWritten)
    assert (refused.kind, refused.client_id, refused.first_id) == ("not_ingest", bench.bobs, 1)
    assert refused.reason == "node 1 is reserved for alice, default: write through another node"
    assert bench.core.idle
    assert not bench.write(pack(bench.lane, 1))
    assert shipped(bench.drain())


@pytest.mark.parametrize("reserved", [(), ("bob",), ("default", "bob")])
def test_named_clients_may_write_and_all_if_none_is_named(reserved) -> None:
    bench = Bench(*reserved)
    assert not bench.write(pack(bench.bobs, 1, signer=BOB), bench.bobs_acl)
    assert shipped(bench.drain())


def test_reserved_name_of_no_client_matches_no_client() -> None:
    bench = Bench("carol")
    assert told(bench.write(pack(bench.lane, 1)), NotWritten)
    carol = Identity(b"c" * 32)
    (added,) = bench.stage.config(petition(AddIdentity("carol", 1, carol.key, ("*",), ("*",)), nonce=b"c" * 16))
    lane = bench.stage.lane(2, carol, added.acl)
    assert not bench.write(pack(lane, 1, signer=carol), added.acl), "until somebody has it"


def test_reserved_node_repeats_receipts_of_other_clients() -> None:
    bench = Bench("default")
    bobs = pack(bench.bobs, 1, signer=BOB)
    bench.stage.write(bobs, node=2)
    assert told(bench.write(bobs, bench.bobs_acl), Receipts)


# What is tried out.


def test_pack_that_passes_its_dry_run_is_sent() -> None:
    bench = Bench("default")
    (rehearse,) = bench.asked(sql(bench, 1))
    assert (rehearse.stream, rehearse.raw) == ("orders", bytes(sql(bench, 1).raw))
    assert not shipped(bench.drain()), "not before the answer"
    assert len(shipped(bench.answer(rehearse.ticket))) == 1


def test_pack_that_fails_its_dry_run_is_refused_and_its_id_stays_free() -> None:
    bench = Bench("default")
    (rehearse,) = bench.asked(sql(bench, 1))
    effects = bench.answer(rehearse.ticket, *FAILS)
    (refused,) = told(effects, NotWritten)
    assert (refused.kind, refused.reason, refused.expected_id) == ("invalid:constraint", FAILS[1], 1)
    assert not shipped(effects)
    assert bench.core.idle
    assert bench.core.waiting_bytes == 0
    (again,) = bench.asked(sql(bench, 1, b"another"))
    (ordered,) = shipped(bench.answer(again.ticket))
    bench.order(ordered)
    assert bench.stage.execution.state.lanes[bench.lane].last_id == 1


def test_only_the_first_pack_of_a_lane_gets_a_dry_run_and_none_overtakes_it() -> None:
    bench = Bench("default")
    (rehearse,) = bench.asked(sql(bench, 1), sql(bench, 2))
    assert not bench.asked(sql(bench, 3)), "something of the lane is on its way"
    assert not shipped(bench.drain()), "the order of the lane"
    (arrived,) = shipped(bench.answer(rehearse.ticket))
    assert len(arrived.payload) > 3 * len(sql(bench, 1).raw)
    assert not bench.write(sql(bench, 4))
    (later,) = shipped(bench.drain())
    bench.order(arrived)
    assert not bench.write(sql(bench, 5))
    (last,) = shipped(bench.drain())
    bench.order(later)
    bench.order(last)
    assert bench.asked(sql(bench, 6)), "nothing of the lane is on its way any more"


def test_second_request_for_an_id_is_ordered_without_a_dry_run() -> None:
    bench = Bench("default")
    (rehearse,) = bench.asked(sql(bench, 1))
    (first,) = shipped(bench.answer(rehearse.ticket))
    assert not bench.write(sql(bench, 1, b"the same id"))
    (second,) = shipped(bench.drain())
    bench.order(first)
    bench.order(second)
    assert bench.stage.execution.state.clients[ADMIN_ACL].status == IdentityStatus.COMPROMISED


def test_packs_of_other_clients_do_not_wait_for_a_dry_run() -> None:
    bench = Bench("default", "bob")
    (rehearse,) = bench.asked(sql(bench, 1))
    assert not bench.write(pack(bench.bobs, 1, signer=BOB), bench.bobs_acl, check=False)
    assert len(shipped(bench.drain())) == 1
    assert len(shipped(bench.answer(rehearse.ticket))) == 1


def test_packs_after_a_failed_dry_run_are_sent_back() -> None:
    bench = Bench("default")
    (rehearse,) = bench.asked(sql(bench, 1), sql(bench, 2), sql(bench, 3))
    effects = bench.answer(rehearse.ticket, *FAILS)
    assert not shipped(effects)
    assert told(effects, GoBack) == [GoBack(bench.lane, 1)] * 2
    assert bench.core.idle
    assert bench.asked(sql(bench, 1, b"another"))


@pytest.mark.parametrize(
    ("why", "first", "options"),
    [
        ("several requests", {"counts": (1, 1)}, {}),
        ("its writer does not want it", {}, {"check": False}),
    ],
)
def test_packs_without_the_check_option_get_no_dry_run(why, first, options) -> None:
    bench = Bench("default")
    assert not bench.write(sql(bench, 1, **first), **options)
    effects = bench.drain()
    assert shipped(effects), why
    assert not [one for one in effects if isinstance(one, DryRun)], why


@pytest.mark.parametrize("reserved", [(), ("default",)])
def test_node_with_dry_runs_disabled_performs_none(reserved) -> None:
    bench = Bench(*reserved, prevalidate=False)
    assert not bench.asked(sql(bench, 1))


def test_pack_with_an_invalid_signature_gets_no_dry_run() -> None:
    bench = Bench("default")
    forged = pack(bench.lane, 1, (b"insert",), message_type=SQL, signer=BOB)
    assert not bench.write(forged)
    effects = bench.drain()
    assert [one.kind for one in told(effects, NotWritten)] == ["signature"]
    assert not [one for one in effects if isinstance(one, DryRun)]


def test_node_that_loses_its_role_returns_packs_in_dry_runs() -> None:
    bench = Bench("default")
    (rehearse,) = bench.asked(sql(bench, 1), sql(bench, 2))
    assert [one.kind for one in told(bench.step(IngestRoleDropped()), NotWritten)] == ["not_ingest"] * 2
    assert bench.core.idle
    assert not bench.answer(rehearse.ticket, *FAILS), "an answer that comes too late"
