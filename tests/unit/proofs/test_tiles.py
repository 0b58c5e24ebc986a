from itertools import pairwise
from random import Random

import pytest

from chaplain.errors import Malformed
from chaplain.proofs import merkle, tiles
from chaplain.proofs.tiles import Tile, TileEdge

BORDERS = (0, 1, 2, 255, 256, 257, 511, 512, 513, 65_535, 65_536, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1)


@pytest.fixture(scope="module")
def log():
    """A tree of 2^20 + 1 leaves: the hashes, the full tiles by path, and the edges at the borders."""
    leaves = [number.to_bytes(32, "big") for number in range(BORDERS[-1])]  # any 32 octets can be a leaf's hash
    edge, full, edges = TileEdge(), {}, {0: TileEdge().encode()}
    for old, new in pairwise(BORDERS):
        for tile, octets in edge.extend(leaves[old:new]):
            full[tile.level, tile.index] = octets
        edges[new] = edge.encode()
    return leaves, full, edges


def source_of(full):
    return lambda level, index, width: full[level, index][: width * 32]


@pytest.mark.parametrize(
    ("tile", "path"),
    [
        (Tile(0, 0), "tile/0/000"),
        (Tile(0, 273, 112), "tile/0/273.p/112"),
        (Tile(1, 1_234_067), "tile/1/x001/x234/067"),
        (Tile(2, 1000, 1), "tile/2/x001/000.p/1"),
        (Tile(7, 999_999), "tile/7/x999/999"),
    ],
)
def test_paths(tile, path):
    assert tile.path == path
    assert tiles.parse_path(path) == tile


def test_path_of_a_bundle():
    assert tiles.bundle_path(1_234_067, 3) == "tile/entries/x001/x234/067.p/3"
    assert tiles.parse_path("tile/entries/x001/x234/067.p/3") == Tile(-1, 1_234_067, 3)
    assert tiles.bundle_path(merkle.SIZE_MAX) == "tile/entries/x009/x223/x372/x036/x854/x775/807"
    assert tiles.parse_path(tiles.bundle_path(merkle.SIZE_MAX)).index == merkle.SIZE_MAX


@pytest.mark.parametrize(
    "path",
    [
        *("", "tile/0/0", "tile/00/000", "tile/8/000", "tile/64/000", "tile/0/x000/000", "tile/0/000.p/0"),
        *("tile/0/000.p/256", "tile/0/000.p/256/", "tile/0/000.p/01", "tile/0/001/000", "tile/0/../000"),
        *("/tile/0/000", "tile/0/000\n", "tile/0/\u0660\u0660\u0660", "tile/0/" + "x001/" * 40 + "000"),
        "tile/entries/x999/x999/x999/x999/x999/x999/999",
    ],
)
def test_other_paths_are_refused(path):
    with pytest.raises(Malformed, match="is not the path of a tile"):
        tiles.parse_path(path)


def test_partial_tiles_of_a_tree_of_70000():
    assert list(tiles.widths(70_000)) == [Tile(0, 273, 112), Tile(1, 1, 17), Tile(2, 0, 1)]
    assert list(tiles.widths(256)) == [Tile(1, 0, 1)]
    assert list(tiles.widths(0)) == []


def test_tiles_become_full_once(log):
    _, full, _ = log
    draw = Random(1)
    for _ in range(20):
        cuts = sorted({0, BORDERS[-1], *(draw.randrange(BORDERS[-1]) for _ in range(5))})
        found = [tile for old, new in pairwise(cuts) for tile in tiles.newly_full(old, new)]
        assert len(found) == len(full)
        assert {(tile.level, tile.index) for tile in found} == set(full)
    assert list(tiles.newly_full(255, 256)) == [Tile(0, 0)]
    assert list(tiles.newly_full(256, 511)) == []
    assert list(tiles.newly_full(65_535, 65_536)) == [Tile(0, 255), Tile(1, 0)]


@pytest.mark.parametrize("size", BORDERS)
def test_roots_and_proofs_from_tiles_agree_with_the_leaves(log, size):
    leaves, full, edges = log
    edge = TileEdge.decode(edges[size])
    root = merkle.root_of(leaves[:size])
    node = edge.node_source(source_of(full))
    assert edge.encode() == edges[size]
    assert edge.root() == root
    assert edge.edge().size == size
    assert merkle.root_at(size, node) == root
    for index in {0, size // 3, size // 2, size - 1, 255, 256} & set(range(size)):
        path = merkle.inclusion_proof(index, size, node)
        assert merkle.is_included(leaves[index], index, size, root, path)
    for old in BORDERS[: BORDERS.index(size) + 1]:
        old_root = TileEdge.decode(edges[old]).root()
        assert merkle.is_extension(old, old_root, size, root, merkle.consistency_proof(old, size, node))


def test_consistency_between_random_sizes(log):
    leaves, full, _ = log
    draw = Random(2)
    edge = merkle.RightEdge()
    roots = {}
    for size in sorted(draw.randrange(1, len(leaves)) for _ in range(60)):
        edge.extend(leaves[edge.size : size])
        roots[size] = edge.root()
    edge = TileEdge()
    edge.extend(leaves)
    complete = edge.node_source(source_of(full))
    sizes = sorted(roots)
    for _ in range(300):
        old, new = sorted(draw.sample(sizes, 2))
        path = merkle.consistency_proof(old, new, complete)
        assert merkle.is_extension(old, roots[old], new, roots[new], path)
        assert not merkle.is_extension(old, roots[new], new, roots[old], path)


def test_edge_continues_after_encoding(log):
    leaves, full, edges = log
    for old, new in ((1, 257), (255, 512), (513, 65_536), (65_535, 65_537)):
        edge = TileEdge.decode(edges[old])
        made = edge.extend(leaves[old:new])
        assert [tile for tile, _ in made] == sorted(tiles.newly_full(old, new), key=tile_end)
        assert all(octets == full[tile.level, tile.index] for tile, octets in made)
        assert edge.encode() == edges[new]


def tile_end(tile):
    return (tile.index + 1) << 8 * (tile.level + 1), tile.level


def test_subtree_beyond_the_tree_is_not_in_a_tile():
    assert tiles.tile_of(0, 69_999, 70_000) == (Tile(0, 273, 112), 111, 112)
    assert tiles.tile_of(16, 0, 70_000) == (Tile(2, 0, 1), 0, 1)
    assert tiles.tile_of(9, 1, 70_000) == (Tile(1, 0), 2, 4)
    for level, index in ((0, 70_000), (8, 273), (17, 0), (30, 0)):
        with pytest.raises(ValueError, match="has no subtree"):
            tiles.tile_of(level, index, 70_000)


def test_wrong_octets_are_refused():
    with pytest.raises(Malformed, match="64 octets wanted"):
        tiles.decode_tile(bytes(63), 2)
    with pytest.raises(Malformed, match="edge of 1 leaves"):
        TileEdge.decode((1).to_bytes(8, "big") + bytes(31))
    with pytest.raises(Malformed, match="edge of"):
        TileEdge.decode(b"\xff" * 8)
    with pytest.raises(Malformed, match="edge of"):
        TileEdge.decode(b"\0\0\0")


def test_bundles():
    entries = [b"", b"a", b"x" * 65_535]
    octets = tiles.encode_bundle(entries)
    assert tiles.decode_bundle(octets, 3) == entries
    for wrong, width in ((octets, 2), (octets, 4), (octets[:-1], 3), (octets + b"\0", 3), (b"", 1), (b"\0", 1)):
        with pytest.raises(Malformed, match="bundle of width"):
            tiles.decode_bundle(wrong, width)
    with pytest.raises(ValueError, match="at most 65535 octets"):
        tiles.encode_bundle([b"x" * 65_536])
