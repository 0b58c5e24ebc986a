"""A log is compared with a signed checkpoint of its tree: an intact one, a rewritten one, and damaged leaves."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from chaplain.errors import Malformed, Missing
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.model.log_tree import BUNDLES
from chaplain.proofs import leaf
from chaplain.proofs.checkpoint import Checkpoint, origin_of
from chaplain.proofs.leaf import PackLeaf
from chaplain.proofs.merkle import EMPTY_ROOT, leaf_hash, root_of
from chaplain.proofs.tiles import bundle_path, decode_bundle, encode_bundle
from chaplain.verification.process_pool import verify_in_processes
from chaplain.verification.result import VerifyResult
from chaplain.verification.tree_check import Subtree, TreeSource, aligned, join_subtrees
from chaplain.verification.verify import verify_here, verify_log
from tests.spark.support.journal import Groups, recorded, rich_stage
from tests.spark.support.stage import put
from tests.support.execution_stage import CLUSTER, Stage

MESSAGES = 150


class Grown:
    """A log on disk, with the files of its tree, and the sizes of the tree after its messages."""

    def __init__(self, folder: Path, stage: Stage) -> None:
        execution = JournalExecution(stage.founding)
        tree = execution.state.tree
        self.sizes: list[int] = []
        self.leaves: list[bytes] = []
        self.folder = folder / "tree"
        for settled in stage.prefix.messages:
            execution.apply(settled)
            for tile in execution.state.tree.take_finished():
                file = self.folder / (bundle_path(tile.tile.index) if tile.tile.level == BUNDLES else tile.tile.path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(tile.data)
                if tile.tile.level == BUNDLES:
                    self.leaves += decode_bundle(tile.data)
            tree = execution.state.tree
            if tree.size != (self.sizes or [0])[-1]:
                self.sizes.append(tree.size)
        self.leaves += tree.export().entries
        self.tail = tree.open_tile(BUNDLES)
        self.groups: Groups = recorded(stage)
        self.segments = put(folder / "segments", self.groups)

    def source(self, size: int | None = None, root: bytes | None = None) -> TreeSource:
        size = self.sizes[-1] if size is None else size
        found = root_of([leaf_hash(one) for one in self.leaves[:size]]) if root is None else root
        return TreeSource(Checkpoint(origin_of(CLUSTER), size, found).text, "", self.tail)

    def verify(self, source: TreeSource, tasks: int = 7) -> VerifyResult:
        return verify_log(partial(verify_here, tasks=tasks), path=self.segments, tree=source)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Grown:
    grown = Grown(tmp_path_factory.mktemp("grown"), rich_stage(1, MESSAGES))
    assert len(grown.leaves) > 2 * 256
    return grown


def kinds(result: VerifyResult) -> set[str]:
    return {one.kind for one in result.breaks}


def test_intact_log_agrees_with_every_checkpoint_of_it(grown: Grown) -> None:
    for size in (*grown.sizes[:3], *grown.sizes[40:44], *grown.sizes[-3:]):
        for tasks in (1, 4, 33):
            found = grown.verify(grown.source(size), tasks)
            assert found.breaks == []
            assert f"signed checkpoint of {size:,} entries" in found.told()


def test_worker_processes_find_the_same(grown: Grown) -> None:
    run = partial(verify_in_processes, workers=2, small_cost=0)
    assert verify_log(run, path=grown.segments, tree=grown.source()).breaks == []
    wrong = grown.source(root=bytes(32))
    assert kinds(verify_log(run, path=grown.segments, tree=wrong)) == {"tree"}


@pytest.mark.parametrize("parts_at", [3, 75, MESSAGES - 2])
def test_past_that_a_majority_rewrote_is_found(grown: Grown, tmp_path: Path, parts_at: int) -> None:
    """Every hash and signature of the other story is right."""
    other = Grown(tmp_path, rich_stage(1, MESSAGES, parts_at))
    assert other.verify(other.source()).breaks == []
    assert kinds(other.verify(TreeSource(grown.source().checkpoint, str(grown.folder), grown.tail))) == {"tree"}
    # The attacker also replaced the leaves, but cannot sign another checkpoint.
    mine = TreeSource(grown.source(min(grown.sizes[-1], other.sizes[-1])).checkpoint, "", other.tail)
    assert kinds(other.verify(mine)) == {"tree"}


def test_changed_leaf_leads_to_another_root(grown: Grown, tmp_path: Path) -> None:
    other = Grown(tmp_path, rich_stage(1, MESSAGES))
    file = other.folder / bundle_path(1)
    entries = decode_bundle(file.read_bytes())
    entries[17] = entries[17][:50] + bytes((entries[17][50] ^ 1,)) + entries[17][51:]  # an octet of the writer's key
    file.write_bytes(encode_bundle(entries))
    [found] = other.verify(other.source()).breaks
    assert (found.kind, found.stream, found.offset) == ("tree", "", 0)


def test_pack_that_is_not_the_signed_one_is_named(grown: Grown, tmp_path: Path) -> None:
    """The nodes signed another digest for one pack. Everything else is the same."""
    entries = list(grown.leaves)
    at = next(number for number in range(len(entries) - 1, 0, -1) if isinstance(leaf.decode(entries[number]), PackLeaf))
    signed = leaf.decode(entries[at])
    assert isinstance(signed, PackLeaf)
    entries[at] = leaf.encode(msgspec.structs.replace(signed, digest=bytes(32)))
    root = root_of([leaf_hash(one) for one in entries])
    tail = encode_bundle(entries[len(entries) // 256 * 256 :])
    checkpoint = Checkpoint(origin_of(CLUSTER), len(entries), root)
    found = grown.verify(TreeSource(checkpoint.text, str(grown.folder), tail)).breaks
    assert [(one.kind, one.stream, one.offset) for one in found] == [("tree", signed.stream, signed.first_offset)]


def test_log_without_its_last_messages_lacks_leaves(grown: Grown, tmp_path: Path) -> None:
    short = put(tmp_path / "segments", grown.groups[:100])
    source = TreeSource(grown.source().checkpoint, str(grown.folder), grown.tail)
    found = verify_log(verify_here, path=short, tree=source)
    assert kinds(found) == {"tree"}
    assert all(one.found == "no such message" for one in found.breaks)
    assert min(one.offset for one in found.breaks) > 99


def test_verification_from_a_manifest_needs_only_the_new_leaves(grown: Grown, tmp_path: Path) -> None:
    segments, manifest = put(tmp_path / "segments", grown.groups[:120]), tmp_path / "manifest.json"
    assert verify_log(path=segments, manifest=manifest).breaks == []
    put(tmp_path / "segments", grown.groups)
    source = TreeSource(grown.source().checkpoint, str(grown.folder), grown.tail)
    found = verify_log(path=segments, manifest=manifest, tree=source)
    assert (found.breaks, found.went_on) == ([], True)
    again = verify_log(path=segments, manifest=manifest, tree=source)
    assert (again.breaks, again.rows) == ([], 0)


def test_leaves_that_are_in_no_file_are_named(grown: Grown) -> None:
    with pytest.raises(Missing, match="tile/entries/00"):
        grown.verify(TreeSource(grown.source().checkpoint, "", b""))


def test_subtrees_of_any_split_join_to_the_root() -> None:
    chance = random.Random(1)
    hashes = [leaf_hash(b"%d" % number) for number in range(1000)]
    for _ in range(50):
        size = chance.randint(1, 1000)
        cuts = sorted({0, size, *(chance.randint(0, size) for _ in range(5))})
        parts = [
            Subtree(level, index, root_of(hashes[index << level : (index + 1) << level]))
            for low, high in pairwise(cuts)
            for level, index in aligned(low, high)
        ]
        chance.shuffle(parts)
        assert join_subtrees(size, parts) == root_of(hashes[:size])
        with pytest.raises(Malformed):
            join_subtrees(size, parts[1:])
        with pytest.raises(Malformed):
            join_subtrees(size, [*parts, parts[0]])
    assert join_subtrees(0, []) == EMPTY_ROOT
