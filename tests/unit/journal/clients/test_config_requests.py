"""Configuration requests that wait at a node are bounded, and their signatures are checked outside the core."""

from __future__ import annotations

import pytest

from chaplain.journal.clients.config_requests import ConfigRequests
from chaplain.journal.consensus.events import ConfigOffered, Role, RoleChanged
from chaplain.journal.events import ToClient, ToPeer, Verified, Verify
from chaplain.journal.messages.client import Decided, Failed
from chaplain.journal.messages.cluster import ConfigEntry, genesis
from chaplain.journal.messages.config import AddIdentity, ConfigMessage, MakeCheckpoint
from chaplain.journal.messages.peer import ForwardConfigRequest
from chaplain.journal.messages.signing import holds
from chaplain.journal.settings import ConsensusSettings, JournalSettings
from tests.support.execution_stage import ADMIN_ACL, BOB, CLUSTER, Stage, lease, petition

NODE, OTHER = 1, 2
ORDER = ConsensusSettings(node=NODE, genesis=genesis(CLUSTER), disk=b"d" * 16, founding_disk=b"d" * 16, boot=b"b" * 16)
IN_ALL, PER_CLIENT = 6, 4
EVE = b"eve's ACL id   "


class CoreHost:
    """Petitions of one node, and a host that checks signatures when it is told to."""

    def __init__(self) -> None:
        settings = JournalSettings(
            ORDER, petitions_max=IN_ALL, petitions_per_client_max=PER_CLIENT, checks_inline_max=0
        )
        self.stage = Stage()
        self.petitions = ConfigRequests(settings, self.stage.execution)
        self.now_ns = 1
        self.calls = 0

    def lead(self, master: int) -> None:
        role = Role.MASTER if master == NODE else Role.FOLLOWER
        self.petitions.role_changed(self.now_ns, RoleChanged(role, 1, master))

    def submit(self, entry: ConfigEntry, client: bytes = ADMIN_ACL, session: bytes = b"") -> list:
        self.calls += 1
        asker = (session or b"session %d" % self.calls, self.calls)
        self.petitions.submit(
            self.now_ns, asker, client, ForwardConfigRequest(entry.entry_type, entry.stage, entry.data)
        )
        return self.taken()

    def taken(self) -> list:
        effects = list(self.petitions.effects)
        self.petitions.effects.clear()
        return effects

    def check(self) -> list:
        """End the round, have everything checked, and return what follows."""
        self.petitions.check_signatures(1)
        for effect in self.taken():
            assert isinstance(effect, Verify)
            self.petitions.on_verified(self.now_ns, Verified(effect.ticket, tuple(map(holds, effect.items))))
        return self.taken()


@pytest.fixture
def host() -> CoreHost:
    return CoreHost()


def numbered(number: int) -> ConfigEntry:
    return lease(nonce=b"%16d" % number)


def forged(entry: ConfigEntry) -> ConfigEntry:
    return ConfigEntry(entry.entry_type, entry.stage, entry.data[:-1] + bytes((entry.data[-1] ^ 1,)))


def refusals(effects: list) -> list[str]:
    return [one.message.kind for one in effects if isinstance(one, ToClient) and isinstance(one.message, Failed)]


def test_request_is_offered_only_after_its_signature_check(host: CoreHost) -> None:
    host.lead(NODE)
    assert not host.submit(numbered(1))
    assert host.petitions.signatures.pending
    assert [type(one) for one in host.check()] == [ConfigOffered]


def test_forged_request_is_refused_and_not_forwarded(host: CoreHost) -> None:
    host.lead(NODE)
    host.submit(forged(numbered(1)))
    (answer,) = host.check()
    assert isinstance(answer.message, Decided)
    assert answer.message.kind == "signature"
    assert not host.petitions.due_ns


@pytest.mark.parametrize("message", [AddIdentity("eve", 1, b"e" * 32, (), (), False), MakeCheckpoint(0)])
def test_admin_request_without_admin_is_refused_before_it_is_ordered(host: CoreHost, message: ConfigMessage) -> None:
    (verdict,) = host.stage.config(petition(AddIdentity("bob", 1, BOB.key, ("*",), ("*",), False)))
    host.lead(NODE)
    (answer,) = host.submit(petition(message, BOB, verdict.acl, b"m" * 16))
    assert isinstance(answer.message, Decided)
    assert answer.message.kind == "not_allowed"
    assert not host.check()
    assert not host.petitions.due_ns
    assert not host.submit(petition(message, nonce=b"m" * 16))
    assert [type(one) for one in host.check()] == [ConfigOffered]


def test_requests_of_one_round_are_checked_by_one_effect(host: CoreHost) -> None:
    for number in range(PER_CLIENT):
        host.submit(numbered(number))
    host.petitions.check_signatures(1)
    (verify,) = host.taken()
    assert len(verify.items) == PER_CLIENT


def test_requests_of_one_client_are_bounded_and_others_are_served(host: CoreHost) -> None:
    for number in range(PER_CLIENT):
        assert not host.submit(numbered(number))
    assert refusals(host.submit(numbered(98))) == ["busy"]
    assert not refusals(host.submit(numbered(99), client=EVE))


def test_requests_of_all_clients_are_bounded(host: CoreHost) -> None:
    for number in range(IN_ALL):
        assert not host.submit(numbered(number), client=b"%15d" % number)
    assert refusals(host.submit(numbered(99), client=EVE)) == ["busy"]


def test_request_sent_by_many_sessions_counts_once_per_session(host: CoreHost) -> None:
    refused = [refusals(host.submit(numbered(1), client=b"%15d" % number)) for number in range(IN_ALL + 2)]
    assert refused == [[]] * IN_ALL + [["busy"]] * 2


def test_session_that_repeats_a_request_is_answered_for_its_last_call(host: CoreHost) -> None:
    for _ in range(10 * IN_ALL):
        assert not host.submit(numbered(1), session=b"the same session")
    host.check()
    host.stage.config(numbered(1))
    host.petitions.on_applied(host.stage.executed[-1])
    (answer,) = host.taken()
    assert (answer.instance, answer.message.call) == (b"the same session", host.calls)


def test_requests_of_a_client_that_left_count_until_decided(host: CoreHost) -> None:
    """Otherwise it would come back, and fill the node."""
    for number in range(PER_CLIENT):
        host.submit(numbered(number), session=b"session")
    host.petitions.session_closed(b"session")
    assert refusals(host.submit(numbered(98))) == ["busy"]
    host.check()
    for number in range(PER_CLIENT):
        host.stage.config(numbered(number))
        host.petitions.on_applied(host.stage.executed[-1])
    assert not host.taken()
    assert not refusals(host.submit(numbered(99)))


def test_request_that_is_given_up_frees_its_place(host: CoreHost) -> None:
    for number in range(PER_CLIENT):
        host.submit(numbered(number))
    host.check()
    assert host.petitions.due_ns is not None
    host.now_ns += JournalSettings(ORDER).petition_ns
    host.petitions.woken(host.now_ns)
    assert refusals(host.taken()) == ["unknown"] * PER_CLIENT
    assert not host.submit(numbered(99))


def test_master_checks_forwarded_requests_in_bounded_rounds(host: CoreHost) -> None:
    host.lead(NODE)
    for number in range(PER_CLIENT + 3):
        entry = numbered(number) if number else forged(numbered(0))
        host.petitions.on_forwarded(OTHER, ForwardConfigRequest(entry.entry_type, entry.stage, entry.data))
    assert [type(one) for one in host.check()] == [ConfigOffered] * (PER_CLIENT - 1)
    entry = numbered(50)
    host.petitions.on_forwarded(OTHER, ForwardConfigRequest(entry.entry_type, entry.stage, entry.data))
    assert [type(one) for one in host.check()] == [ConfigOffered]


def test_checked_request_is_forwarded_to_the_next_master(host: CoreHost) -> None:
    host.submit(numbered(1))
    host.lead(OTHER)
    assert not host.taken(), "it is not checked yet"
    (passed,) = host.check()
    assert isinstance(passed, ToPeer)
    assert passed.node == OTHER
