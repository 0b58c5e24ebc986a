import pytest

from chaplain.errors import Malformed
from chaplain.proofs import leaf
from chaplain.proofs.leaf import ConfigurationLeaf, PackLeaf

PACK = PackLeaf(3, 42, 1_700_000_000_000_000_000, "orders", 1000, 16, 7, 9, b"k" * 32, b"d" * 32)
CONFIGURATION = ConfigurationLeaf(3, 43, 1_700_000_000_000_000_001, 0, 1, 0, b"k" * 32, b"d" * 32)


@pytest.mark.parametrize("one", [PACK, CONFIGURATION])
def test_encoded_leaves_decode_to_themselves(one):
    octets = leaf.encode(one)
    assert leaf.decode(octets) == one
    for wrong in (octets[:-1], octets + b"\0", octets[:20], b""):
        with pytest.raises(Malformed, match="leaf"):
            leaf.decode(wrong)


def test_salted_groups_are_reserved_and_refused():
    octets = leaf.encode(PACK)
    with pytest.raises(Malformed, match="salted groups, is reserved"):
        leaf.decode(octets[:1] + b"\3" + octets[2:])


@pytest.mark.parametrize(
    ("at", "to", "reason"), [(0, 2, "version 2"), (1, 0, "kind 0"), (1, 4, "kind 4"), (107, 32, "ASCII")]
)
def test_unknown_octets_are_refused(at, to, reason):
    octets = bytearray(leaf.encode(PACK))
    octets[at] = to
    with pytest.raises(Malformed, match=reason):
        leaf.decode(bytes(octets))


@pytest.mark.parametrize(
    "wrong",
    [
        PackLeaf(3, 42, 0, "", 0, 1, 1, 1, b"k" * 32, b"d" * 32),
        PackLeaf(3, 42, 0, "s" * 256, 0, 1, 1, 1, b"k" * 32, b"d" * 32),
        PackLeaf(3, 42, 0, "sträm", 0, 1, 1, 1, b"k" * 32, b"d" * 32),
        PackLeaf(3, 42, 0, "s", 0, 0, 1, 1, b"k" * 32, b"d" * 32),
        PackLeaf(3, 42, 0, "s", (1 << 64) - 1, 1, 1, 1, b"k" * 32, b"d" * 32),
        PackLeaf(3, 42, 0, "s", 0, 1, 0, 1, b"k" * 32, b"d" * 32),
        PackLeaf(3, 42, 0, "s", 0, 1, 1, 1, b"k" * 31, b"d" * 32),
        PackLeaf(1 << 32, 42, 0, "s", 0, 1, 1, 1, b"k" * 32, b"d" * 32),
    ],
)
def test_impossible_leaves_are_not_encoded(wrong):
    with pytest.raises(ValueError, match="leaf"):
        leaf.encode(wrong)


def test_leaf_of_execution_has_the_octets_of_the_checked_one():
    place = (PACK.regime, PACK.message, PACK.timestamp_ns, PACK.stream, PACK.first_offset, PACK.count)
    made = leaf.encode_pack(place, (PACK.client_id, PACK.first_id), PACK.key, PACK.digest)
    assert made == leaf.encode(PACK)
