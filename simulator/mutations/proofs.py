"""Planted bugs in proofs: in the trees, in the checks of proofs and policies, and in the witness."""

from __future__ import annotations

from simulator.mutate import Bug, caught_by_tests

PROOF = "unit/proofs/test_proof.py"
POLICY = "unit/proofs/test_policy.py"
WITNESS = "unit/proofs/test_witness.py"


def _bug(name: str, module: str, old: str, new: str, file: str, *words: str) -> Bug:
    return caught_by_tests(name, f"proofs.{module}", old, new, file, *words)


BUGS = [
    _bug(
        "a consistency proof is believed for the new root alone",
        "merkle",
        "return not last and old_found == old_root and new_found == new_root",
        "return not last and new_found == new_root",
        "unit/proofs/test_merkle.py",
    ),
    _bug(
        "a full tile is hashed into the wrong place",
        "tiles",
        "index = (self.size - 1) >> (level + 1) * TILE_HEIGHT",
        "index = (self.size - 1) >> TILE_HEIGHT",
        "unit/proofs/test_tiles.py",
    ),
    _bug(
        "a group does not name its place",
        "groups",
        "(start_of(0, first, end - first), sizes",
        "(start_of(0, 0, end - first), sizes",
        "unit/proofs/test_groups.py",
    ),
    _bug(
        "a group grows beyond 1 KiB",
        "groups",
        "        start = end if end > start else start + 1\n",
        "        start = min(end + 1, last)\n",
        "unit/proofs/test_groups.py",
    ),
    _bug(
        "the author's signature is not checked",
        "proof",
        "    if not note.verifies(leaf.key, content, part.signature):",
        "    if not content:",
        PROOF,
        "author",
    ),
    _bug(
        "the pack of a proof is not checked",
        "proof",
        "    if pack_digest_from(part.head, part.requests_digest, root) != leaf.digest:",
        "    if not root:",
        PROOF,
        "another_pack",
        "flipped_bit_of_a_claim",
    ),
    _bug(
        "the leaf of a proof is not checked",
        "proof",
        "    if not merkle.is_included(hashed, proof.index, tree.size, tree.root, proof.path):",
        "    if not hashed:",
        PROOF,
        "other_trees",
    ),
    _bug(
        "the seal of a proof is not checked",
        "proof",
        "    if _seal(octets, rest) != seal:",
        "    if not seal:",
        PROOF,
        "ten_proofs",
    ),
    _bug(
        "a wrong signature of a known key is ignored",
        "policy",
        "    if not all(checkpoints.holds(key, signed.checkpoint, line) for line in lines):",
        "    lines = [line for line in lines if checkpoints.holds(key, signed.checkpoint, line)]\n    if not key:",
        POLICY,
    ),
    _bug(
        "signatures are counted instead of keys",
        "policy",
        "    witnesses = [name for name, key in policy.witnesses if _signed_by(key, signed)]",
        "    witnesses = [name for name, key in policy.witnesses if _signed_by(key, signed)] * len(signed.signatures)",
        POLICY,
    ),
    _bug(
        "the seal of a policy is not checked",
        "policy",
        '            if not text.endswith(f"\\n{line}\\n") or line != _seal(before):',
        '            if not text.endswith(f"\\n{line}\\n"):',
        POLICY,
    ),
    _bug(
        "a checkpoint of another log is accepted",
        "policy",
        "    if all(key.name != origin for key in policy.logs):",
        "    if not policy.logs:",
        PROOF,
        "another_cluster",
        "another_name",
    ),
    _bug(
        "a witness forgets the root that it signed",
        "witness",
        "(last.checkpoint.size, last.checkpoint.root) if last is not None",
        "(last.checkpoint.size, EMPTY_ROOT) if last is not None and not last.checkpoint.size",
        WITNESS,
    ),
    _bug(
        "a witness does not check that the log was extended",
        "witness",
        "        if not merkle.is_extension(last_size, last_root, tree.size, tree.root, request.path):",
        "        if last_size == tree.size and last_root != tree.root:",
        WITNESS,
    ),
    _bug(
        "a witness signs what one node signed",
        "witness",
        "            policy.check(self._policy, request.signed, assumed=self._secret.verifier)",
        "            policy.signers_of(self._policy, request.signed)",
        WITNESS,
    ),
    caught_by_tests(
        "a witness answers before the checkpoint is on disk",
        "runtime.http.witness_server",
        "                    self._store.put(found.stored)\n",
        "                    threading.Thread(target=self._store.put, args=(found.stored,)).start()\n",
        "unit/runtime/test_witness_server.py",
    ),
    caught_by_tests(
        "two requests pass the witness at once",
        "runtime.http.witness_server",
        "            with self._lock:\n",
        "            with threading.Lock():\n",
        "unit/runtime/test_witness_server.py",
    ),
]
