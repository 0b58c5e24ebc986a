"""Makes a proof of one message from parts that nodes serve: the message's pack, a signed checkpoint, and tiles.

The client does the work: nodes only serve files. It computes the root again from the received octets, so that it never
returns a wrong proof; a policy still has to say whose signatures are enough.
"""

from __future__ import annotations

from collections.abc import Iterator

from chaplain.client.api.calls import PreparedCall
from chaplain.client.protocol.journal.events import AskCommand, ReadChunk
from chaplain.client.types import validation
from chaplain.core import Frozen
from chaplain.errors import Malformed, Missing, Unproven
from chaplain.journal.messages.client import AskTree
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import leaf as leaves
from chaplain.proofs import proof
from chaplain.proofs.checkpoint import SignedCheckpoint
from chaplain.proofs.leaf import PackLeaf
from chaplain.proofs.merkle import HASH_BYTES, inclusion_proof, is_included, leaf_hash
from chaplain.proofs.proof import Proof
from chaplain.proofs.tiles import TILE_HASHES, Tile, bundle_path, decode_bundle, node_source, tile_of
from chaplain.segment.layout import octets
from chaplain.segment.pack import PACK_HEAD_BYTES, PackHead, groups_of, heads_of, read_head


def checkpoint(index: int = 0) -> PreparedCall[SignedCheckpoint]:
    """The newest complete checkpoint, once it covers the cluster message `index`."""
    question = AskTree(0, "checkpoint", index)
    return PreparedCall(lambda call, timeout_ns: AskCommand(call, question, timeout_ns), checkpoints.parse)


def tile(name: str) -> PreparedCall[bytes]:
    question = AskTree(0, name)
    return PreparedCall(lambda call, timeout_ns: AskCommand(call, question, timeout_ns), bytes)


def offset(given: int) -> int:
    return validation.number("offsets", given, requirement="count from 0")


class FoundPack(Frozen, frozen=True):
    """The pack that contains a message."""

    raw: bytes
    first_offset: int
    index: int
    """The cluster message that ordered it."""

    @property
    def head(self) -> PackHead:
        return read_head(self.raw, 0)


def find_pack(chunk: ReadChunk, offset: int) -> FoundPack:
    """The pack of a chunk that contains this offset."""
    first = chunk.first_offset
    for head in heads_of(octets(chunk.packs)):
        if first <= offset < first + head.count:
            return FoundPack(bytes(chunk.packs[head.start : head.end]), first, chunk.index)
        first += head.count
    raise Malformed(f"chunk: offset {offset} is not in it")


class LeafSearch:
    """Finds the leaf of a pack by binary search over the bundles of a tree: leaves are in the order of messages."""

    def __init__(self, pack: FoundPack, stream: str, size: int) -> None:
        self._pack, self._stream, self._size = pack, stream, size
        self._low, self._high = 0, (size - 1) // TILE_HASHES
        """The first leaf of the message is in one of these bundles."""
        self._scanning = False
        self.found: tuple[int, PackLeaf] | None = None
        """Position in the tree, and the leaf."""

    def next_bundle(self) -> str | None:
        """The name of the bundle to look at; None at the end of the search."""
        if self.found is not None or self._low > self._high:
            return None
        return bundle_path(self._at, self._width(self._at))

    @property
    def _at(self) -> int:
        return self._low if self._scanning else (self._low + self._high) // 2

    def _width(self, bundle: int) -> int:
        return min(TILE_HASHES, self._size - bundle * TILE_HASHES)

    def take(self, data: bytes) -> None:
        """Look at the bundle that was asked for."""
        at = self._at
        found = [leaves.decode(entry) for entry in decode_bundle(data, self._width(at))]
        if not self._scanning and self._low < self._high:
            if found[-1].message < self._pack.index:
                self._low = at + 1
            else:
                self._high = at
            return
        for number, leaf in enumerate(found):
            if self._is_wanted(leaf):
                assert isinstance(leaf, PackLeaf)
                self.found = (at * TILE_HASHES + number, leaf)
                return
        # The leaves of a message may continue in the next bundle.
        self._scanning = True
        self._low = at + 1
        last = (self._size - 1) // TILE_HASHES
        self._high = last if found[-1].message <= self._pack.index else at

    def _is_wanted(self, leaf: leaves.Leaf) -> bool:
        return (
            isinstance(leaf, PackLeaf)
            and leaf.message == self._pack.index
            and (leaf.stream, leaf.first_offset) == (self._stream, self._pack.first_offset)
        )

    def result(self) -> tuple[int, PackLeaf]:
        if self.found is None:
            raise Missing(f"the log's tree has no entry for {self._stream!r}, offset {self._pack.first_offset}")
        return self.found


def tiles_needed(index: int, size: int) -> Iterator[Tile]:
    """The tiles from which the inclusion proof of a leaf is made."""
    found: dict[Tile, None] = {}

    def note(level: int, subtree: int) -> bytes:
        found[tile_of(level, subtree, size)[0]] = None
        return bytes(HASH_BYTES)

    inclusion_proof(index, size, note)
    return iter(found)


def assemble(
    pack: FoundPack, at: tuple[int, PackLeaf], offset: int, signed: SignedCheckpoint, tiles: dict[Tile, bytes]
) -> Proof:
    """Make the proof. Raises `Unproven` if the parts do not belong together."""
    index, leaf = at
    tree, head = signed.checkpoint, pack.head
    path = inclusion_proof(
        index, tree.size, node_source(tree.size, lambda level, number, width: tiles[Tile(level, number, width)])
    )
    if not is_included(leaf_hash(leaves.encode(leaf)), index, tree.size, tree.root, path):
        raise Unproven(f"the tiles that a node served do not lead to the root of the checkpoint of size {tree.size}")
    if leaf.digest != head.digest:
        raise Unproven("the pack that a node served is not the one in the log's tree")
    return proof.build(
        leaf,
        offset,
        head=pack.raw[:32],
        requests=pack.raw[head.tables_at : head.tables_at + 4 * head.tabled_requests],
        signature=pack.raw[PACK_HEAD_BYTES : PACK_HEAD_BYTES + head.signature_bytes],
        groups=groups_of(pack.raw),
        index=index,
        path=path,
        signed=signed,
    )
