"""Proof files (C2SP tlog-proof): one message of one stream, provable to anybody who trusts a policy.

A proof contains, from the message up:

1. the octets of the message's group, and the path from the group to the root of its pack;

2. the pack's head, from which the pack's digest follows together with that root;

3. the author's signature of that digest;

4. the leaf of the log's tree, which contains the digest and the pack's stream and offsets;

5. the path from the leaf to the root of a checkpoint, and the checkpoint with its signatures.

`check` computes every hash again and trusts none of them.

`parse` accepts exactly one encoding of each proof. It first checks a hash over the whole file, so that damage is
reported as damage. That hash does not protect against an attacker; the signatures and the trees do.

Byte table: docs/protocol/proofs.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from chaplain.core import Frozen
from chaplain.errors import Malformed, Unproven
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import leaf as leaves
from chaplain.proofs import merkle, note, policy
from chaplain.proofs.checkpoint import SignedCheckpoint
from chaplain.proofs.groups import HEAD_BYTES, MessageGroup, PackGroups, decode_group, pack_digest_from
from chaplain.proofs.leaf import LEAF_BYTES_MAX, PackLeaf
from chaplain.proofs.merkle import HASH_BYTES, PROOF_HASHES_MAX
from chaplain.proofs.policy import Policy, Signers

PROOF_BYTES_MAX = 64 << 20
"""Enough for every message that a cluster with the standard settings accepts."""
FIRST_LINE = "c2sp.org/tlog-proof@v1"
VERSION = 1
PACK_PROTOCOL = 2
KEYS = 1
HEADERS = 2
REQUESTS = 4
COLUMNS = 31
ED25519 = 1
"""The signature type of packs that prove their author to third parties."""
_REQUEST_LABEL = b"chaplain request 1\0"
_SEAL_LABEL = b"chaplain proof 1\0"
_SEAL_BYTES = 8
_HEAD = struct.Struct("<IIIIIBBBBHHI")
_U32 = 4
assert _HEAD.size == HEAD_BYTES


class PackPart(Frozen, frozen=True):
    """The octets of a pack that contain the message and determine the pack's digest."""

    head: bytes
    """The first 32 octets of the pack."""
    requests_digest: bytes
    """SHA-256 of the table of requests; empty if the pack has none."""
    signature: bytes
    """The author's Ed25519 signature; empty if the pack has a code of another type."""
    group_index: int
    groups: int
    group_path: tuple[bytes, ...]
    group: bytes


class Proof(Frozen, frozen=True):
    """A proof of the message at `offset` of a stream."""

    offset: int
    leaf: PackLeaf
    part: PackPart
    index: int
    """Of the leaf in the log's tree."""
    path: tuple[bytes, ...]
    checkpoint: SignedCheckpoint

    def __repr__(self) -> str:
        return f"Proof({self.stream!r}, offset={self.offset}, size={self.size})"

    @property
    def stream(self) -> str:
        return self.leaf.stream

    @property
    def cluster(self) -> str:
        return checkpoints.cluster_of(self.checkpoint.checkpoint.origin)

    @property
    def text(self) -> str:
        """The content of a proof file."""
        rest = self._after_extra()
        extra = _encode_extra(self)
        seal = _seal(extra, rest)
        return f"{FIRST_LINE}\nextra {note.to_base64(extra + seal)}\n{rest}"

    def _after_extra(self) -> str:
        hashes = "".join(f"{note.to_base64(one)}\n" for one in self.path)
        return f"index {self.index}\n{hashes}\n{self.checkpoint.text}"

    @property
    def size(self) -> int:
        """The octets of the file."""
        return len(self.text.encode())

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.text, encoding="utf-8")

    @property
    def key(self) -> bytes | None:
        """The message's key."""
        return self._cell(self._group().keys)

    @property
    def value(self) -> bytes:
        """The message's value."""
        value = self._cell(self._group().values)
        assert value is not None
        return value

    @property
    def headers(self) -> bytes | None:
        """The message's headers as the pack contains them."""
        return self._cell(self._group().headers)

    def _group(self) -> MessageGroup:
        columns = self.part.head[23]
        return decode_group(self.part.group, bool(columns & KEYS), bool(columns & HEADERS))

    def _cell(self, cells: Sequence[bytes | None] | None) -> bytes | None:
        if cells is None:
            return None
        at = self.offset - self.leaf.first_offset - self._group().first
        if not 0 <= at < len(cells):
            raise Unproven(f"offset {self.offset} is not among the messages that the proof shows")
        return cells[at]


class Proven(Frozen, frozen=True):
    """The statement that a proof proves."""

    cluster: str
    stream: str
    offset: int
    key: bytes | None
    value: bytes
    headers: bytes | None
    author: bytes
    """Public key of the identity that wrote the message."""
    is_signed: bool
    """True if the author's own signature was checked. Otherwise only the nodes state the author."""
    regime: int
    message: int
    """Index of the cluster message that ordered it."""
    timestamp_ns: int
    tree_size: int
    signers: tuple[str, ...]
    """Names in the policy of the nodes and witnesses that signed the checkpoint."""

    @property
    def line(self) -> str:
        """One line for people."""
        author = f"{'signed' if self.is_signed else 'written'} by {self.author.hex()[:16]}"
        return (
            f"stream {self.stream} offset {self.offset}: proven, {len(self.value)} octets, {author}, "
            f"in the log of {self.cluster} of {self.tree_size} entries, signed by {', '.join(self.signers)}"
        )


def build(
    leaf: PackLeaf,
    offset: int,
    *,
    head: bytes,
    requests: bytes,
    signature: bytes,
    groups: PackGroups,
    index: int,
    path: Sequence[bytes],
    signed: SignedCheckpoint,
) -> Proof:
    """Make a proof of the message at `offset`. The result is not checked.

    `head` are the first 32 octets of the pack, `requests` its table of requests (empty if it has none), `signature` its
    signature, `groups` its groups. `index` is the position of the leaf in the log's tree, and `path` its inclusion
    proof in the tree of the signed checkpoint.
    """
    group = groups.group_of(offset - leaf.first_offset)
    part = PackPart(
        head=bytes(head),
        requests_digest=sha256(requests).digest() if requests else b"",
        signature=bytes(signature) if head[22] == ED25519 else b"",
        group_index=group,
        groups=len(groups),
        group_path=tuple(groups.path(group)),
        group=groups.octets(group),
    )
    return Proof(offset, leaf, part, index, tuple(path), signed)


def check(
    proof: Proof,
    trusted: Policy,
    *,
    cluster: str | None = None,
    stream: str | None = None,
    offset: int | None = None,
    value: bytes | None = None,
) -> Proven:
    """Return what the proof proves under this policy. Raises `Unproven` if it does not hold, or if it is about another
    cluster, stream, offset or value than the given ones.
    """
    _compare("cluster", cluster, proof.cluster)
    _compare("stream", stream, proof.stream)
    _compare("offset", offset, proof.offset)
    is_signed = _check_pack(proof)
    tree = proof.checkpoint.checkpoint
    hashed = merkle.leaf_hash(leaves.encode(proof.leaf))
    if not merkle.is_included(hashed, proof.index, tree.size, tree.root, proof.path):
        raise Unproven(f"the pack is not entry {proof.index} of the log with {tree.size} entries")
    signers = policy.check(trusted, proof.checkpoint)
    found = proof.value
    if value is not None and value != found:
        raise Unproven(f"the message at offset {proof.offset} has another value")
    return _proven(proof, found, is_signed, signers)


def _compare(what: str, wanted: str | int | None, found: str | int) -> None:
    if wanted is not None and wanted != found:
        raise Unproven(f"the proof is about {what} {found}, not {wanted}")


def _check_pack(proof: Proof) -> bool:
    """Check that the message is part of the pack in the leaf. Return whether the author's signature was checked."""
    part, leaf = proof.part, proof.leaf
    _, count, client_id, first_id, requests, protocol, _, signature_type, columns, _, *reserved = _HEAD.unpack(
        part.head
    )
    if protocol != PACK_PROTOCOL or columns & ~COLUMNS or any(reserved):
        raise Unproven(f"packs of protocol {protocol} with columns {columns:#x} are not known")
    tabled = bool(columns & REQUESTS)
    if (count, client_id, first_id) != (leaf.count, leaf.client_id, leaf.first_id) or not (tabled or requests == count):
        raise Unproven("the head of the pack does not belong to its entry in the log")
    root = merkle.root_from_inclusion(merkle.leaf_hash(part.group), part.group_index, part.groups, part.group_path)
    if pack_digest_from(part.head, part.requests_digest, root) != leaf.digest:
        raise Unproven("the message is not part of the pack in the log")
    if signature_type != ED25519:
        return False
    content = _REQUEST_LABEL + _string(proof.cluster) + _string(leaf.stream) + leaf.digest
    if not note.verifies(leaf.key, content, part.signature):
        raise Unproven("the author's signature of the pack is wrong")
    return True


def _string(text: str) -> bytes:
    octets = text.encode()
    if len(octets) > 255:
        raise Unproven("the name of a cluster has at most 255 octets")
    return bytes((len(octets),)) + octets


def _proven(proof: Proof, value: bytes, is_signed: bool, signers: Signers) -> Proven:
    leaf = proof.leaf
    return Proven(
        cluster=proof.cluster,
        stream=leaf.stream,
        offset=proof.offset,
        key=proof.key,
        value=value,
        headers=proof.headers,
        author=leaf.key,
        is_signed=is_signed,
        regime=leaf.regime,
        message=leaf.message,
        timestamp_ns=leaf.timestamp_ns,
        tree_size=proof.checkpoint.checkpoint.size,
        signers=signers.witnesses or tuple(key.name for key in signers.logs),
    )


def _encode_extra(proof: Proof) -> bytes:
    part, encoded = proof.part, leaves.encode(proof.leaf)
    parts = (
        bytes((VERSION,)),
        len(encoded).to_bytes(2, "big"),
        encoded,
        proof.offset.to_bytes(8, "big"),
        part.head,
        part.requests_digest,
        part.signature,
        part.group_index.to_bytes(_U32, "big"),
        part.groups.to_bytes(_U32, "big"),
        *part.group_path,
        len(part.group).to_bytes(_U32, "big"),
        part.group,
    )
    return b"".join(parts)


def _seal(extra: bytes, rest: str) -> bytes:
    return sha256(b"".join((_SEAL_LABEL, extra, rest.encode()))).digest()[:_SEAL_BYTES]


def parse(data: bytes) -> Proof:
    """Read a proof file. Nothing is proven until `check`."""
    if len(data) > PROOF_BYTES_MAX:
        raise Malformed(f"proof: at most {PROOF_BYTES_MAX} octets, not {len(data)}")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Malformed("proof: not UTF-8") from None
    first, _, after_first = text.partition("\n")
    extra, line_feed, rest = after_first.partition("\n")
    if first != FIRST_LINE:
        raise Malformed(f"proof: the first line is not {FIRST_LINE!r}")
    if not extra.startswith("extra ") or not line_feed:
        raise Malformed("proof: the second line is not `extra`")
    octets = note.from_base64(extra.removeprefix("extra "), "proof: extra")
    octets, seal = octets[:-_SEAL_BYTES], octets[-_SEAL_BYTES:]
    if _seal(octets, rest) != seal:
        raise Malformed("proof: damaged, its octets are not those that were written")
    heading, blank, signed = rest.partition("\n\n")
    if not blank:
        raise Malformed("proof: there is no checkpoint")
    index, *hashes = heading.split("\n")
    if not index.startswith("index ") or len(hashes) > PROOF_HASHES_MAX:
        raise Malformed(f"proof: `index` and at most {PROOF_HASHES_MAX} hashes wanted")
    number = checkpoints.parse_number(index.removeprefix("index "), "proof: index")
    path = tuple(_parse_hash(one) for one in hashes)
    checkpoint = checkpoints.parse(signed.encode())
    checkpoints.cluster_of(checkpoint.checkpoint.origin)
    leaf, offset, part = _Extra(octets).read()
    return Proof(offset, leaf, part, number, path, checkpoint)


def _parse_hash(text: str) -> bytes:
    octets = note.from_base64(text, "proof: a hash")
    if len(octets) != HASH_BYTES:
        raise Malformed(f"proof: a hash has {HASH_BYTES} octets, not {len(octets)}")
    return octets


class _Extra:
    """Reads chaplain's part of a proof."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def read(self) -> tuple[PackLeaf, int, PackPart]:
        version = self._take(1)[0]
        if version != VERSION:
            raise Malformed(f"proof: version {version} is not known")
        size = self._number(2)
        if size > LEAF_BYTES_MAX:
            raise Malformed(f"proof: a leaf has at most {LEAF_BYTES_MAX} octets, not {size}")
        leaf = leaves.decode(self._take(size))
        if not isinstance(leaf, PackLeaf):
            raise Malformed("proof: its entry in the log is not a pack")
        offset = self._number(8)
        part = self._part()
        if self._at != len(self._data):
            raise Malformed(f"proof: {len(self._data) - self._at} octets too many")
        columns = part.head[23]
        found = decode_group(part.group, bool(columns & KEYS), bool(columns & HEADERS))
        if not leaf.first_offset + found.first <= offset < leaf.first_offset + found.first + len(found.values):
            raise Malformed(f"proof: offset {offset} is not among the messages that it shows")
        return leaf, offset, part

    def _part(self) -> PackPart:
        head = self._take(HEAD_BYTES)
        requests_digest = self._take(HASH_BYTES if head[23] & REQUESTS else 0)
        signature = self._take(note.SIGNATURE_BYTES if head[22] == ED25519 else 0)
        index, groups = self._number(_U32), self._number(_U32)
        if not index < groups:
            raise Malformed(f"proof: a pack of {groups} groups has no group {index}")
        path = tuple(self._take(HASH_BYTES) for _ in range(merkle.inclusion_length(index, groups)))
        group = self._take(self._number(_U32))
        return PackPart(head, requests_digest, signature, index, groups, path, group)

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise Malformed(f"proof: {size} octets wanted, {len(taken)} left")
        self._at += size
        return taken

    def _number(self, octets: int) -> int:
        return int.from_bytes(self._take(octets), "big")
