"""Files and requests of strangers: proofs, policies, notes, checkpoints, tiles, leaves and requests to a witness."""

from __future__ import annotations

from chaplain.errors import Malformed, Unproven
from chaplain.proofs import checkpoint, groups, leaf, merkle, note, policy, proof, tiles, witness
from tests.support.proof_log import CLUSTER, ProofLog, a_policy, node_keys
from tests.unit.proofs.second_checker import check_twice

LOG = ProofLog()
for number in range(5):
    LOG.write("orders", [b"12 apples", b""], keys=[b"k", None] if number % 2 else None, requests=[2])
SIGNED = LOG.signed()
PROOF = LOG.prove("orders", 5)
POLICY = a_policy()
POLICY_TEXT = policy.cluster_policy(CLUSTER, node_keys()).rpartition("# seal")[0].encode()
EXTRA = proof._encode_extra(PROOF)
EDGE = tiles.TileEdge()
EDGE.extend([bytes(32)] * 300)
RIGHT_EDGE = merkle.RightEdge()
RIGHT_EDGE.extend([bytes(32)] * 7)

SEEDS = {
    "target_proof": [PROOF.text.encode(), LOG.prove("orders", 2).text.encode()],
    "target_sealed_proof": [EXTRA],
    "target_extra_for_both_checkers": [EXTRA],
    "target_path_and_checkpoint_for_both_checkers": [PROOF.text.split("\n", 2)[2].encode()],
    "target_policy_for_both_checkers": [POLICY_TEXT],
    "target_policy": [policy.cluster_policy(CLUSTER, node_keys()).encode(), POLICY_TEXT],
    "target_note": [SIGNED.text.encode()],
    "target_checkpoint": [SIGNED.text.encode()],
    "target_verifier_key": [key.text().encode() for key in POLICY.logs],
    "target_leaf": [
        LOG.leaves[0],
        leaf.encode(leaf.ConfigurationLeaf(1, 1, 1, 0, 1, 0, bytes(32), bytes(32))),
    ],
    "target_group": [PROOF.part.group],
    "target_pack": [b"\2\1" + b"\3\0\0\0" + b"\1\0\0\0" + b"abcd", b"\1\3" + b"\1\0\0\0" + b"\xff" * 8 + b"a"],
    "target_edges": [EDGE.encode(), RIGHT_EDGE.encode()],
    "target_tile_path": [b"tile/0/x001/234.p/7", b"tile/entries/000"],
    "target_bundle": [b"\3" + tiles.encode_bundle([b"a", b"", b"bcd"])],
    "target_witness": [witness.AddCheckpoint(2, (bytes(32),), SIGNED).encode().encode()],
}


def target_proof(data: bytes) -> None:
    try:
        found = proof.parse(data)
    except Malformed:
        return
    assert found.text.encode() == data
    _check(found)


def target_sealed_proof(data: bytes) -> None:
    """Chaplain's part of a proof, under a right hash over the file."""
    rest = PROOF.text.split("\n", 2)[2]
    extra = note.to_base64(data + proof._seal(data, rest))
    target_proof(f"{proof.FIRST_LINE}\nextra {extra}\n{rest}".encode())


def _check(found: proof.Proof) -> None:
    try:
        proven = proof.check(found, POLICY)
    except (Malformed, Unproven):
        return
    assert proven.value in (b"12 apples", b"")


def target_extra_for_both_checkers(data: bytes) -> None:
    """`tools/check_proof.py` and chaplain accept the same files."""
    rest = PROOF.text.split("\n", 2)[2]
    _check_twice(data, rest, POLICY_TEXT)


def target_path_and_checkpoint_for_both_checkers(data: bytes) -> None:
    try:
        _check_twice(EXTRA, data.decode(), POLICY_TEXT)
    except UnicodeDecodeError:
        return


def target_policy_for_both_checkers(data: bytes) -> None:
    _check_twice(EXTRA, PROOF.text.split("\n", 2)[2], data)


def _check_twice(extra: bytes, rest: str, policy_data: bytes) -> None:
    sealed = note.to_base64(extra + proof._seal(extra, rest))
    try:
        check_twice(f"{proof.FIRST_LINE}\nextra {sealed}\n{rest}".encode(), policy_data)
    except (Malformed, Unproven):
        return


def target_policy(data: bytes) -> None:
    try:
        found = policy.parse(data)
        policy.check(found, SIGNED)
    except (Malformed, Unproven):
        return


def target_note(data: bytes) -> None:
    try:
        found = note.parse(data)
    except Malformed:
        return
    assert found.encode().encode() == data


def target_checkpoint(data: bytes) -> None:
    try:
        found = checkpoint.parse(data)
        assert found.text.encode() == data
        policy.check(POLICY, found)
    except (Malformed, Unproven):
        return
    assert found.checkpoint == SIGNED.checkpoint


def target_verifier_key(data: bytes) -> None:
    try:
        text = data.decode("utf-8", "surrogateescape")
        found = note.parse_key(text)
    except Malformed:
        return
    assert found.text() == text


def target_leaf(data: bytes) -> None:
    try:
        found = leaf.decode(data)
    except Malformed:
        return
    assert leaf.encode(found) == data


def target_group(data: bytes) -> None:
    for columns in range(4):
        try:
            groups.decode_group(data, bool(columns & 1), bool(columns & 2))
        except Malformed:
            continue


def target_pack(data: bytes) -> None:
    if len(data) < 2:
        return
    count, columns = data[0], data[1] % 5
    table = 4 * count * columns
    try:
        found = groups.PackGroups(data[2 : 2 + table], data[2 + table :], count, columns, bool(data[1] & 8))
    except Malformed:
        return
    root, hashes = found.root(), found.hashes()
    for group in range(len(found)):
        assert merkle.is_included(hashes[group], group, len(found), root, found.path(group))


def target_edges(data: bytes) -> None:
    for kind in (tiles.TileEdge, merkle.RightEdge):
        try:
            found = kind.decode(data)
        except Malformed:
            continue
        assert found.encode() == data
        found.root()


def target_tile_path(data: bytes) -> None:
    try:
        text = data.decode("latin-1")
        found = tiles.parse_path(text)
    except Malformed:
        return
    path = tiles.bundle_path(found.index, found.width) if found.level < 0 else found.path
    assert path == text


def target_bundle(data: bytes) -> None:
    width = data[0] if data else 1
    try:
        found = tiles.decode_bundle(data[1:], width)
    except Malformed:
        return
    assert not found or tiles.encode_bundle(found) == data[1:]


def target_witness(data: bytes) -> None:
    try:
        found = witness.parse(data)
    except Malformed:
        return
    assert found.encode().encode() == data
    asked = witness.Witness(POLICY, note.SecretKey("w", b"s" * 32, note.COSIGNATURE))
    answer = asked.check(found) or asked.answer(found, None, 1)
    assert answer.stored is None or found.old_size == 0
