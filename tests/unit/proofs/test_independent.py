"""Other implementations agree with ours on the same trees, notes and proof files.

pymerkle builds and proves trees as RFC 9162 describes them. sigstore reads signed checkpoints and checks inclusion in
the log of Rekor. cryptography (OpenSSL) checks signatures that PyNaCl (libsodium) made.
"""

from base64 import b64decode, b64encode
from random import Random
from types import SimpleNamespace

import pymerkle
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from sigstore._internal.merkle import verify_merkle_inclusion
from sigstore._internal.rekor.checkpoint import SignedCheckpoint
from sigstore._internal.trust import Keyring
from sigstore.errors import VerificationError
from sigstore_models.common.v1 import PublicKey, PublicKeyDetails

from chaplain.proofs import cosignature, merkle, note, proof
from tests.support.proof_log import ProofLog, a_policy, node_keys, node_seed

SIZES = (1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 64, 100, 127, 128, 129, 200)


@pytest.fixture(scope="module")
def theirs():
    tree = pymerkle.InmemoryTree(algorithm="sha256")
    for number in range(SIZES[-1]):
        tree.append_entry(b"%d" % number)
    return tree


LEAVES = [merkle.leaf_hash(b"%d" % number) for number in range(SIZES[-1])]
NODE = merkle.nodes_of(LEAVES)


def test_roots_are_the_same_for_every_size(theirs):
    edge = merkle.RightEdge()
    for size in range(1, SIZES[-1] + 1):
        edge.append(LEAVES[size - 1])
        assert theirs.get_root(size) == edge.root()


@pytest.mark.parametrize("size", SIZES)
def test_inclusion_proofs_are_the_same_for_every_leaf(theirs, size):
    root = merkle.root_at(size, NODE)
    for index in range(size):
        made = theirs.prove_inclusion(index + 1, size)  # it counts leaves from 1, and its path begins with the leaf
        ours = merkle.inclusion_proof(index, size, NODE)
        assert made.path == [LEAVES[index], *ours]
        pymerkle.verify_inclusion(LEAVES[index], root, made, index=index + 1, size=size)
        if ours:
            made.path = [LEAVES[index], *ours[:-1], bytes(32)]
            with pytest.raises(pymerkle.InvalidProof):
                pymerkle.verify_inclusion(LEAVES[index], root, made)
            assert not merkle.is_included(LEAVES[index], index, size, root, made.path[1:])


@pytest.mark.parametrize("size", SIZES)
def test_consistency_is_proven_between_the_same_roots(theirs, size):
    root = merkle.root_at(size, NODE)
    for old in range(1, size + 1):
        old_root = merkle.root_at(old, NODE)
        made = theirs.prove_consistency(old, size)
        pymerkle.verify_consistency(old_root, root, made, prior_size=old, later_size=size)
        # Its proofs have a form of their own; the claim is the same.
        assert merkle.is_extension(old, old_root, size, root, merkle.consistency_proof(old, size, NODE))
        with pytest.raises(pymerkle.InvalidProof):
            pymerkle.verify_consistency(merkle.node_hash(old_root, old_root), root, made)


def a_key(seed):
    key = Ed25519PrivateKey.from_private_bytes(seed).public_key()
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return Keyring([PublicKey(raw_bytes=b64encode(der), key_details=PublicKeyDetails.PKIX_ED25519)])


def test_sigstore_reads_and_checks_our_proof_files():
    """From the text of the file alone, with the leaf from its `extra` line."""
    log, draw = ProofLog(), Random(3)
    for number in range(150):
        log.write("orders", [b"%d" % number, b"apples"])
    for offset in draw.sample(range(300), 20):
        made = log.prove("orders", offset)
        heading, _, signed = made.text.partition("\n\n")
        _, extra, index, *hashes = heading.split("\n")
        octets = b64decode(extra.removeprefix("extra "))
        found = SignedCheckpoint.from_text(signed)
        for seed, right in ((node_seed(1), True), (node_seed(2), False)):
            key_id = note.VerifierKey(found.checkpoint.origin, 1, note.signer_of(node_seed(1))[0]).id
            if right:
                found.signed_note.verify(a_key(seed), key_id)
            else:
                with pytest.raises(VerificationError):
                    found.signed_note.verify(a_key(seed), key_id)
        assert found.checkpoint.log_size == 150
        entry = SimpleNamespace(
            inclusion_proof=SimpleNamespace(
                log_index=int(index.removeprefix("index ")),
                tree_size=found.checkpoint.log_size,
                hashes=[b64decode(one) for one in hashes],
                root_hash=bytes.fromhex(found.checkpoint.log_hash),
            ),
            canonicalized_body=octets[3 : 3 + int.from_bytes(octets[1:3], "big")],
        )
        verify_merkle_inclusion(SimpleNamespace(_inner=entry))
        assert b"orders" in entry.canonicalized_body
        proof.check(proof.parse(made.text.encode()), a_policy())
        entry.inclusion_proof.log_index ^= 1
        with pytest.raises(VerificationError):
            verify_merkle_inclusion(SimpleNamespace(_inner=entry))


def test_openssl_and_libsodium_verify_signatures_of_each_other():
    key, signer = note.signer_of(node_seed(1))
    assert key == node_keys()[1]
    openssl = Ed25519PrivateKey.from_private_bytes(node_seed(1))
    assert openssl.public_key().public_bytes_raw() == key
    text = "origin\n7\nAAAA\n"
    signed = note.sign(text, "a.example", key, signer)
    cosigned = cosignature.sign(text, "a.example", key, signer, 1_679_315_147)
    octets = f"cosignature/v1\ntime 1679315147\n{text}".encode()
    assert openssl.sign(text.encode()) == signed.octets
    assert openssl.sign(octets) == cosigned.octets[8:]
    Ed25519PublicKey.from_public_bytes(key).verify(cosigned.octets[8:], octets)
    with pytest.raises(InvalidSignature):
        Ed25519PublicKey.from_public_bytes(key).verify(cosigned.octets[8:], octets + b"\n")
    by_openssl = note.Signature("a.example", signed.key_id, openssl.sign(text.encode()))
    assert note.holds(note.VerifierKey("a.example", 1, key), text, by_openssl)
