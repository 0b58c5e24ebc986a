"""Making proofs: the search for a leaf, and the parts that belong together."""

from __future__ import annotations

import pickle
import random

import pytest

from chaplain.client.api import proof_calls
from chaplain.client.api.proof_calls import FoundPack, LeafSearch
from chaplain.client.types.journal import Receipt, ReceiptOrigin
from chaplain.client.types.receipts import ReceiptPlace, ReceiptSequence
from chaplain.errors import Missing, Misused, Unproven
from chaplain.proofs import leaf as leaves
from chaplain.proofs.checkpoint import Checkpoint, SignedCheckpoint, origin_of
from chaplain.proofs.leaf import PackLeaf
from chaplain.proofs.merkle import leaf_hash, root_of
from chaplain.proofs.tiles import encode_bundle, encode_tile, parse_path
from chaplain.segment.pack import Pack, encode_pack, stated_digest


def leaf(message: int, stream: str, offset: int, digest: bytes = bytes(32)) -> PackLeaf:
    return PackLeaf(1, message, message, stream, offset, 1, 1, 1, bytes(32), digest)


def search(found: list[PackLeaf], wanted: PackLeaf) -> tuple[LeafSearch, int]:
    """Serves bundles until the search ends. Returns the search, and how many bundles it looked at."""
    looking = LeafSearch(FoundPack(b"", wanted.first_offset, wanted.message), wanted.stream, len(found))
    count = 0
    while (name := looking.next_bundle()) is not None:
        tile = parse_path(name)
        part = found[256 * tile.index :][: tile.width]
        looking.take(encode_bundle([leaves.encode(one) for one in part]))
        count += 1
        assert count < 100
    return looking, count


@pytest.mark.parametrize("seed", range(12))
def test_every_leaf_is_found_however_messages_share_bundles(seed):
    rng = random.Random(seed)
    found: list[PackLeaf] = []
    heads: dict[str, int] = {}
    message = 0
    most = rng.choice((1, 3, 700))
    while len(found) < rng.choice((1, 255, 256, 257, 1500)):
        message += rng.randrange(1, 4)
        for _ in range(rng.randrange(1, most + 1)):
            stream = rng.choice(("a", "b", "c"))
            found.append(leaf(message, stream, heads.get(stream, 0)))
            heads[stream] = heads.get(stream, 0) + 1
    for at in {0, len(found) - 1, *(rng.randrange(len(found)) for _ in range(40))}:
        looking, _ = search(found, found[at])
        assert looking.result() == (at, found[at])
    with pytest.raises(Missing):
        search(found, leaf(message, "other", 0))[0].result()


def test_search_looks_at_few_bundles():
    found = [leaf(number + 1, "a", number) for number in range(50_000)]
    assert max(search(found, found[at])[1] for at in (0, 1, 25_000, 49_998, 49_999)) <= 10


def test_proof_is_returned_only_if_its_parts_belong_together():
    raw = encode_pack(Pack(1, 1, (b"value",), signature_type=1, signature=bytes(64)))
    entries = [leaf(number, "a", number - 1, stated_digest(raw)) for number in range(1, 301)]
    hashes = [leaf_hash(leaves.encode(one)) for one in entries]
    signed = SignedCheckpoint(Checkpoint(origin_of("c"), 300, root_of(hashes)), ())
    tiles = {}
    for tile in proof_calls.tiles_needed(7, 300):
        level = hashes if not tile.level else [root_of(hashes[:256])]
        tiles[tile] = encode_tile(level[256 * tile.index :][: tile.width])
    pack, at = FoundPack(raw, 7, 8), (7, entries[7])
    assert proof_calls.assemble(pack, at, 7, signed, tiles).value == b"value"
    with pytest.raises(Unproven, match="tiles"):
        proof_calls.assemble(pack, (8, entries[7]), 7, signed, tiles)
    wrong = {tile: bytes(len(data)) for tile, data in tiles.items()}
    with pytest.raises(Unproven, match="tiles"):
        proof_calls.assemble(pack, at, 7, signed, wrong)
    other = encode_pack(Pack(1, 1, (b"other",), signature_type=1, signature=bytes(64)))
    with pytest.raises(Unproven, match="pack"):
        proof_calls.assemble(FoundPack(other, 7, 8), at, 7, signed, tiles)


def test_receipts_know_their_client_and_are_compared_without_it():
    receipts = ReceiptSequence(ReceiptPlace(1, 1, 2, "a", 10, 2, 5, 1, 7, bytes(32)))
    asked = []
    known = receipts.from_client(ReceiptOrigin(lambda stream, offset: asked.append((stream, offset))))
    assert known == receipts
    assert [*known] == [*receipts]
    for receipt in (known[1], [*known][1]):
        receipt.prove()
        assert asked.pop() == ("a", 11)
        assert "origin" not in repr(receipt)
        assert "origin" not in dict(receipt)
        assert pickle.loads(pickle.dumps(receipt)) == receipt
        assert hash(receipt) == hash(receipts[1])
    with pytest.raises(Misused, match=r"client\.prove"):
        receipts[0].prove()
    assert isinstance(receipts[0], Receipt)
