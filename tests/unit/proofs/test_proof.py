"""Proof files: what they prove, and that nothing else can be made of them."""

import subprocess
import sys
from random import Random

import pytest

from chaplain.errors import Malformed, Unproven
from chaplain.proofs import leaf as leaves
from chaplain.proofs import merkle, note, policy, proof
from chaplain.proofs.checkpoint import Checkpoint, SignedCheckpoint
from tests.support.proof_log import CLUSTER, ProofLog, a_policy, node_keys, sign
from tests.unit.proofs.second_checker import NOT_PROVEN, TOOL, check_proof, check_twice

POLICY_TEXT = policy.cluster_policy(CLUSTER, node_keys())


@pytest.fixture(scope="module")
def log():
    draw = Random(28)
    log = ProofLog()
    for number in range(300):
        count = draw.choice([1, 1, 2, 17, 60])
        values = [draw.randbytes(draw.choice([0, 3, 100, 700])) for _ in range(count)]
        keys = [None if draw.random() < 0.5 else draw.randbytes(9) for _ in range(count)] if number % 3 == 0 else None
        requests = [1, count - 1] if number % 4 == 1 and count > 1 else None
        signature_type = 2 if number % 10 == 9 else 1
        log.write(
            "orders" if number % 2 else "bids", values, keys=keys, requests=requests, signature_type=signature_type
        )
    log.write("orders", [b"large" * 1000, b"small"])
    log.write("orders", [b"alone", b"other"], isolated=True)
    return log


@pytest.fixture(scope="module")
def small_log():
    """A log whose proofs are short, because some tests flip every bit of them."""
    log = ProofLog()
    for number in range(11):
        keys = [b"k", None, b""] if number % 3 == 0 else None
        requests = [1, 2] if number % 2 else None
        log.write("orders", [b"12 apples", b"", b"3 pears"], keys=keys, requests=requests)
    log.write("orders", [b"x" * 60] * 40)
    log.write("orders", [b"hmac"], signature_type=2)
    return log


def checked(text, trusted=POLICY_TEXT, **wanted):
    data = text.encode()
    proven = check_twice(data, trusted.encode())
    if wanted:
        proof.check(proof.parse(data), policy.parse(trusted.encode()), **wanted)
    return proven


def test_every_message_of_a_log_is_proven(log):
    draw = Random(1)
    signed = log.signed()
    for stream in ("bids", "orders"):
        for offset in draw.sample(range(2000), 60):
            made = log.prove(stream, offset, signed)
            assert proof.parse(made.text.encode()) == made
            proven = checked(made.text, cluster=CLUSTER, stream=stream, offset=offset, value=made.value)
            assert (proven.stream, proven.offset, proven.value) == (stream, offset, made.value)
            assert proven.signers == ("node-1", "node-2")
            assert proven.is_signed == (made.part.head[22] == 1)


def test_values_keys_and_neighbours_are_those_that_were_written():
    log = ProofLog()
    log.write("s", [b"a", b"b", b"c"], keys=[None, b"", b"k"])
    found = [proof.check(log.prove("s", offset), a_policy()) for offset in range(3)]
    assert [(one.value, one.key) for one in found] == [(b"a", None), (b"b", b""), (b"c", b"k")]
    assert [one.headers for one in found] == [None, None, None]


def test_proof_and_checkpoint_are_shown_in_one_line(log):
    made = log.prove("orders", 7)
    assert repr(made) == f"Proof('orders', offset=7, size={made.size})"
    assert len(repr(made.checkpoint)) < 200
    assert f"size={made.checkpoint.checkpoint.size}" in repr(made.checkpoint)


def test_proof_is_saved_as_it_is(log, tmp_path):
    made = log.prove("orders", 3)
    made.save(tmp_path / "order.proof")
    assert (tmp_path / "order.proof").read_bytes() == made.text.encode()
    assert made.size == len(made.text.encode())


def test_isolated_message_is_shown_alone(log):
    last = log.prove("orders", log._next["orders"] - 1)
    assert b"other" in last.part.group
    assert b"alone" not in last.part.group
    large = log.prove("orders", log._next["orders"] - 3)
    assert large.value == b"small"
    assert b"large" not in large.part.group


@pytest.mark.parametrize("packed", [1, 10, 1000])
def test_proof_of_100_octets_among_100_million_has_at_most_4_kib(packed):
    """The paths have the length that they have in a log of 100 million messages; their hashes do not matter here."""
    log = ProofLog()
    log.write("orders", [bytes(100)] * packed)
    size = 100_000_000 // packed
    signed = sign(Checkpoint(log.checkpoint().origin, size, bytes(32)), (1, 2, 3))
    made = log.prove("orders", packed // 2)
    path = (bytes(range(32)),) * merkle.inclusion_length(size // 3, size)
    full = proof.Proof(made.offset, made.leaf, made.part, size // 3, path, signed)
    assert proof.parse(full.text.encode()) == full
    assert full.size <= 4096


@pytest.mark.parametrize("offset", [0, 1, 5, 9, 16, 20, 32, 33, 60, 73])
def test_every_flipped_bit_of_ten_proofs_is_refused(small_log, offset):
    read, trusted = check_proof.read_policy(POLICY_TEXT.encode()), a_policy()
    data = small_log.prove("orders", offset).text.encode()
    proof.check(proof.parse(data), trusted)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Malformed):
            proof.parse(bytes(flipped))
        with pytest.raises(NOT_PROVEN):
            check_proof.check(bytes(flipped), read)


def test_every_flipped_bit_of_the_policy_is_refused(log):
    data, text = log.prove("orders", 7).text.encode(), POLICY_TEXT.encode()
    check_proof.check(data, check_proof.read_policy(text))
    for bit in range(8 * len(text)):
        flipped = bytearray(text)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(NOT_PROVEN):
            check_proof.check(data, check_proof.read_policy(bytes(flipped)))


def resealed(extra, rest):
    """A file as an attacker would write it: the hash over the file is right again."""
    seal = proof._seal(bytes(extra), rest)
    return f"{proof.FIRST_LINE}\nextra {note.to_base64(bytes(extra) + seal)}\n{rest}"


@pytest.mark.parametrize("offset", [1, 3, 73])
def test_flipped_bit_of_a_claim_is_refused_even_under_a_valid_seal(small_log, offset):
    made = small_log.prove("orders", offset)
    _, second, rest = made.text.split("\n", 2)
    extra = note.from_base64(second.removeprefix("extra "), "extra")[:-8]
    assert resealed(extra, rest) == made.text
    shown = range(made.leaf.first_offset, made.leaf.first_offset + made.leaf.count)
    for bit in range(8 * len(extra)):
        flipped = bytearray(extra)
        flipped[bit // 8] ^= 1 << bit % 8
        text = resealed(flipped, rest)
        try:
            proven = checked(text)
        except (Malformed, Unproven):
            continue
        # The offset is the only claim of which there is another right one: a neighbour in the same group.
        assert proven.offset in shown
        assert proven.offset != offset
        assert proven.value == small_log.prove("orders", proven.offset).value
        with pytest.raises(Unproven, match="offset"):
            checked(text, offset=offset)
    octets = rest.encode()
    for bit in range(0, 8 * len(octets), 3):
        flipped = bytearray(octets)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            text = resealed(extra, flipped.decode())
        except UnicodeDecodeError:
            continue
        with pytest.raises((Malformed, Unproven)):
            checked(text)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"offset": 4}, "about offset 3, not 4"),
        ({"stream": "bids"}, "about stream orders, not bids"),
        ({"cluster": "other"}, "about cluster demo-1f2e3d4c, not other"),
        ({"value": b"another"}, "has another value"),
    ],
)
def test_another_claim_than_the_wanted_one_is_refused(log, wanted, reason):
    with pytest.raises(Unproven, match=reason):
        checked(log.prove("orders", 3).text, **wanted)


def test_proof_for_another_cluster_is_refused(log):
    other = ProofLog("other")
    other.write("orders", [b"x"])
    text = other.prove("orders", 0).text
    with pytest.raises(Unproven, match="policy is for chaplain/demo-1f2e3d4c"):
        checked(text)
    assert checked(text, policy.cluster_policy("other", node_keys())).cluster == "other"


def test_policy_of_another_name_for_the_same_nodes_does_not_help(log):
    """Nodes that belong to two clusters sign for each of them under its own name."""
    with pytest.raises(Unproven, match="policy is for chaplain/other"):
        checked(log.prove("orders", 0).text, policy.cluster_policy("other", node_keys()))


def replaced(made, **fields):
    """The proof with other fields, sealed."""
    names = ("offset", "leaf", "part", "index", "path", "checkpoint")
    return proof.Proof(*(fields.get(name, getattr(made, name)) for name in names))


def test_other_trees_and_signers_are_refused(log):
    made = log.prove("orders", 20)
    tree = made.checkpoint.checkpoint
    small, size = (Checkpoint(tree.origin, size, tree.root) for size in (made.index, tree.size - 1))
    root = Checkpoint(tree.origin, tree.size, merkle.node_hash(tree.root, tree.root))
    for wrong, reason in (
        (replaced(made, index=made.index + 1), "is not entry"),
        (replaced(made, index=made.index ^ 1 << 8), "is not entry"),
        (replaced(made, path=made.path[:-1]), "is not entry"),
        (replaced(made, path=made.path[1:]), "is not entry"),
        (replaced(made, path=made.path[::-1]), "is not entry"),
        (replaced(made, path=(made.path[1], made.path[0], *made.path[2:])), "is not entry"),
        (replaced(made, path=(*made.path, made.path[0])), "is not entry"),
        (replaced(made, checkpoint=sign(small)), "is not entry"),
        (replaced(made, checkpoint=sign(root)), "is not entry"),
        (replaced(made, checkpoint=SignedCheckpoint(size, made.checkpoint.signatures)), "on the checkpoint is wrong"),
        (replaced(made, checkpoint=sign(tree, (1,))), "too few keys"),
        (replaced(made, checkpoint=sign(tree, (4, 5))), "no log key"),
    ):
        with pytest.raises(Unproven, match=reason):
            checked(wrong.text)


def test_message_of_another_pack_is_refused(log):
    made, other = log.prove("orders", 20), log.prove("orders", 400)
    for wrong in (
        replaced(made, part=other.part),
        replaced(made, leaf=other.leaf),
        replaced(made, offset=other.offset),
    ):
        with pytest.raises((Malformed, Unproven)):
            checked(wrong.text)


def test_another_author_is_refused_even_if_all_nodes_agree():
    """A majority of nodes can invent entries of the log, but not the signature of an author."""
    honest = ProofLog()
    honest.write("orders", [b"12 apples"])
    made = honest.prove("orders", 0)
    forged = leaves.decode(leaves.encode(made.leaf).replace(made.leaf.key, node_keys()[1]))
    root = merkle.leaf_hash(leaves.encode(forged))
    signed = sign(Checkpoint(made.checkpoint.checkpoint.origin, 1, root))
    with pytest.raises(Unproven, match="author's signature"):
        checked(replaced(made, leaf=forged, checkpoint=signed).text)
    moved = leaves.decode(leaves.encode(made.leaf).replace(b"orders", b"ordres"))
    signed = sign(Checkpoint(made.checkpoint.checkpoint.origin, 1, merkle.leaf_hash(leaves.encode(moved))))
    with pytest.raises(Unproven, match="author's signature"):
        checked(replaced(made, leaf=moved, checkpoint=signed).text)


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257])
def test_logs_at_the_borders_of_tiles(size):
    log = ProofLog()
    for number in range(size):
        log.write("s", [b"%d" % number])
    for offset in {0, size // 2, size - 1}:
        assert checked(log.prove("s", offset).text).value == b"%d" % offset
    empty = Checkpoint(log.checkpoint().origin, 0, merkle.EMPTY_ROOT)
    with pytest.raises(Unproven, match="not entry 0 of the log with 0 entries"):
        checked(replaced(log.prove("s", 0), checkpoint=sign(empty)).text)


def test_truncated_and_extended_files_are_refused(log):
    text = log.prove("orders", 3).text
    for wrong in (*(text[:at] for at in range(0, len(text), 7)), text + "\n", text + text, "\n" + text, text[1:]):
        with pytest.raises(Malformed):
            checked(wrong)


def test_file_of_great_size_is_refused(monkeypatch):
    monkeypatch.setattr(proof, "PROOF_BYTES_MAX", 100)
    with pytest.raises(Malformed, match="at most 100 octets"):
        proof.parse(bytes(101))


def test_extra_must_have_the_one_form(log):
    _, second, rest = log.prove("orders", 3).text.split("\n", 2)
    extra = note.from_base64(second.removeprefix("extra "), "extra")[:-8]
    salted = extra[:4] + b"\3" + extra[5:]
    size = int.from_bytes(extra[1:3], "big")
    configuration = leaves.encode(leaves.ConfigurationLeaf(1, 1, 1, 0, 1, 0, bytes(32), bytes(32)))
    other_leaf = extra[:1] + len(configuration).to_bytes(2, "big") + configuration + extra[3 + size :]
    for wrong, reason in (
        (extra + b"\0", "1 octets too many"),
        (extra[:-1], "octets wanted"),
        (b"\2" + extra[1:], "version 2"),
        (extra[:1] + b"\xff\xff" + extra[3:], "at most 362 octets"),
        (salted, "salted groups"),
        (other_leaf, "is not a pack"),
    ):
        with pytest.raises(Malformed, match=reason):
            checked(resealed(wrong, rest))
    for wrong in (
        rest.replace("index ", "index 0"),
        rest.replace("index ", "indexx "),
        "index 1\n" + "A" * 43 + "=\n" * 64,
    ):
        with pytest.raises(Malformed):
            checked(resealed(extra, wrong))


def test_program_prints_its_findings(log, tmp_path):
    proof_file, policy_file = tmp_path / "order.proof", tmp_path / "cluster.policy"
    log.prove("orders", 3).save(proof_file)
    policy_file.write_text(POLICY_TEXT)

    def run(*arguments):
        command = [sys.executable, "-I", str(TOOL), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    code, out, err = run(proof_file, policy_file)
    assert (code, err) == (0, "")
    assert out.startswith("stream orders offset 3: proven, ")
    policy_file.write_text(policy.cluster_policy(CLUSTER, {4: node_keys(4)[4]}))
    assert run(proof_file, policy_file) == (3, "", "not proven: no log key of the policy signed the checkpoint\n")
    assert run(proof_file)[0] == 2
    assert run(proof_file, tmp_path / "missing")[0] == 2


def test_program_works_with_either_signature_library(log, tmp_path):
    """The same file with PyNaCl hidden: then it uses cryptography."""
    source = TOOL.read_text().replace("from nacl.bindings", "from no_such_library.bindings")
    other = {"__name__": "other"}
    exec(compile(source, "other", "exec"), other)
    data, trusted = log.prove("orders", 3).text.encode(), other["read_policy"](POLICY_TEXT.encode())
    assert other["check"](data, trusted) == check_proof.check(data, check_proof.read_policy(POLICY_TEXT.encode()))
    wrong = bytearray(data)
    wrong[-20] ^= 1
    with pytest.raises((ValueError, other["NotProven"])):
        other["check"](bytes(wrong), trusted)
    key, sign_octets = note.signer_of(b"s" * 32)
    for program in (other["signature_is_right"], check_proof.signature_is_right):
        assert program(key, b"text", sign_octets(b"text"))
        assert not program(key, b"taxt", sign_octets(b"text"))
        assert not program(key, b"text", sign_octets(b"text")[:-1])
        assert not program(key[:-1], b"text", sign_octets(b"text"))
