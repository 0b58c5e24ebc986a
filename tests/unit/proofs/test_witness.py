import pytest

from chaplain.errors import Malformed
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import cosignature, merkle, note, policy, witness
from chaplain.proofs.checkpoint import Checkpoint, SignedCheckpoint
from chaplain.proofs.note import COSIGNATURE, SecretKey
from chaplain.proofs.witness import AddCheckpoint, Witness
from tests.support.proof_log import CLUSTER, a_policy, node_keys, sign

ORIGIN = f"chaplain/{CLUSTER}"
SECRET = SecretKey("auditor.example/w", b"a" * 32, COSIGNATURE)
LEAVES = [merkle.leaf_hash(b"%d" % number) for number in range(20)]
NODE = merkle.nodes_of(LEAVES)


def request(old, new, leaves=LEAVES, nodes=(1, 2)):
    path = merkle.consistency_proof(old, new, merkle.nodes_of(leaves)) if new else []
    return AddCheckpoint(old, tuple(path), sign(Checkpoint(ORIGIN, new, merkle.root_of(leaves[:new])), nodes))


def ask(one, last=None, trusted=None):
    found = Witness(trusted or a_policy(), SECRET)
    return found.check(one) or found.answer(one, last, 1_700_000_000)


def test_encoded_requests_decode_to_themselves():
    for one in (request(0, 5), request(5, 20), request(0, 0)):
        assert witness.parse(one.encode().encode()) == one


def test_checkpoint_that_extends_the_last_one_is_cosigned():
    first = ask(request(0, 5))
    assert (first.status, first.stored.checkpoint.size) == (200, 5)
    second = ask(request(5, 20), first.stored)
    assert second.status == 200
    [line] = note.parse_signatures(second.body)
    assert cosignature.holds(SECRET.verifier, second.stored.checkpoint.text, line)
    assert cosignature.time_of(line) == 1_700_000_000
    assert second.stored.signatures[-1] == line
    again = ask(request(20, 20), second.stored)
    assert again.status == 200
    assert len(again.stored.signatures) == len(second.stored.signatures)


def test_cosigned_checkpoint_satisfies_a_policy_with_the_witness():
    text = policy.cluster_policy(CLUSTER, node_keys(), witnesses=[SECRET.verifier])
    trusted = policy.parse(text.encode())
    found = ask(request(0, 5), trusted=trusted)  # the witness's own signature is not demanded from the log
    assert found.status == 200
    assert "auditor.example/w" in policy.check(trusted, found.stored).witnesses


@pytest.mark.parametrize(
    ("one", "last", "status", "body"),
    [
        (request(4, 20), request(0, 5), 409, "5\n"),
        (request(0, 20), request(0, 5), 409, "5\n"),
        (request(5, 20), None, 409, "0\n"),
        (request(0, 4), request(0, 5), 409, "5\n"),
        (request(5, 20, LEAVES[1:] + LEAVES[:1]), request(0, 5), 422, "does not extend"),
        (AddCheckpoint(5, (), request(5, 5, LEAVES[1:]).signed), request(0, 5), 422, "does not extend"),
        (AddCheckpoint(5, (LEAVES[0],), request(5, 5).signed), request(0, 5), 422, "does not extend"),
        (AddCheckpoint(0, (LEAVES[0],), request(0, 5).signed), None, 422, "does not extend"),
        (AddCheckpoint(5, request(5, 20).path[:-1], request(5, 20).signed), request(0, 5), 422, "does not extend"),
        (AddCheckpoint(0, (), sign(Checkpoint(ORIGIN, 0, LEAVES[0]))), None, 422, "does not extend"),
        (AddCheckpoint(9, (), request(0, 5).signed), None, 400, "cannot shrink"),
        (request(0, 5, nodes=(1,)), None, 403, "too few keys"),
        (AddCheckpoint(0, (), sign(Checkpoint("chaplain/other", 0, merkle.EMPTY_ROOT))), None, 404, "does not know"),
    ],
)
def test_other_checkpoints_are_refused(one, last, status, body):
    found = ask(one, last and last.signed)
    assert found.status == status
    assert body in found.body
    assert found.stored is None
    assert found.content_type == ("text/x.tlog.size" if status == 409 else "text/plain; charset=utf-8")


def test_wrong_signature_of_a_node_is_forbidden():
    one = request(0, 5)
    other = sign(Checkpoint(ORIGIN, 6, LEAVES[0]), (3,)).signatures[1]
    mixed = AddCheckpoint(0, (), SignedCheckpoint(one.signed.checkpoint, (*one.signed.signatures, other)))
    assert ask(mixed).status == 403


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "an empty line and a checkpoint"),
        (b"old 0\n", "an empty line and a checkpoint"),
        (request(0, 5).encode().replace("old 0", "old 00").encode(), "decimal number"),
        (request(0, 5).encode().replace("old 0", "new 0").encode(), "`old`"),
        (request(5, 20).encode().replace("old 5\n", "old 5\nAAAA\n").encode(), "32 octets"),
        (b"old 5\n" + b"A" * 43 + b"=\n" * 64 + b"\n" + request(0, 5).signed.text.encode(), "not base64|at most 63"),
        (b"old \xff\n\n", "not ASCII"),
        (bytes(witness.REQUEST_BYTES_MAX + 1), "at most"),
    ],
)
def test_other_requests_are_malformed(body, reason):
    with pytest.raises(Malformed, match=reason):
        witness.parse(body)


def test_witness_never_signs_two_roots_of_one_size():
    """Whatever is asked in whatever order, the signed checkpoints are prefixes of one tree."""
    forked = [*LEAVES[:7], *LEAVES[8:], LEAVES[7]]
    found, last, seen = Witness(a_policy(), SECRET), None, {}
    for old in range(20):
        for new in range(old, 20):
            for leaves in (LEAVES, forked):
                answer = found.answer(request(old, new, leaves), last, 1)
                last = answer.stored or last
                if answer.stored is not None:
                    tree = answer.stored.checkpoint
                    assert seen.setdefault(tree.size, tree.root) == tree.root
    assert checkpoints.origin_of(CLUSTER) == ORIGIN
    assert last.checkpoint.size == 19
