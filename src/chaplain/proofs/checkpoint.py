"""Checkpoints (C2SP tlog-checkpoint): origin, size and root of a tree, as a note that nodes and witnesses sign.

The origin contains the name of the cluster. Each node signs twice with its own key. It signs as the log, under the name
of the origin, for tools that expect a signature of the log. It also signs as a cosigner, under a name that ends in its
id. A checkpoint is complete with the cosignatures of enough nodes; `policy` decides how many are enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.proofs import cosignature, note
from chaplain.proofs.merkle import HASH_BYTES, SIZE_MAX
from chaplain.proofs.note import COSIGNATURE, ED25519, Note, Signature, Signer, VerifierKey

ORIGIN_START = "chaplain/"
ORIGIN_BYTES_MAX = 1024
_ESCAPED = re.compile(r"[%+/]")
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


def origin_of(cluster: str) -> str:
    """Return the origin of a cluster's checkpoints. Two clusters never have the same one."""
    return ORIGIN_START + _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", cluster)


def cluster_of(origin: str) -> str:
    """Return the cluster of an origin."""
    escaped = origin.removeprefix(ORIGIN_START)
    cluster = re.sub(r"%(25|2B|2F)", lambda found: chr(int(found[1], 16)), escaped)
    if origin_of(cluster) != origin or not cluster:
        raise Malformed(f"{origin[:80]!r} is not the origin of a cluster")
    return cluster


def log_key(cluster: str, key: bytes) -> VerifierKey:
    """Return the key with which a node signs as the log."""
    return VerifierKey(origin_of(cluster), ED25519, key)


def node_key(cluster: str, node: int, key: bytes) -> VerifierKey:
    """Return the key with which this node cosigns."""
    return VerifierKey(f"{origin_of(cluster)}/{node}", COSIGNATURE, key)


class Checkpoint(Frozen, frozen=True):
    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """The text that is signed."""
        return f"{self.origin}\n{self.size}\n{note.to_base64(self.root)}\n"


def parse_text(text: str) -> Checkpoint:
    """Read the text of a checkpoint: three lines. Extension lines are refused, because no tool could audit them."""
    lines = text.split("\n")
    if len(lines) != 4 or lines[3] or not lines[0] or len(lines[0].encode()) > ORIGIN_BYTES_MAX:
        raise Malformed("checkpoint: three lines wanted, with origin, size and root")
    size = parse_number(lines[1], "checkpoint: size")
    root = note.from_base64(lines[2], "checkpoint: root")
    if len(root) != HASH_BYTES:
        raise Malformed(f"checkpoint: a root has {HASH_BYTES} octets, not {len(root)}")
    return Checkpoint(lines[0], size, root)


def parse_number(text: str, what: str) -> int:
    """Read a decimal number of at most 63 bits, without leading zeros."""
    if not _DECIMAL.fullmatch(text) or int(text) > SIZE_MAX:
        raise Malformed(f"{what}: a decimal number wanted, not {text[:40]!r}")
    return int(text)


class SignedCheckpoint(Frozen, frozen=True):
    checkpoint: Checkpoint
    signatures: tuple[Signature, ...]

    @property
    def text(self) -> str:
        """The whole note, as files contain it."""
        return Note(self.checkpoint.text, self.signatures).encode()

    def __repr__(self) -> str:
        names = [signature.name for signature in self.signatures]
        return f"SignedCheckpoint({self.checkpoint.origin!r}, size={self.checkpoint.size}, signers={names})"


def parse(data: bytes) -> SignedCheckpoint:
    """Read a signed checkpoint. Its signatures are not checked; `policy.check` does that."""
    found = note.parse(data)
    return SignedCheckpoint(parse_text(found.text), found.signatures)


def sign(checkpoint: Checkpoint, node: int, key: bytes, signer: Signer, time_s: int) -> tuple[Signature, Signature]:
    """Return a node's two signatures: as the log, and as a cosigner. The caller makes sure that the node never signs
    two roots for one size, and that the checkpoint extends all that it signed before.
    """
    cosigner = node_key(cluster_of(checkpoint.origin), node, key)
    as_log = note.sign(checkpoint.text, checkpoint.origin, key, signer)
    return as_log, cosignature.sign(checkpoint.text, cosigner.name, key, signer, time_s)


def assemble(checkpoint: Checkpoint, by_node: Mapping[int, tuple[Signature, Signature]]) -> SignedCheckpoint:
    """Return the checkpoint with the cosignatures of these nodes, and the signature as the log of the first."""
    nodes = sorted(by_node)
    if not nodes:
        raise ValueError("a signed checkpoint has at least one signature")
    return SignedCheckpoint(checkpoint, (by_node[nodes[0]][0], *(by_node[node][1] for node in nodes)))


def with_signatures(signed: SignedCheckpoint, more: Iterable[Signature]) -> SignedCheckpoint:
    """Add signatures, of witnesses for example. The first signature of each key stays."""
    found: dict[tuple[str, bytes], Signature] = {}
    for one in (*signed.signatures, *more):
        found.setdefault((one.name, one.key_id), one)
    return SignedCheckpoint(signed.checkpoint, tuple(found.values()))


def holds(key: VerifierKey, checkpoint: Checkpoint, signature: Signature) -> bool:
    """Return whether this line is a valid signature of this key over the checkpoint."""
    check = cosignature.holds if key.algorithm == COSIGNATURE else note.holds
    return check(key, checkpoint.text, signature)
