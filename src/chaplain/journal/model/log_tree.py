"""The Merkle tree over the log, as execution continues it: its right edge, and the tiles that are not full yet.

A tile that becomes full moves to `take_finished`, and only its own hash stays, one level up. Memory therefore grows
with the logarithm of the size. A snapshot contains the open tiles and the open bundle of entries, so that a node that
starts from one writes every later tile itself.

Decides nothing: `execution` decides which leaves are added. Layout of tiles: docs/protocol/log-tree.md.

Invariants: leaves are only ever appended. Two trees of one size with the same root have the same record.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.proofs.merkle import RightEdge, leaf_hash
from chaplain.proofs.tiles import TILE_HASHES, Tile, TileEdge, encode_bundle

BUNDLES = -1
"""The level of bundles of entries."""


class LogTreeRecord(Frozen, frozen=True, array_like=True):
    """The tree in a serialized state."""

    tiles: bytes
    """Size and open tiles, as `TileEdge` encodes them."""
    entries: tuple[bytes, ...]
    """The leaves of the open bundle."""


class FinishedTile(Frozen, frozen=True):
    """A full tile or bundle, and its octets."""

    tile: Tile
    data: bytes


class LogTree:
    """The tree after the applied prefix."""

    def __init__(self) -> None:
        self._tiles = TileEdge()
        self._edge = RightEdge()
        self._entries: list[bytes] = []
        self._finished: list[FinishedTile] = []

    @property
    def size(self) -> int:
        return self._edge.size

    def root(self) -> bytes:
        return self._edge.root()

    def edge(self) -> RightEdge:
        """A copy of the right edge. A caller may compute the root of the present size from it later."""
        return self._edge.copy()

    def append(self, leaves: Sequence[bytes]) -> None:
        for leaf in leaves:
            hashed = leaf_hash(leaf)
            self._edge.append(hashed)
            self._entries.append(leaf)
            full = self._tiles.append(hashed)
            if full:
                bundle = Tile(BUNDLES, full[0][0].index)
                self._finished.append(FinishedTile(bundle, encode_bundle(self._entries)))
                self._finished += [FinishedTile(tile, data) for tile, data in full]
                self._entries = []

    def take_finished(self) -> Sequence[FinishedTile]:
        """Remove and return the tiles that became full since the last call, in the order in which they did."""
        if not self._finished:
            return ()
        finished, self._finished = self._finished, []
        return finished

    def open_tile(self, level: int) -> bytes:
        """The octets of the open tile of a level; of the open bundle at level `BUNDLES`."""
        if level != BUNDLES:
            return self._tiles.partial(level)
        return encode_bundle(self._entries) if self._entries else b""

    def export(self) -> LogTreeRecord:
        return LogTreeRecord(self._tiles.encode(), tuple(self._entries))

    def summary(self) -> LogTreeRecord:
        """A short form for fingerprints: equal sizes and roots mean equal tiles."""
        return LogTreeRecord(self.size.to_bytes(8, "big"), (self.root(),))


def load_tree(record: LogTreeRecord) -> LogTree:
    """Restore a tree. Raises `Malformed` unless the record has the shape of a tree."""
    tree = LogTree()
    tree._tiles = TileEdge.decode(record.tiles)
    hashed = b"".join(map(leaf_hash, record.entries))
    if len(record.entries) != tree._tiles.size % TILE_HASHES or hashed != tree._tiles.partial(0):
        raise Malformed("tree: the entries are not those of its open tile")
    tree._edge = tree._tiles.edge()
    tree._entries = list(record.entries)
    return tree
