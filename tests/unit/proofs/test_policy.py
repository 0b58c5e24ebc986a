import pytest

from chaplain.errors import Malformed, Unproven
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import cosignature, note, policy
from chaplain.proofs.checkpoint import Checkpoint, SignedCheckpoint
from tests.support.proof_log import CLUSTER, a_policy, node_keys, node_seed, sign

ONE = Checkpoint(f"chaplain/{CLUSTER}", 7, bytes(range(32)))
TEXT = policy.cluster_policy(CLUSTER, node_keys())
LOG, W1, W2, W3 = (line.rsplit(" ", 1)[1] for line in [TEXT.split("\n")[1], *TEXT.split("\n")[4:7]])


def plain(*lines):
    return "".join(f"{line}\n" for line in lines).encode()


def refused(data, reason):
    with pytest.raises(Malformed, match=reason):
        policy.parse(data)


def test_policy_of_a_cluster_needs_more_than_half_of_its_nodes():
    for nodes, enough in ((1, 1), (2, 2), (3, 2), (4, 3), (5, 3)):
        found = a_policy(nodes)
        assert (len(found.logs), len(found.witnesses), found.groups[0].threshold) == (nodes, nodes, enough)


def test_signatures_of_a_quorum_are_enough():
    assert policy.check(a_policy(), sign(ONE, (1, 2))).witnesses == ("node-1", "node-2")
    assert policy.check(a_policy(), sign(ONE, (1, 2, 3))).witnesses == ("node-1", "node-2", "node-3")
    with pytest.raises(Unproven, match=r"too few keys.*node-3; the quorum is 2 of node-1, node-2, node-3"):
        policy.check(a_policy(), sign(ONE, (3,)))


def test_node_that_signs_twice_counts_once():
    one = sign(ONE, (1,))
    key, signer = note.signer_of(node_seed(1))
    later = cosignature.sign(ONE.text, f"{ONE.origin}/1", key, signer, 5)
    twice = SignedCheckpoint(ONE, (*one.signatures, later, later))
    with pytest.raises(Unproven, match="too few keys"):
        policy.check(a_policy(), twice)
    as_another = cosignature.sign(ONE.text, f"{ONE.origin}/2", key, signer, 5)
    with pytest.raises(Unproven, match="too few keys"):
        policy.check(a_policy(), SignedCheckpoint(ONE, (*one.signatures, as_another)))


def test_removed_node_s_key_does_not_count():
    keys = node_keys()
    del keys[3]
    without = policy.parse(policy.cluster_policy(CLUSTER, keys).encode())
    with pytest.raises(Unproven, match="too few keys"):
        policy.check(without, sign(ONE, (1, 3)))
    assert policy.check(without, sign(ONE, (1, 2, 3))).witnesses == ("node-1", "node-2")


def test_wrong_signature_of_a_known_key_makes_the_checkpoint_invalid():
    other = sign(Checkpoint(ONE.origin, 8, ONE.root), (3,))
    mixed = SignedCheckpoint(ONE, (*sign(ONE, (1, 2)).signatures, other.signatures[1]))
    with pytest.raises(Unproven, match=f"signature of chaplain/{CLUSTER}/3 on the checkpoint is wrong"):
        policy.check(a_policy(), mixed)
    right, wrong = (sign(one, (2,)).signatures[1] for one in (ONE, Checkpoint(ONE.origin, 8, ONE.root)))
    twice = SignedCheckpoint(ONE, (*sign(ONE, (1,)).signatures, right, wrong))
    with pytest.raises(Unproven, match="/2 on the checkpoint is wrong"):
        policy.check(a_policy(), twice)


def test_checkpoint_must_be_of_the_right_log_and_signed_by_it():
    with pytest.raises(Unproven, match="no log key"):
        policy.check(a_policy(), SignedCheckpoint(ONE, sign(ONE, (1, 2)).signatures[1:]))
    other = Checkpoint("chaplain/other", 7, ONE.root)
    with pytest.raises(Unproven, match="the policy is for chaplain/demo-1f2e3d4c"):
        policy.check(a_policy(), sign(other, (1, 2)))


def test_witnesses_are_needed_beside_the_nodes():
    witness = note.SecretKey("auditor.example/w", b"a" * 32, note.COSIGNATURE)
    both = policy.parse(policy.cluster_policy(CLUSTER, node_keys(), witnesses=[witness.verifier]).encode())
    signed = sign(ONE, (1, 2))
    with pytest.raises(Unproven, match="too few keys"):
        policy.check(both, signed)
    line = cosignature.sign(ONE.text, witness.name, witness.key, witness.sign, 1)
    found = policy.check(both, checkpoints.with_signatures(signed, [line]))
    assert found.witnesses == ("node-1", "node-2", "auditor.example/w")
    with pytest.raises(Unproven, match="too few keys"):
        policy.check(both, checkpoints.with_signatures(sign(ONE, (1,)), [line]))


def test_policies_written_by_hand_are_read():
    text = plain(
        "  # who may sign",
        "",
        f"log\t{LOG} https://example.com/",
        f"witness X1 {W1} https://example.com/w",
        f"witness X2 {W2}",
        f"witness Y {W3}",
        "group X any X1 X2",
        "group X-and-Y all X Y",
        "quorum X-and-Y",
    )
    found = policy.parse(text)
    assert [(group.name, group.threshold) for group in found.groups] == [("X", 1), ("X-and-Y", 2)]
    with pytest.raises(Unproven, match="too few"):
        policy.check(found, sign(ONE, (1, 2)))
    assert policy.check(found, sign(ONE, (1, 3))).witnesses == ("X1", "Y")
    assert policy.check(policy.parse(plain(f"log {LOG}", "quorum none")), sign(ONE, (1,))).witnesses == ()


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["#"], "no `log` line"),
        ([f"log {LOG}"], "there is no quorum"),
        ([f"log {LOG}", f"log {LOG}", "quorum none"], "line 2: this key is listed already"),
        ([f"log {LOG}", "quorum none", "quorum none"], "a second quorum"),
        ([f"log {LOG}", "quorum X"], "'X' is not defined above"),
        ([f"log {LOG}", f"witness X {W1}", f"witness Y {W1}", "quorum X"], "line 3: this key is listed already"),
        ([f"log {LOG}", f"witness X {W1}", f"witness X {W2}", "quorum X"], "'X' is taken"),
        ([f"log {LOG}", f"witness none {W1}", "quorum none"], "'none' is taken"),
        ([f"log {LOG}", f"witness X {LOG}", "quorum X"], "key of type 1, not of cosignatures"),
        ([f"log {LOG}", f"witness X {W1}", "group G 2 X", "quorum G"], "'2' of 1 members"),
        ([f"log {LOG}", f"witness X {W1}", "group G 0 X", "quorum G"], "'0' of 1 members"),
        ([f"log {LOG}", f"witness X {W1}", "group G 1 X X", "quorum G"], "member of two groups"),
        ([f"log {LOG}", f"witness X {W1}", "group G any X", "group H any X", "quorum G"], "member of two groups"),
        ([f"log {LOG}", "group G all", "quorum G"], "'all' of 0 members"),
        ([f"log {LOG}", "group G 1 G", "quorum G"], "'G' is not defined above"),
        ([f"log {LOG}", "group G", "quorum none"], "not a line of a policy"),
        ([f"log {LOG}", "lag X", "quorum none"], "not a line of a policy"),
        ([f"log {LOG}\x0b", "quorum none"], "control characters"),
        ([f"log {LOG}", "# seal of my own", "quorum none"], "changed after it was sealed"),
    ],
)
def test_other_policies_are_refused(lines, reason):
    refused(plain(*lines), reason)


def test_policy_without_a_last_line_feed_or_of_great_size_is_refused():
    refused(plain(f"log {LOG}", "quorum none")[:-1], "no line feed")
    refused(b"#\n" * (129 << 10), "at most 262144 octets")


def test_every_flipped_bit_of_a_sealed_policy_is_noticed():
    data = TEXT.encode()
    policy.parse(data)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        refused(bytes(flipped), "policy")


def test_sealed_policy_may_be_edited_when_its_seal_is_removed():
    edited = TEXT.replace("group nodes 2", "group nodes 3")
    refused(edited.encode(), "who changed it on purpose removes the seal")
    unsealed = "".join(line for line in edited.splitlines(keepends=True) if not line.startswith("# seal"))
    assert policy.parse(unsealed.encode()).groups[0].threshold == 3
    refused((unsealed + TEXT.splitlines()[-1] + "\n").encode(), "changed after it was sealed")
    assert policy.parse(policy.sealed(unsealed).encode()).groups[0].threshold == 3


def test_two_roots_of_one_size_show_who_signed_both():
    other = Checkpoint(ONE.origin, ONE.size, bytes(32))
    assert policy.double_signers(a_policy(), sign(ONE, (1, 2)), sign(other, (2, 3))) == ("node-2",)
    assert policy.double_signers(a_policy(), sign(ONE, (1, 2)), sign(ONE, (2, 3))) == ()
    larger = Checkpoint(ONE.origin, ONE.size + 1, bytes(32))
    assert policy.double_signers(a_policy(), sign(ONE, (1, 2)), sign(larger, (1, 2))) == ()
    assert policy.double_signers(a_policy(), sign(ONE, (1,)), sign(other, (1,))) == ("node-1",)
    as_log = [SignedCheckpoint(one, sign(one, (1,)).signatures[:1]) for one in (ONE, other)]
    assert policy.double_signers(a_policy(), *as_log) == (ONE.origin,)
