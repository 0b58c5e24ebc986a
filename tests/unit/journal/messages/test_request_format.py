"""The page about requests shows octets; here they are made and read back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chaplain.journal.execution import two_phase
from chaplain.journal.execution.two_phase import Commit, RequestRange
from chaplain.journal.messages import client, ingest, peer
from chaplain.journal.messages import config as config_message
from chaplain.journal.messages.client import MembersAre, NodeAddress, Opened, Receipts, Run, Write
from chaplain.journal.messages.cluster import Reference
from chaplain.journal.messages.config import AddIdentity, FenceLane, LeaseLane, RetireLane
from chaplain.journal.messages.peer import Ack, AskPayload, NodeReached
from chaplain.journal.messages.signing import PackCheck, holds
from chaplain.journal.model.results import ConfigVerdict, DataVerdict
from chaplain.journal.storage import verdict
from chaplain.journal.storage.verdict import Reason
from chaplain.segment.pack import decode_pack
from tests.support.execution_stage import (
    ADMIN,
    ADMIN_ACL,
    BOB,
    CLUSTER,
    FIRST_EPOCH,
    Stage,
    decided,
    lease,
    pack,
    petition,
)

PAGE = Path(__file__).parents[4] / "docs" / "protocol" / "journal-requests.md"
STAGE = Stage()
LANE = STAGE.lane()
PACK = pack(LANE, 1, (b"alpha", b"be"), counts=(2,))
ENTRY, INGEST = STAGE.prefix.ingest([PACK, pack(LANE, 9)])
MESSAGE = STAGE.prefix.propose([(ENTRY, INGEST), lease(nonce=b"%16d" % 0)])
BOB_ADDED = AddIdentity("bob", 1, BOB.key, ("bob-*",), ("*",))
RECEIPT = Receipts((Run(1, 1, 1, "orders", 0, 2, 2, 1, 2 * 10**9, b"\xaa" * 32),))
ASK = AskPayload(Reference(2, 5, 9), b"\xdd" * 32)
ACK = Ack((Reference(1, 7, 3), Reference(2, 5, 9)))
VIEW = Ack(ACK.reached, (NodeReached(3, (Reference(1, 7, 1),)),))
MEMBERS = MembersAre(
    (NodeAddress(b"\xb4" * 32, "tcp://10.0.0.4:7400"),), (NodeAddress(b"\xa1" * 32, "tcp://10.0.0.1:7400"),)
)
OPENED = Opened(1, 3, "stage", b"\xaa" * 15, "alice", 4096, 65536, 0, ("alice",), b"\xee" * 16)
EXAMPLES = {
    "pack": bytes(PACK.raw),
    "ingest": ingest.decode(INGEST).front,
    "verdict": decided(STAGE.execution, MESSAGE).verdict,
    "add": petition(BOB_ADDED).data,
    "lease": lease().data,
    "fence": petition(FenceLane(7)).data,
    "retire": petition(RetireLane(7, ADMIN_ACL)).data,
    "ask": peer.encode(ASK)[0],
    "ack": peer.encode(ACK)[0],
    "view": peer.encode(VIEW)[1],
    "opened": client.encode(OPENED),
    "members": client.encode(MEMBERS),
    "write": client.encode(Write("main", True)),
    "receipts": client.encode(RECEIPT),
}


def example(name: str) -> bytes:
    (block,) = re.findall(rf"```hex {name}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return bytes.fromhex(block)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_page_examples_match_the_encoder(name):
    assert example(name) == EXAMPLES[name]


def test_pack_example_matches_the_decoder():
    raw = example("pack")
    shown = decode_pack(raw)
    assert (shown.client_id, shown.first_id, shown.values, shown.request_counts) == (1, 1, (b"alpha", b"be"), (2,))
    assert holds(PackCheck(1, ADMIN.key, CLUSTER, "orders", raw))


def test_ingest_message_example_matches_the_decoder():
    front = example("ingest")
    assert ingest.reference_of(front) == Reference(1, 1, 1)
    assert ingest.heads_of(front) == [("orders", 152), ("orders", 144)]


def test_verdict_example_matches_the_decoder():
    data, config = verdict.decode(example("verdict")).entries
    assert isinstance(data, DataVerdict)
    assert [(one.reason, one.first_id) for one in data.packs] == [(Reason.APPLIED, 1), (Reason.GAP, 9)]
    assert isinstance(config, ConfigVerdict)
    assert (config.reason, config.client_id, config.acl) == (Reason.APPLIED, 1, ADMIN_ACL)


@pytest.mark.parametrize(
    ("name", "entry_type", "message"),
    [
        ("add", 8, BOB_ADDED),
        ("lease", 8, LeaseLane(ADMIN_ACL)),
        ("fence", 10, FenceLane(7)),
        ("retire", 9, RetireLane(7, ADMIN_ACL)),
    ],
)
def test_config_request_examples_match_the_decoder(name, entry_type, message):
    shown = config_message.decode(entry_type, 0, example(name))
    assert (shown.message, shown.signer, shown.nonce) == (message, ADMIN_ACL, b"n" * 16)
    assert shown.epoch == FIRST_EPOCH
    assert config_message.signature_holds(shown, CLUSTER, ADMIN.key)


def test_commit_example_matches_the_decoder():
    shown = two_phase.decode(example("commit"))
    assert shown == Commit("job-7", 3, (RequestRange(2, 1, 300), RequestRange(3, 1, 280)))


def test_peer_and_client_examples_match_the_decoder():
    assert peer.decode(example("ask"), b"") == ASK
    assert peer.decode(example("ack"), b"") == ACK
    assert peer.decode(example("ack"), example("view")) == VIEW
    assert client.decode_node(example("receipts")) == RECEIPT


def test_page_names_every_message_and_reason():
    page = PAGE.read_text()
    for kind in (*client.ClientMessage.__args__, *client.NodeMessage.__args__):
        assert f"`{kind.__name__}`" in page
    for reason in Reason:
        assert reason.name in page
