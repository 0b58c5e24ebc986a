"""The files of a tree in the layout of C2SP's tlog-tiles: tiles of 256 hashes, and bundles of 256 entries.

Tile (level, index) has the roots of 256 neighbouring subtrees of 256^level leaves. Full tiles never change. The tile at
the right side of each level is partial and is replaced when the tree grows. `TileEdge` is what a node keeps in memory
to append leaves and to serve the partial tiles: at most 255 hashes for each level. It returns each tile once, when it
becomes full. It reads and writes no files.

Invariants: a proof in a tree reads only tiles of this tree, with their widths in this tree; every hash in a proof comes
from a tile or is computed from the hashes of one tile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.proofs.merkle import HASH_BYTES, SIZE_MAX, Node, RightEdge, parents_of, root_of

TILE_HASHES = 256
TILE_HEIGHT = 8
TILE_BYTES = TILE_HASHES * HASH_BYTES
LEVEL_MAX = 7
"""The highest level that a tree of 63 bits reaches."""
ENTRY_BYTES_MAX = (1 << 16) - 1
BUNDLE_BYTES_MAX = TILE_HASHES * (2 + ENTRY_BYTES_MAX)
_ENTRIES = "entries"
_PATH = re.compile(
    r"tile/([0-9]|[1-5][0-9]|6[0-3]|entries)/((?:x[0-9]{3}/){0,6}[0-9]{3})(?:\.p/([1-9][0-9]{0,2}))?", re.ASCII
)

TileSource = Callable[[int, int, int], bytes]
"""Returns the octets of tile (level, index, width): of the partial tile if width is below 256."""


class Tile(Frozen, frozen=True):
    level: int
    """-1 for a bundle of entries."""
    index: int
    width: int = TILE_HASHES

    @property
    def path(self) -> str:
        return tile_path(self.level, self.index, self.width)


def tile_path(level: int, index: int, width: int = TILE_HASHES) -> str:
    """Return the path of a tile below the log's prefix."""
    if not 0 <= level <= LEVEL_MAX:
        raise ValueError(f"tiles have levels 0 to {LEVEL_MAX}, not {level}")
    return _path(str(level), index, width)


def bundle_path(index: int, width: int = TILE_HASHES) -> str:
    """Return the path of a bundle of entries below the log's prefix."""
    return _path(_ENTRIES, index, width)


def _path(level: str, index: int, width: int) -> str:
    if not 0 <= index <= SIZE_MAX or not 1 <= width <= TILE_HASHES:
        raise ValueError(f"tile {index} of width {width} is not possible")
    digits = str(index)
    digits = digits.zfill(len(digits) + -len(digits) % 3)
    groups = [digits[at : at + 3] for at in range(0, len(digits), 3)]
    name = "/".join([*(f"x{group}" for group in groups[:-1]), groups[-1]])
    return f"tile/{level}/{name}" + ("" if width == TILE_HASHES else f".p/{width}")


def parse_path(path: str) -> Tile:
    """Return which tile a path names; -1 is the level of bundles. Each tile has one path."""
    match = _PATH.fullmatch(path) if len(path) <= 64 else None
    if not match:
        raise Malformed(f"{path[:64]!r} is not the path of a tile")
    index = int(match[2].replace("x", "").replace("/", ""))
    width = int(match[3] or TILE_HASHES)
    level = -1 if match[1] == _ENTRIES else int(match[1])
    if (
        index > SIZE_MAX
        or level > LEVEL_MAX
        or (match[3] and width >= TILE_HASHES)
        or _again(level, index, width) != path
    ):
        raise Malformed(f"{path!r} is not the path of a tile")
    return Tile(level, index, width)


def _again(level: int, index: int, width: int) -> str:
    return bundle_path(index, width) if level < 0 else tile_path(level, index, width)


def encode_tile(hashes: Sequence[bytes]) -> bytes:
    if not 1 <= len(hashes) <= TILE_HASHES:
        raise ValueError(f"a tile has 1 to {TILE_HASHES} hashes, not {len(hashes)}")
    return b"".join(hashes)


def decode_tile(data: bytes, width: int = TILE_HASHES) -> list[bytes]:
    """Return the hashes of a tile of this width."""
    if len(data) != width * HASH_BYTES:
        raise Malformed(f"tile of width {width}: {width * HASH_BYTES} octets wanted, not {len(data)}")
    return [data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)]


def encode_bundle(entries: Sequence[bytes]) -> bytes:
    if not 1 <= len(entries) <= TILE_HASHES:
        raise ValueError(f"a bundle has 1 to {TILE_HASHES} entries, not {len(entries)}")
    for entry in entries:
        if len(entry) > ENTRY_BYTES_MAX:
            raise ValueError(f"an entry has at most {ENTRY_BYTES_MAX} octets, not {len(entry)}")
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


def decode_bundle(data: bytes, width: int = TILE_HASHES) -> list[bytes]:
    """Return the entries of a bundle of this width."""
    entries: list[bytes] = []
    at = 0
    while at < len(data) and len(entries) < width:
        size = int.from_bytes(data[at : at + 2], "big")
        entries.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    if at != len(data) or len(entries) != width:
        raise Malformed(f"bundle of width {width}: {len(entries)} entries in {at} octets, not in {len(data)}")
    return entries


def widths(size: int) -> Iterator[Tile]:
    """The partial tiles of a tree of this size, lowest level first."""
    level = 0
    while size:
        if size % TILE_HASHES:
            yield Tile(level, size // TILE_HASHES, size % TILE_HASHES)
        size //= TILE_HASHES
        level += 1


def newly_full(old: int, new: int) -> Iterator[Tile]:
    """The tiles that become full when the tree grows from `old` to `new` leaves, lowest level first."""
    level = 0
    while new := new // TILE_HASHES:
        old //= TILE_HASHES
        for index in range(old, new):
            yield Tile(level, index)
        level += 1


def tile_of(level: int, index: int, size: int) -> tuple[Tile, int, int]:
    """Return the tile in a tree of this size that contains subtree (level, index), and which of its hashes belong to
    the subtree: the first and one past the last.
    """
    tile_level = level // TILE_HEIGHT
    span = 1 << level % TILE_HEIGHT
    first = index * span
    in_tile = first % TILE_HASHES
    number = first // TILE_HASHES
    width = min(TILE_HASHES, (size >> tile_level * TILE_HEIGHT) - number * TILE_HASHES)
    if in_tile + span > width:
        raise ValueError(f"a tree of {size} leaves has no subtree {index} at level {level}")
    return Tile(tile_level, number, width), in_tile, in_tile + span


def node_source(size: int, source: TileSource) -> Node:
    """Return the function that proofs in a tree of this size are made from. It reads each tile once."""
    tiles: dict[Tile, list[bytes]] = {}

    def node(level: int, index: int) -> bytes:
        tile, first, end = tile_of(level, index, size)
        hashes = tiles.get(tile)
        if hashes is None:
            hashes = tiles[tile] = decode_tile(source(tile.level, tile.index, tile.width), tile.width)
        return root_of(hashes[first:end])

    return node


class TileEdge:
    """The right side of a growing tree in tiles."""

    __slots__ = ("_levels", "size")

    def __init__(self) -> None:
        self.size = 0
        self._levels: list[list[bytes]] = []  # the hashes of the partial tile of each level

    def extend(self, leaves: Iterable[bytes]) -> list[tuple[Tile, bytes]]:
        """Append hashes of leaves, in order. Returns the tiles that became full, with their octets."""
        full: list[tuple[Tile, bytes]] = []
        for leaf in leaves:
            full += self.append(leaf)
        return full

    def append(self, leaf: bytes) -> list[tuple[Tile, bytes]]:
        """Append the hash of one leaf."""
        if not self._levels:
            self._levels.append([])
        hashes = self._levels[0]
        hashes.append(leaf)
        self.size += 1
        return self._close(0, hashes) if len(hashes) == TILE_HASHES else []

    def _close(self, level: int, hashes: list[bytes]) -> list[tuple[Tile, bytes]]:
        """The tile of this level is full: its root becomes a hash of the next level."""
        index = (self.size - 1) >> (level + 1) * TILE_HEIGHT
        full = [(Tile(level, index), encode_tile(hashes))]
        self._levels[level] = []
        if level + 1 == len(self._levels):
            self._levels.append([])
        above = self._levels[level + 1]
        above.append(root_of(hashes))
        return full + (self._close(level + 1, above) if len(above) == TILE_HASHES else [])

    def partial(self, level: int) -> bytes:
        """Return the octets of the partial tile of a level; empty if there is none."""
        return b"".join(self._levels[level]) if level < len(self._levels) else b""

    def root(self) -> bytes:
        return self.edge().root()

    def edge(self) -> RightEdge:
        """Return the right edge of this tree."""
        found: list[bytes] = []
        for hashes in reversed(self._levels):
            found += _perfect(hashes)
        return RightEdge.decode(self.size.to_bytes(8, "big") + b"".join(found))

    def node_source(self, source: TileSource) -> Node:
        """Return the function that proofs in the tree of the present size are made from. `source` is asked for full
        tiles only.
        """
        partial = {tile: self.partial(tile.level) for tile in widths(self.size)}

        def read(level: int, index: int, width: int) -> bytes:
            return source(level, index, width) if width == TILE_HASHES else partial[Tile(level, index, width)]

        return node_source(self.size, read)

    def encode(self) -> bytes:
        """Return size 8, big-endian, then the hashes of the partial tiles, lowest level first."""
        return self.size.to_bytes(8, "big") + b"".join(self.partial(tile.level) for tile in widths(self.size))

    @classmethod
    def decode(cls, data: bytes) -> TileEdge:
        edge = cls()
        edge.size = int.from_bytes(data[:8], "big")
        partial = list(widths(edge.size)) if len(data) >= 8 and edge.size <= SIZE_MAX else []
        wanted = 8 + HASH_BYTES * sum(tile.width for tile in partial)
        if edge.size > SIZE_MAX or len(data) != wanted:
            raise Malformed(f"edge of {edge.size} leaves: {wanted} octets wanted, not {len(data)}")
        edge._levels = [[] for _ in range(-(-edge.size.bit_length() // TILE_HEIGHT))]
        at = 8
        for tile in partial:
            end = at + tile.width * HASH_BYTES
            edge._levels[tile.level] = decode_tile(data[at:end], tile.width)
            at = end
        return edge


def _perfect(hashes: list[bytes]) -> list[bytes]:
    """The roots of the perfect subtrees over these hashes, the largest first."""
    roots: list[bytes] = []
    level = hashes
    while level:
        if len(level) % 2:
            roots.append(level[-1])
            level = level[:-1]
        level = parents_of(level)
    return roots[::-1]
