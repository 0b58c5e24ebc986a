"""The tree against a direct transcription of RFC 6962's definitions."""

from hashlib import sha256
from random import Random

import pytest

from chaplain.errors import Malformed
from chaplain.proofs import merkle
from chaplain.proofs.merkle import EMPTY_ROOT, RightEdge, node_hash

LEAVES = [merkle.leaf_hash(b"%d" % number) for number in range(131)]
NODE = merkle.nodes_of(LEAVES)


def mth(hashes):
    if not hashes:
        return sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    k = k_of(len(hashes))
    return sha256(b"\x01" + mth(hashes[:k]) + mth(hashes[k:])).digest()


def k_of(size):
    k = 1
    while 2 * k < size:
        k *= 2
    return k


def path(m, hashes):
    """PATH of section 2.1.1."""
    if len(hashes) == 1:
        return []
    k = k_of(len(hashes))
    if m < k:
        return [*path(m, hashes[:k]), mth(hashes[k:])]
    return [*path(m - k, hashes[k:]), mth(hashes[:k])]


def subproof(m, hashes, whole=True):
    """SUBPROOF of section 2.1.2."""
    if m == len(hashes):
        return [] if whole else [mth(hashes)]
    k = k_of(len(hashes))
    if m <= k:
        return [*subproof(m, hashes[:k], whole), mth(hashes[k:])]
    return [*subproof(m - k, hashes[k:], False), mth(hashes[:k])]


@pytest.mark.parametrize("size", range(1, 66))
def test_proofs_are_those_of_the_definitions(size):
    leaves = LEAVES[:size]
    for index in range(size):
        assert merkle.inclusion_proof(index, size, NODE) == path(index, leaves)
        assert merkle.consistency_proof(index + 1, size, NODE) == subproof(index + 1, leaves)


def test_leaf_and_a_node_are_hashed_with_different_first_octets():
    assert merkle.leaf_hash(b"abc") == sha256(b"\x00abc").digest()
    assert node_hash(b"l" * 32, b"r" * 32) == sha256(b"\x01" + b"l" * 32 + b"r" * 32).digest()


@pytest.mark.parametrize("size", range(len(LEAVES) + 1))
def test_all_ways_to_a_root_agree_for_every_size(size):
    edge = RightEdge()
    edge.extend(LEAVES[: size // 2])
    for leaf in LEAVES[size // 2 : size]:
        edge.append(leaf)
    expected = mth(LEAVES[:size])
    assert merkle.root_of(LEAVES[:size]) == expected
    assert merkle.root_at(size, NODE) == expected
    assert edge.root() == expected
    again = RightEdge.decode(edge.encode())
    assert (again.root(), again.size) == (expected, size)
    again.extend(LEAVES[size:])
    assert again.root() == mth(LEAVES)
    assert edge.size == size


def test_right_edge_of_another_length_is_refused():
    edge = RightEdge()
    edge.extend(LEAVES[:7])
    octets = edge.encode()
    for wrong in (octets[:-1], octets + b"\0", b"", octets[:7], b"\xff" * 8 + bytes(64 * 32)):
        with pytest.raises(Malformed, match="right edge of"):
            RightEdge.decode(wrong)


def test_copy_of_a_right_edge_grows_alone():
    edge = RightEdge()
    edge.extend(LEAVES[:3])
    edge.copy().append(LEAVES[3])
    assert edge.root() == mth(LEAVES[:3])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 127, 128, 129])
def test_inclusion_of_every_leaf_holds_for_this_leaf_only(size):
    root = mth(LEAVES[:size])
    for index in range(size):
        path = merkle.inclusion_proof(index, size, NODE)
        assert len(path) == merkle.inclusion_length(index, size)
        assert merkle.is_included(LEAVES[index], index, size, root, path)
        assert not merkle.is_included(LEAVES[index + 1], index, size, root, path)
        assert not merkle.is_included(LEAVES[index], index, size, root, [*path, root])
        assert not merkle.is_included(LEAVES[index], index, size, root, path[::-1]) or len(path) < 2
        for other in range(size):
            assert other == index or not merkle.is_included(LEAVES[index], other, size, root, path)
        if path:
            assert not merkle.is_included(LEAVES[index], index, size, root, path[:-1])
            assert not merkle.is_included(LEAVES[index], index, size, root, [*path[:-1], path[-1][:-1]])
    assert not merkle.is_included(LEAVES[0], size, size, root, [])
    assert not merkle.is_included(LEAVES[0], -1, size, root, [])


@pytest.mark.parametrize(("index", "size"), [(0, 0), (1, 1), (-1, 3), (3, 3), (0, 1 << 63)])
def test_proof_of_a_leaf_that_does_not_exist_is_not_made(index, size):
    with pytest.raises(ValueError, match="has no leaf"):
        merkle.inclusion_proof(index, size, NODE)


@pytest.mark.parametrize("new", [1, 2, 3, 4, 6, 7, 8, 9, 13, 16, 17, 32, 33, 63, 64, 65])
def test_consistency_holds_between_all_sizes_and_for_their_roots_only(new):
    new_root = mth(LEAVES[:new])
    for old in range(new + 1):
        old_root = mth(LEAVES[:old])
        path = merkle.consistency_proof(old, new, NODE)
        assert merkle.is_extension(old, old_root, new, new_root, path)
        assert not merkle.is_extension(old, node_hash(old_root, old_root), new, new_root, path)
        if old:
            assert not merkle.is_extension(old, old_root, new, node_hash(new_root, new_root), path)
        assert not merkle.is_extension(old, old_root, new, new_root, [*path, new_root])
        if path:
            assert not merkle.is_extension(old, old_root, new, new_root, path[:-1])
            assert not merkle.is_extension(old, old_root, new, new_root, path[1:])
            assert not merkle.is_extension(old, old_root, new, new_root, [*path[:-1], path[-1][1:]])
            assert old + 1 >= new or not merkle.is_extension(old + 1, old_root, new, new_root, path)


def test_consistency_is_not_claimed_backwards():
    assert not merkle.is_extension(3, mth(LEAVES[:3]), 2, mth(LEAVES[:2]), [])
    assert not merkle.is_extension(0, EMPTY_ROOT, 0, LEAVES[0], [])
    assert not merkle.is_extension(0, LEAVES[0], 1, LEAVES[0], [])
    with pytest.raises(ValueError, match="does not begin with"):
        merkle.consistency_proof(3, 2, NODE)


def test_fork_is_not_an_extension():
    draw = Random(28)
    for _ in range(200):
        new = draw.randrange(2, len(LEAVES))
        old = draw.randrange(1, new)
        forked = LEAVES[:new]
        forked[draw.randrange(old)] = merkle.leaf_hash(b"another")
        path = merkle.consistency_proof(old, new, merkle.nodes_of(forked))
        assert not merkle.is_extension(old, mth(LEAVES[:old]), new, mth(forked), path)
