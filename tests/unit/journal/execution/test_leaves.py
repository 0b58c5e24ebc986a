"""The leaves that execution adds to the tree over the log, and the tree in the state."""

from hashlib import sha256

import pytest

from chaplain.errors import Malformed
from chaplain.journal.execution.state import load
from chaplain.journal.execution.two_phase import STAGED
from chaplain.journal.messages.config import AddIdentity, FenceLane, RemoveIdentity
from chaplain.journal.messages.signing import SignatureType
from chaplain.journal.model.log_tree import BUNDLES, LogTree, LogTreeRecord, load_tree
from chaplain.journal.storage.verdict import Reason
from chaplain.proofs.leaf import ConfigurationLeaf, PackLeaf, decode
from chaplain.proofs.merkle import leaf_hash, root_of
from chaplain.proofs.tiles import decode_bundle, decode_tile
from chaplain.segment.pack import stated_digest
from tests.support.execution_stage import ADMIN, BOB, Stage, lease, pack, petition
from tests.unit.journal.execution.test_two_phase import commit, staged


def leaves(stage: Stage) -> list[PackLeaf | ConfigurationLeaf]:
    tree = stage.execution.state.tree
    entries = decode_bundle(tree.open_tile(BUNDLES), tree.size)
    assert tree.root() == root_of([leaf_hash(entry) for entry in entries])
    return [decode(entry) for entry in entries]


def test_each_applied_pack_has_one_leaf_that_names_its_place():
    stage = Stage()
    lane = stage.lane()
    first, second = pack(lane, 1, [b"a", b"b"]), pack(lane, 3, [b"c"], stream="audit")
    stage.write(first, second)
    stage.write(pack(lane, 4, [b"d"]))
    found = leaves(stage)
    places = [(leaf.stream, leaf.first_offset, leaf.count, leaf.client_id, leaf.first_id) for leaf in found]
    assert places == [("orders", 0, 2, lane, 1), ("audit", 0, 1, lane, 3), ("orders", 2, 1, lane, 4)]
    body = stage.prefix.messages[1].body
    assert (found[0].regime, found[0].message, found[0].timestamp_ns) == (1, body.index, body.timestamp_ns)
    assert (found[0].key, found[0].digest) == (ADMIN.key, stated_digest(first.raw))
    assert [leaf.message for leaf in found] == [2, 2, 3]


def test_refused_packs_and_copies_have_no_leaf():
    stage = Stage()
    lane = stage.lane()
    first = pack(lane, 1)
    stage.write(first)
    size = stage.execution.state.tree.size
    refused = stage.write(first, pack(lane, 9), pack(99, 1), pack(lane, 2, signer=BOB), staged(lane, 2, [b"x"]))
    assert Reason.APPLIED not in [one.reason for one in refused]
    assert stage.execution.state.tree.size == size


def test_committed_pack_has_its_leaf_when_it_gets_its_offsets():
    stage = Stage()
    lane, driver = stage.lane(1), stage.lane(2)
    entry = staged(lane, 1, [b"a", b"b"])
    stage.write(entry)
    stage.write(commit(driver, 1, 0, (lane, 1, 2)))
    assert stage.execution.state.tree.size == 0
    stage.write(entry)
    [leaf] = leaves(stage)
    assert (leaf.first_offset, leaf.count, leaf.key, leaf.digest) == (0, 2, ADMIN.key, stated_digest(entry.raw))
    assert entry.raw[21] == STAGED


def test_change_of_who_may_write_has_a_leaf_and_a_lease_has_none():
    stage = Stage()
    added = petition(AddIdentity("bob", SignatureType.ED25519, BOB.key, ("*",), ("*",)), nonce=b"1" * 16)
    [verdict] = stage.config(added)
    [leaf] = leaves(stage)
    assert leaf == ConfigurationLeaf(1, 1, stage.prefix.messages[0].body.timestamp_ns, 0, 8, 0, ADMIN.key, leaf.digest)
    assert leaf.digest == sha256(added.data).digest()
    stage.config(added, lease(), petition(FenceLane(1), nonce=b"2" * 16))
    assert stage.execution.state.tree.size == 1, "a copy, a lease or a fence changes nobody's rights"
    stage.config(petition(RemoveIdentity(verdict.acl), nonce=b"3" * 16))
    assert stage.execution.state.tree.size == 2


def test_restored_state_continues_the_same_tree():
    stage = Stage()
    lane = stage.lane()
    for number in range(1, 301):
        stage.write(pack(lane, number))
    restored = load(stage.founding, stage.execution.state.export())
    tree = stage.execution.state.tree
    assert (restored.tree.size, restored.tree.root()) == (300, tree.root())
    assert restored.fingerprint() == stage.execution.fingerprint()
    for one in (restored.tree, tree):
        one.take_finished()
        one.append([b"leaf %d" % number for number in range(300)])
    assert restored.tree.export() == tree.export()
    assert restored.tree.take_finished() == tree.take_finished()


def test_fingerprint_covers_the_tree():
    stage = Stage()
    before = stage.execution.fingerprint()
    stage.execution.state.tree.append([b"leaf"])
    assert stage.execution.fingerprint() != before


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 65_535, 65_536, 65_537])
def test_tree_has_the_root_of_its_leaves_at_the_borders_of_tiles(size):
    tree, entries = LogTree(), [b"%d" % number for number in range(size)]
    tree.append(entries)
    hashes = [leaf_hash(entry) for entry in entries]
    assert tree.root() == root_of(hashes)
    finished = tree.take_finished()
    bundles = [entry for one in finished if one.tile.level == BUNDLES for entry in decode_bundle(one.data)]
    tiles = [hashed for one in finished if one.tile.level == 0 for hashed in decode_tile(one.data)]
    assert bundles == entries[: size // 256 * 256]
    assert tiles == hashes[: size // 256 * 256]
    assert [one.tile.index for one in finished if one.tile.level == 1] == list(range(size // 65_536))
    assert load_tree(tree.export()).export() == tree.export()


@pytest.mark.parametrize(
    "record",
    [
        LogTreeRecord(bytes(8), (b"leaf",)),
        LogTreeRecord((1).to_bytes(8, "big") + bytes(32), (b"leaf",)),
        LogTreeRecord((1).to_bytes(8, "big") + leaf_hash(b"leaf"), ()),
        LogTreeRecord(b"", ()),
    ],
)
def test_damaged_tree_is_refused(record):
    with pytest.raises(Malformed):
        load_tree(record)
