"""The Merkle tree of RFC 6962: hashes, roots, and proofs of inclusion and of consistency.

A proof is made from a function that returns the hash of a perfect subtree, so the same code serves memory, tiles and
packs. Sizes have at most 63 bits, as in C2SP's tlog formats.

Invariants: a proof has exactly one form, and a check accepts no other number of hashes. `RightEdge` has the roots of
the perfect subtrees that the tree consists of: one for each bit of its size. A node needs no more to append leaves and
to compute the root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

from chaplain.errors import Malformed

HASH_BYTES = 32
SIZE_MAX = (1 << 63) - 1
PROOF_HASHES_MAX = 63
EMPTY_ROOT = sha256(b"").digest()
_LEAF = b"\x00"
_NODE = b"\x01"
_SIZE_BYTES = 8

Node = Callable[[int, int], bytes]
"""Returns the hash of the perfect subtree (level, index): of leaves index << level to (index + 1) << level."""


def leaf_hash(data: bytes | bytearray | memoryview) -> bytes:
    return sha256(b"".join((_LEAF, data))).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(_NODE + left + right).digest()


def root_of(hashes: Sequence[bytes]) -> bytes:
    """Return the root over these leaf hashes."""
    if not hashes:
        return EMPTY_ROOT
    level = hashes
    while len(level) > 1:
        level = parents_of(level)
    return level[0]


def parents_of(level: Sequence[bytes]) -> list[bytes]:
    """Combine neighbours. A last hash without a neighbour moves up unchanged, which gives the tree of RFC 6962."""
    even = len(level) & -2
    parents = [sha256(_NODE + level[at] + level[at + 1]).digest() for at in range(0, even, 2)]
    if even < len(level):
        parents.append(level[even])
    return parents


def nodes_of(hashes: Sequence[bytes]) -> Node:
    """Return the function that proofs are made from, for a tree that fits in memory."""
    levels = [hashes]
    while len(levels[-1]) > 1:
        levels.append(parents_of(levels[-1]))

    def node(level: int, index: int) -> bytes:
        return levels[level][index]

    return node


class RightEdge:
    """The state of a growing tree."""

    __slots__ = ("_hashes", "size")

    def __init__(self) -> None:
        self.size = 0
        self._hashes: list[bytes] = []  # of perfect subtrees, the largest first

    @property
    def hashes(self) -> tuple[bytes, ...]:
        return tuple(self._hashes)

    def append(self, leaf: bytes) -> None:
        """Append the hash of one leaf."""
        hashes, full = self._hashes, self.size
        while full & 1:
            leaf = sha256(_NODE + hashes.pop() + leaf).digest()
            full >>= 1
        hashes.append(leaf)
        self.size += 1

    def extend(self, leaves: Iterable[bytes]) -> None:
        """Append hashes of leaves, in order."""
        for leaf in leaves:
            self.append(leaf)

    def root(self) -> bytes:
        return _fold(self._hashes)

    def copy(self) -> RightEdge:
        copied = RightEdge()
        copied.size, copied._hashes = self.size, self._hashes.copy()
        return copied

    def encode(self) -> bytes:
        """Return size 8, big-endian, then one hash for each bit of the size that is set, from the highest bit."""
        return self.size.to_bytes(_SIZE_BYTES, "big") + b"".join(self._hashes)

    @classmethod
    def decode(cls, data: bytes) -> RightEdge:
        edge = cls()
        edge.size = int.from_bytes(data[:_SIZE_BYTES], "big")
        wanted = _SIZE_BYTES + HASH_BYTES * edge.size.bit_count()
        if edge.size > SIZE_MAX or len(data) != wanted:
            raise Malformed(f"right edge of {edge.size} leaves: {wanted} octets wanted, not {len(data)}")
        edge._hashes = [data[at : at + HASH_BYTES] for at in range(_SIZE_BYTES, wanted, HASH_BYTES)]
        return edge


def root_at(size: int, node: Node) -> bytes:
    """Return the root of the first `size` leaves."""
    return _range_root(0, size, node)


def inclusion_proof(index: int, size: int, node: Node) -> list[bytes]:
    """Prove the leaf at `index` in the tree of `size` leaves: hashes from its sibling up to the root's child."""
    if not 0 <= index < size <= SIZE_MAX:
        raise ValueError(f"a tree of {size} leaves has no leaf {index}")
    path = []
    low, high = 0, size
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            path.append(_range_root(middle, high, node))
            high = middle
        else:
            path.append(_range_root(low, middle, node))
            low = middle
    return path[::-1]


def consistency_proof(old: int, new: int, node: Node) -> list[bytes]:
    """Prove that the tree of `new` leaves begins with the tree of `old` leaves. The proof is empty if one tree is empty
    or both have the same size.
    """
    if not 0 <= old <= new <= SIZE_MAX:
        raise ValueError(f"a tree of {new} leaves does not begin with one of {old}")
    if old in {0, new}:
        return []
    path = []
    low, high = 0, new
    while high != old:
        middle = low + _split(high - low)
        if old <= middle:
            path.append(_range_root(middle, high, node))
            high = middle
        else:
            path.append(_range_root(low, middle, node))
            low = middle
    if low:  # otherwise this subtree is the whole old tree, whose root the checker has
        path.append(_range_root(low, high, node))
    return path[::-1]


def root_from_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes:
    """Return the root that follows from the hash of a leaf and its proof (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size <= SIZE_MAX:
        raise Malformed(f"a tree of {size} leaves has no leaf {index}")
    _check_hashes(path, inclusion_length(index, size), "inclusion")
    root, first, last = leaf, index, size - 1
    for sibling in path:
        if first & 1 or first == last:
            root = node_hash(sibling, root)
            while not first & 1 and first:
                first, last = first >> 1, last >> 1
        else:
            root = node_hash(root, sibling)
        first, last = first >> 1, last >> 1
    return root


def inclusion_length(index: int, size: int) -> int:
    """Return the number of hashes in the proof of this leaf."""
    inner = (index ^ (size - 1)).bit_length()
    return inner + (index >> inner).bit_count()


def is_included(leaf: bytes, index: int, size: int, root: bytes, path: Sequence[bytes]) -> bool:
    try:
        return root_from_inclusion(leaf, index, size, path) == root
    except Malformed:
        return False


def is_extension(old: int, old_root: bytes, new: int, new_root: bytes, path: Sequence[bytes]) -> bool:
    """Return whether the proof shows that the new tree begins with the old one (RFC 9162, 2.1.4.2)."""
    if not 0 <= old <= new <= SIZE_MAX or len(path) > PROOF_HASHES_MAX or any(len(one) != HASH_BYTES for one in path):
        return False
    if old in {0, new}:
        expected = EMPTY_ROOT if not old else new_root
        return not path and old_root == expected and (new > 0 or new_root == EMPTY_ROOT)
    hashes = list(path)
    if not old & (old - 1):  # the old tree is a perfect subtree of the new one
        hashes.insert(0, old_root)
    if not hashes:
        return False
    first, last = old - 1, new - 1
    while first & 1:
        first, last = first >> 1, last >> 1
    old_found = new_found = hashes[0]
    for sibling in hashes[1:]:
        if not last:
            return False
        if first & 1 or first == last:
            old_found, new_found = node_hash(sibling, old_found), node_hash(sibling, new_found)
            while not first & 1 and first:
                first, last = first >> 1, last >> 1
        else:
            new_found = node_hash(new_found, sibling)
        first, last = first >> 1, last >> 1
    return not last and old_found == old_root and new_found == new_root


def _check_hashes(path: Sequence[bytes], wanted: int, what: str) -> None:
    if len(path) != wanted or any(len(one) != HASH_BYTES for one in path):
        raise Malformed(f"{what} proof: {wanted} hashes of {HASH_BYTES} octets wanted, not {len(path)}")


def _split(size: int) -> int:
    """Return the largest power of two below `size`: the leaves in the left subtree."""
    return 1 << (size - 1).bit_length() - 1


def _range_root(low: int, high: int, node: Node) -> bytes:
    """Return the root over leaves low to high. `low` is a multiple of the largest power of two in high - low."""
    hashes = []
    while low < high:
        level = (high - low).bit_length() - 1
        hashes.append(node(level, low >> level))
        low += 1 << level
    return _fold(hashes)


def _fold(hashes: Sequence[bytes]) -> bytes:
    """Combine the roots of perfect subtrees, the largest first, from the right."""
    if not hashes:
        return EMPTY_ROOT
    root = hashes[-1]
    for left in reversed(hashes[:-1]):
        root = node_hash(left, root)
    return root
