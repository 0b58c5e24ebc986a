import pytest

from chaplain.errors import Malformed
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs.checkpoint import Checkpoint
from chaplain.proofs.merkle import EMPTY_ROOT
from tests.support.proof_log import CLUSTER, node_keys, sign

ONE = Checkpoint(f"chaplain/{CLUSTER}", 7, bytes(range(32)))


@pytest.mark.parametrize("cluster", ["demo", "a/b", "a+b", "a%b", "a%2Fb", "%252B", "!~"])
def test_origin_names_one_cluster(cluster):
    origin = checkpoints.origin_of(cluster)
    assert checkpoints.cluster_of(origin) == cluster
    assert "+" not in origin
    assert origin.count("/") == 1


@pytest.mark.parametrize(
    "origin", ["", "chaplain/", "demo", "chaplain/a/b", "chaplain/a+b", "chaplain/a%b", "Chaplain/a"]
)
def test_other_origins_are_refused(origin):
    with pytest.raises(Malformed, match="not the origin of a cluster"):
        checkpoints.cluster_of(origin)


def test_encoded_checkpoint_decodes_to_itself():
    signed = sign(ONE, (2, 3))
    assert checkpoints.parse(signed.text.encode()) == signed
    assert signed.checkpoint.text == f"chaplain/{CLUSTER}\n7\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"
    assert [one.name for one in signed.signatures] == [
        f"chaplain/{CLUSTER}",
        f"chaplain/{CLUSTER}/2",
        f"chaplain/{CLUSTER}/3",
    ]


def test_both_signatures_of_a_node_hold_for_this_checkpoint_only():
    as_log, as_node = sign(ONE, (1,)).signatures
    key = node_keys()[1]
    for one, holder in ((as_log, checkpoints.log_key(CLUSTER, key)), (as_node, checkpoints.node_key(CLUSTER, 1, key))):
        assert checkpoints.holds(holder, ONE, one)
        assert not checkpoints.holds(holder, Checkpoint(ONE.origin, 8, ONE.root), one)
    assert not checkpoints.holds(checkpoints.node_key(CLUSTER, 2, key), ONE, as_node)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "three lines"),
        ("a\n7\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\nmore\n", "three lines"),
        ("\n7\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n", "three lines"),
        ("a\n07\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n", "decimal number"),
        ("a\n-7\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n", "decimal number"),
        ("a\n9223372036854775808\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n", "decimal number"),
        ("a\n7\nAAEC\n", "32 octets"),
        ("a" * 1025 + "\n7\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n", "three lines"),
    ],
)
def test_other_texts_are_refused(text, reason):
    with pytest.raises(Malformed, match=reason):
        checkpoints.parse_text(text)


def test_empty_log_has_a_checkpoint():
    empty = Checkpoint("chaplain/a", 0, EMPTY_ROOT)
    assert checkpoints.parse_text(empty.text) == empty


def test_added_signatures_never_replace_one():
    first, more = sign(ONE, (1,)), sign(ONE, (1, 2, 3))
    added = checkpoints.with_signatures(first, more.signatures)
    assert added.signatures[:2] == first.signatures
    assert len(added.signatures) == 4
    forged = checkpoints.with_signatures(first, sign(Checkpoint(ONE.origin, 8, ONE.root), (1,)).signatures)
    assert forged == first
