"""A log that exists only as leaves: packs of one writer, the tree over them, and nodes that sign its checkpoints."""

from __future__ import annotations

import struct
from hashlib import sha256

from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import leaf as leaves
from chaplain.proofs import merkle, note, policy, proof
from chaplain.proofs.checkpoint import Checkpoint, SignedCheckpoint
from chaplain.proofs.groups import PackGroups, pack_digest
from chaplain.proofs.leaf import PackLeaf

CLUSTER = "demo-1f2e3d4c"
WRITER_SEED = b"w" * 32
TIME_S = 1_700_000_000


def node_seed(node: int) -> bytes:
    return sha256(b"node %d" % node).digest()


def node_keys(count: int = 3) -> dict[int, bytes]:
    return {node: note.signer_of(node_seed(node))[0] for node in range(1, count + 1)}


def a_policy(nodes: int = 3, cluster: str = CLUSTER, enough: int | None = None) -> policy.Policy:
    return policy.parse(policy.cluster_policy(cluster, node_keys(nodes), enough).encode())


class ProofLog:
    """Packs in their order. Every pack is of client 1, and of the stream that is given."""

    def __init__(self, cluster: str = CLUSTER) -> None:
        self.cluster = cluster
        self.leaves: list[bytes] = []
        self._packs: list[tuple[PackLeaf, tuple[bytes, bytes, bytes], PackGroups]] = []
        self._next: dict[str, int] = {}
        self._node = None

    def write(
        self,
        stream: str,
        values: list[bytes],
        *,
        keys: list[bytes | None] | None = None,
        requests: list[int] | None = None,
        signature_type: int = 1,
        isolated: bool = False,
    ) -> int:
        """Append one pack. Returns its first offset."""
        key, sign = note.signer_of(WRITER_SEED)
        columns = [values, *([keys] if keys is not None else [])]
        cells = [cell for column in columns for cell in column]
        sizes = b"".join(struct.pack("<I", 0xFFFFFFFF if cell is None else len(cell)) for cell in cells)
        data = b"".join(cell or b"" for cell in cells)
        table = struct.pack(f"<{len(requests)}I", *requests) if requests else b""
        number, count = len(self._packs) + 1, len(values)
        bits = (1 if keys is not None else 0) | (4 if requests else 0) | (8 if isolated else 0)
        slot = 64 if signature_type == 1 else 32
        shape = (count, 1, number, len(requests) if requests else count, 2, 0, signature_type, bits, slot, 0, 0)
        head = struct.pack("<IIIIIBBBBHHI", 64 + slot + len(table + sizes + data) + 7 & -8, *shape)
        groups = PackGroups(sizes, data, count, len(columns), isolated)
        digest = pack_digest(head, table, groups.root())
        first = self._next.get(stream, 0)
        self._next[stream] = first + count
        leaf = PackLeaf(1, number, TIME_S * 10**9 + number, stream, first, count, 1, number, key, digest)
        names = b"".join(bytes((len(one),)) + one.encode() for one in (self.cluster, stream))
        signature = sign(b"chaplain request 1\0" + names + digest) if signature_type == 1 else bytes(32)
        self._packs.append((leaf, (head, table, signature), groups))
        self.leaves.append(leaves.encode(leaf))
        self._node = None
        return first

    def node(self):
        """Subtree hashes of the whole log."""
        if self._node is None:
            self._node = merkle.nodes_of([merkle.leaf_hash(one) for one in self.leaves])
        return self._node

    def checkpoint(self, size: int | None = None) -> Checkpoint:
        size = len(self.leaves) if size is None else size
        root = merkle.root_of([merkle.leaf_hash(one) for one in self.leaves[:size]])
        return Checkpoint(checkpoints.origin_of(self.cluster), size, root)

    def signed(self, nodes=(1, 2), size: int | None = None) -> SignedCheckpoint:
        return sign(self.checkpoint(size), nodes)

    def prove(self, stream: str, offset: int, signed: SignedCheckpoint | None = None) -> proof.Proof:
        signed = signed or self.signed()
        [(index, (leaf, (head, requests, signature), groups))] = [
            (index, one)
            for index, one in enumerate(self._packs)
            if one[0].stream == stream and one[0].first_offset <= offset < one[0].first_offset + one[0].count
        ]
        path = merkle.inclusion_proof(index, signed.checkpoint.size, self.node())
        pack = {"head": head, "requests": requests, "signature": signature, "groups": groups}
        return proof.build(leaf, offset, **pack, index=index, path=path, signed=signed)


def sign(checkpoint: Checkpoint, nodes=(1, 2)) -> SignedCheckpoint:
    by_node = {}
    for node in nodes:
        key, signer = note.signer_of(node_seed(node))
        by_node[node] = checkpoints.sign(checkpoint, node, key, signer, TIME_S + node)
    return checkpoints.assemble(checkpoint, by_node)
