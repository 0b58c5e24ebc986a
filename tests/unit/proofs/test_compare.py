from random import Random

import pytest

from chaplain.errors import Malformed, Missing, Unproven
from chaplain.proofs import merkle, policy, tiles
from chaplain.proofs.checkpoint import Checkpoint, parse
from chaplain.proofs.compare import Forked, compare
from chaplain.proofs.tile_files import directory_source
from chaplain.proofs.tiles import TileEdge
from tests.support.proof_log import CLUSTER, a_policy, sign

ORIGIN = f"chaplain/{CLUSTER}"


def a_log(size, changed=None):
    return [merkle.leaf_hash(b"%d%b" % (number, b"!" * (number == changed))) for number in range(size)]


def signed(leaves, size, nodes=(1, 2)):
    return sign(Checkpoint(ORIGIN, size, merkle.root_of(leaves[:size])), nodes)


def write_tiles(directory, leaves):
    edge = TileEdge()
    files = [(tile.path, octets) for tile, octets in edge.extend(leaves)]
    files += [(tile.path, edge.partial(tile.level)) for tile in tiles.widths(edge.size)]
    for path, octets in files:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(octets)


@pytest.fixture(scope="module")
def honest():
    return a_log(70_000)


@pytest.fixture(scope="module")
def directory(honest, tmp_path_factory):
    found = tmp_path_factory.mktemp("tiles")
    write_tiles(found, honest)
    return found


def test_partial_tiles_of_higher_levels_are_computed_from_full_ones(honest, tmp_path):
    edge = TileEdge()
    for tile, octets in edge.extend(honest):
        if tile.level == 0:
            (tmp_path / tile.path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / tile.path).write_bytes(octets)
    size = 70_000 // 256 * 256
    (tmp_path / "tile/1").mkdir()
    (tmp_path / "tile/1/000").write_bytes(edge_tile(honest))
    found = compare(signed(honest, 512), signed(honest, size), None, nodes_in(tmp_path, size))
    assert found.new_size == size
    with pytest.raises(Missing, match=r"no tile tile/0/273\.p/112 .*; a node serves it"):
        compare(signed(honest, 512), signed(honest, 70_000), None, nodes_in(tmp_path, 70_000))


def edge_tile(leaves):
    """The first tile of level 1."""
    return b"".join(merkle.root_of(leaves[at : at + 256]) for at in range(0, 65_536, 256))


def nodes_in(directory, size):
    return tiles.node_source(size, directory_source(directory))


def test_random_checkpoints_of_one_log_extend_each_other(honest, directory):
    draw = Random(5)
    node = nodes_in(directory, 70_000)
    edge, made = merkle.RightEdge(), []
    for size in sorted(draw.randrange(70_001) for _ in range(1000)):
        edge.extend(honest[edge.size : size])
        made.append(Checkpoint(ORIGIN, size, edge.root()))
    for _ in range(1000):
        first, second = sorted(draw.sample(made, 2), key=lambda one: one.size)
        path = merkle.consistency_proof(first.size, second.size, node)
        assert merkle.is_extension(first.size, first.root, second.size, second.root, path)
        wrong = merkle.node_hash(first.root, b"")
        assert not first.size or not merkle.is_extension(first.size, wrong, second.size, second.root, path)


def test_later_checkpoint_extends_an_earlier_one(honest, directory):
    found = compare(signed(honest, 300), signed(honest, 70_000), a_policy(), nodes_in(directory, 70_000))
    assert found.line == f"{ORIGIN}: the checkpoint of 70000 entries extends it by 69700, signed by node-1, node-2"
    same = compare(signed(honest, 300), signed(honest, 300))
    assert same.line == f"{ORIGIN}: the checkpoint of 300 entries is the same, signatures not checked (no --policy)"
    assert compare(signed(honest, 0), signed(honest, 300), a_policy()).old_size == 0


def test_older_tree_is_read_from_the_tiles_of_a_newer_one(honest, directory):
    """Partial tiles of the older tree are gone; the tiles that became full begin with them."""
    assert compare(signed(honest, 300), signed(honest, 1000), None, nodes_in(directory, 1000)).new_size == 1000


@pytest.mark.parametrize("changed", [0, 255, 299])
def test_rewritten_log_is_found_although_all_signatures_are_right(honest, tmp_path, changed):
    rewritten = a_log(70_000, changed)
    write_tiles(tmp_path, rewritten)
    new = signed(rewritten, 70_000, (1, 2, 3))
    with pytest.raises(Forked, match=r"the log was rewritten.*; node-1, node-2 signed both") as fork:
        compare(signed(honest, 300), new, a_policy(), nodes_in(tmp_path, 70_000))
    assert fork.value.signers == ("node-1", "node-2")
    assert compare(signed(honest, changed), new, a_policy(), nodes_in(tmp_path, 70_000)).old_size == changed


def test_two_roots_of_one_size_are_evidence(honest):
    old, new = signed(honest, 300, (1, 2)), signed(a_log(300, 7), 300, (2, 3))
    with pytest.raises(Forked, match="two different checkpoints of 300 entries; node-2 signed both") as fork:
        compare(old, new, a_policy())
    assert fork.value.signers == ("node-2",)
    first, second = (f"{part}" for part in fork.value.evidence.split(f"\n{ORIGIN}\n"))
    shown = [parse(first.encode()), parse(f"{ORIGIN}\n{second}".encode())]
    assert [one.checkpoint for one in shown] == [old.checkpoint, new.checkpoint]
    assert policy.double_signers(a_policy(), *shown) == ("node-2",)
    with pytest.raises(Forked, match=r"two different checkpoints of 300 entries$"):
        compare(old, new)


def test_checkpoints_that_cannot_be_compared_are_unproven(honest, directory, tmp_path):
    old, new = signed(honest, 300), signed(honest, 70_000)
    node = nodes_in(directory, 70_000)
    other = sign(Checkpoint("chaplain/other", 70_000, new.checkpoint.root))
    for pair, trusted, source, reason in (
        ((new, old), a_policy(), node, "second checkpoint is older"),
        ((old, other), None, node, "two logs"),
        ((old, new), a_policy(), None, "no tiles"),
        ((old, signed(honest, 70_000, (1,))), a_policy(), node, "too few keys"),
        ((signed(honest, 300, (3,)), new), a_policy(), node, "too few keys"),
        ((old, new), a_policy(), merkle.nodes_of(a_log(70_000, 9)), "tiles are damaged, or of another log"),
    ):
        with pytest.raises(Unproven, match=reason):
            compare(*pair, trusted, source)
    with pytest.raises(Missing, match="there is no tile tile/"):
        compare(old, new, None, nodes_in(tmp_path, 70_000))
    (tmp_path / "tile/0").mkdir(parents=True)
    (tmp_path / "tile/0/001").write_bytes(b"short")
    with pytest.raises(Malformed, match="octets wanted, not 5"):
        nodes_in(tmp_path, 512)(0, 256)
