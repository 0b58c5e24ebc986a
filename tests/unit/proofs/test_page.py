"""The examples in docs/protocol/proofs.md are what the code reads and writes."""

import re
from hashlib import sha256
from pathlib import Path

import pytest

from chaplain.proofs import checkpoint, leaf, merkle, note, policy, proof, witness
from chaplain.proofs.groups import MessageGroup, decode_group
from chaplain.proofs.note import COSIGNATURE, SecretKey
from tests.support.proof_log import ProofLog, node_keys

PAGE = Path(__file__).parents[3] / "docs" / "protocol" / "proofs.md"


def example(kind):
    found = re.search(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found, f"the page has no example {kind}"
    return bytes.fromhex(found[1]) if kind.startswith("hex ") else found[1]


@pytest.fixture(scope="module")
def log():
    log = ProofLog("demo")
    log.write("bids", [b"7"])
    log.write("orders", [b"12 apples", b"3 pears"], keys=[b"k", None])
    log.write("orders", [b"x"])
    return log


def test_group():
    assert decode_group(example("hex group"), True, False) == MessageGroup(
        0, (b"12 apples", b"3 pears"), (b"k", None), None
    )


def test_leaves(log):
    assert example("hex leaf") == log.leaves[1]
    pack, configuration = leaf.decode(example("hex leaf")), leaf.decode(example("hex configuration"))
    assert (pack.stream, pack.first_offset, pack.count) == ("orders", 0, 2)
    assert (configuration.entry_type, configuration.digest) == (1, sha256(b"data").digest())
    assert leaf.encode(configuration) == example("hex configuration")


def test_right_edge(log):
    edge = merkle.RightEdge.decode(example("hex edge"))
    assert (edge.size, edge.root()) == (3, log.checkpoint().root)


def test_policy_and_proof(log):
    assert example("policy") == policy.cluster_policy("demo", node_keys())
    text = example("proof")
    assert text == log.prove("orders", 1).text
    found = proof.parse(text.encode())
    assert found.part.group == example("hex group")
    proven = proof.check(found, policy.parse(example("policy").encode()))
    assert (proven.cluster, proven.stream, proven.offset, proven.value) == ("demo", "orders", 1, b"3 pears")


def test_request_to_a_witness_and_its_answer(log):
    request = witness.parse(example("request").encode())
    assert request.encode() == example("request")
    secret = SecretKey("auditor.example/w", b"a" * 32, COSIGNATURE)
    asked = witness.Witness(policy.parse(example("policy").encode()), secret)
    assert asked.check(request) is None
    assert asked.answer(request, log.signed(size=1), 1_700_000_010).body == example("answer")
    [line] = note.parse_signatures(example("answer"))
    assert checkpoint.holds(secret.verifier, request.signed.checkpoint, line)


def test_bounds_on_the_page_are_those_of_the_code():
    page = " ".join(PAGE.read_text().split())
    assert f"{policy.POLICY_BYTES_MAX >> 10} KiB, {policy.LOGS_MAX} logs, {policy.WITNESSES_MAX} witnesses" in page
    assert f"{policy.GROUPS_MAX} groups" in page
    assert f"larger than {witness.REQUEST_BYTES_MAX >> 10} KiB" in page
    assert f"A proof has at most {proof.PROOF_BYTES_MAX >> 20} MiB" in page
