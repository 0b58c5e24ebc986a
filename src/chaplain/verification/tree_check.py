"""Compares a log with a signed checkpoint of its tree: every pack has its leaf, and the leaves lead to the signed root.

    plan     finds the leaves of each task's messages by binary search in the bundles of leaves
    task     compares its packs with its leaves, and hashes its leaves to the largest aligned subtrees
    driver   joins the subtrees of all tasks, a few dozen hashes for each, and compares the root with the checkpoint

The bundles of leaves come from the node whose log is verified, or from anywhere else. They need no trust: a leaf that
is not the signed one leads to another root. This module decides which leaves belong to which task, and what a break of
the tree is. `checker` and `batches` decide what a pack is.

Not compared are messages after the checkpoint, and messages that were dropped or that a manifest covers: their subtrees
are read from tiles.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

from chaplain.core import Frozen
from chaplain.errors import Malformed, Missing
from chaplain.journal.messages.cluster import Body, ConfigEntry
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import leaf as leaves
from chaplain.proofs.checkpoint import Checkpoint
from chaplain.proofs.leaf import Leaf, PackLeaf
from chaplain.proofs.merkle import EMPTY_ROOT, leaf_hash, node_hash
from chaplain.proofs.tile_files import directory_source
from chaplain.proofs.tiles import BUNDLE_BYTES_MAX, TILE_HASHES, TILE_HEIGHT, bundle_path, decode_bundle, node_source
from chaplain.verification.violations import Break

KIND = "tree"
LOG = ""


class TreeSource(Frozen, frozen=True, array_like=True):
    """A signed checkpoint whose signatures were checked, and where the leaves and tiles of its tree are."""

    checkpoint: str
    """The text of the checkpoint."""
    folder: str
    """The directory that contains `tile`; empty: the directory `tree` beside the segments."""
    tail: bytes = b""
    """The last bundle, if it is in no file: nodes write only full bundles."""

    @property
    def tree(self) -> Checkpoint:
        return checkpoints.parse_text(self.checkpoint)

    def at(self, segments: Path) -> TreeSource:
        """The same, with the default directory filled in."""
        return TreeSource(self.checkpoint, self.folder or str(segments.resolve().parent / "tree"), self.tail)

    def bundle(self, index: int) -> list[bytes]:
        """The leaves of one bundle, up to the size of the checkpoint."""
        width = min(TILE_HASHES, self.tree.size - index * TILE_HASHES)
        for path in (bundle_path(index), bundle_path(index, width)):
            try:
                with Path(self.folder, path).open("rb") as file:
                    return decode_leading(file.read(BUNDLE_BYTES_MAX + 1), width)
            except FileNotFoundError:
                continue
        if self.tail and index == (self.tree.size - 1) // TILE_HASHES:
            return decode_leading(self.tail, width)
        raise Missing(
            f"there are no leaves {bundle_path(index)} in {self.folder}: give a directory that has them, an older"
            " checkpoint, or a running cluster, because nodes write the last leaves to files when there are 256"
        )


def decode_leading(data: bytes, width: int) -> list[bytes]:
    """The first leaves of a bundle that may have more."""
    at = count = 0
    while at < len(data) and count < width:
        at += 2 + int.from_bytes(data[at : at + 2], "big")
        count += 1
    return decode_bundle(data[:at], width)


class LeafRange(Frozen, frozen=True, array_like=True):
    """The leaves that belong to the messages of one task: those from `first` up to, but not including, `end`."""

    source: TreeSource
    first: int
    end: int
    last_message: int
    """The last message that the checkpoint covers."""


class Subtree(Frozen, frozen=True, array_like=True):
    level: int
    index: int
    hash: bytes


def plan_ranges(source: TreeSource, first_messages: Sequence[int]) -> tuple[list[Subtree], list[LeafRange]]:
    """Return the subtrees before the first task's leaves, and the leaves of each task. `first_messages` has the first
    message of each task, in order.
    """
    size = source.tree.size
    if not size:
        return [], [LeafRange(source, 0, 0, 0) for _ in first_messages]
    last_message = leaves.decode(source.bundle((size - 1) // TILE_HASHES)[-1]).message
    starts = [0 if message <= 1 else _first_leaf(source, message) for message in first_messages]
    first = starts[0] if starts else size
    bounds = [*starts, size]
    ranges = [LeafRange(source, low, high, last_message) for low, high in pairwise(bounds)]
    node = node_source(size, directory_source(Path(source.folder)))
    before = [
        Subtree(level, index, node(level, index) if level >= TILE_HEIGHT else _in_bundle(source, level, index))
        for level, index in aligned(0, first)
    ]
    return before, ranges


def _in_bundle(source: TreeSource, level: int, index: int) -> bytes:
    """The root of a subtree of at most one bundle."""
    first = index << level
    octets = source.bundle(first // TILE_HASHES)[first % TILE_HASHES :][: 1 << level]
    return _root([leaf_hash(one) for one in octets])


def _first_leaf(source: TreeSource, message: int) -> int:
    """The first leaf of this message or of a later one."""
    low, high = 0, (source.tree.size - 1) // TILE_HASHES
    while low < high:
        middle = (low + high) // 2
        if leaves.decode(source.bundle(middle)[-1]).message < message:
            low = middle + 1
        else:
            high = middle
    found = [leaves.decode(one).message for one in source.bundle(low)]
    return low * TILE_HASHES + bisect_left(found, message)


def aligned(low: int, high: int) -> Iterable[tuple[int, int]]:
    """The largest aligned subtrees (level, index) that the leaves from `low` to `high` consist of, in order."""
    while low < high:
        level = (low & -low).bit_length() - 1 if low else 63
        level = min(level, (high - low).bit_length() - 1)
        yield level, low >> level
        low += 1 << level


class LeafChecker:
    """Compares the packs of one task with its leaves."""

    def __init__(self, wanted: LeafRange) -> None:
        self._wanted = wanted
        self._by_message: dict[int, list[Leaf]] = {}
        self.subtrees: list[Subtree] = []
        """The hashes of the task's leaves."""
        self._packs: dict[tuple[str, int], tuple[int, int, int, bytes]] = {}
        self._read()

    def _read(self) -> None:
        low, high = self._wanted.first, self._wanted.end
        hashes: list[bytes] = []
        for index in range(low // TILE_HASHES, -(-high // TILE_HASHES) if high > low else low // TILE_HASHES):
            first = index * TILE_HASHES
            for octets in self._wanted.source.bundle(index)[max(0, low - first) : high - first]:
                hashes.append(leaf_hash(octets))
                leaf = leaves.decode(octets)
                self._by_message.setdefault(leaf.message, []).append(leaf)
        for level, index in aligned(low, high):
            start = (index << level) - low
            self.subtrees.append(Subtree(level, index, _root(hashes[start : start + (1 << level)])))

    def add_pack(self, stream: str, offset: int, shape: tuple[int, int, int, bytes]) -> None:
        """Add a pack of the current message at this offset: its messages, client id, first request id and digest."""
        self._packs[stream, offset] = shape

    def check(self, index: int, body: Body | None) -> list[Break]:
        """Compare the packs of a message with its leaves."""
        found, self._packs = self._packs, {}
        mine = self._by_message.pop(index, [])
        if index > self._wanted.last_message or body is None:
            return []  # after the checkpoint; or unreadable, which `checker` reports
        breaks = []
        for leaf in mine:
            if isinstance(leaf, PackLeaf):
                place = leaf.stream, leaf.first_offset
                shape = leaf.count, leaf.client_id, leaf.first_id, leaf.digest
                there = found.pop(place, None)
                if there != shape:
                    digest = "no such pack" if there is None else there[3].hex()
                    breaks.append(Break(*place, KIND, f"the signed pack {leaf.digest.hex()}", digest))
            elif not _has_entry(body, leaf.entry, leaf.digest):
                breaks.append(Break(LOG, index, KIND, f"entry {leaf.entry} as it was signed", "another entry"))
            if (leaf.regime, leaf.timestamp_ns) != (body.regime, body.timestamp_ns):
                expected = f"regime {leaf.regime}, time {leaf.timestamp_ns}"
                breaks.append(Break(LOG, index, KIND, expected, f"regime {body.regime}, time {body.timestamp_ns}"))
        breaks += [Break(stream, offset, KIND, "no pack", shape[3].hex()) for (stream, offset), shape in found.items()]
        return breaks

    def check_end(self) -> list[Break]:
        """Report leaves of messages that the task did not have."""
        return [
            Break(LOG, index, KIND, f"a message with {len(found)} leaves", "no such message")
            for index, found in self._by_message.items()
        ]


def _has_entry(body: Body, number: int, digest: bytes) -> bool:
    entry = body.entries[number] if number < len(body.entries) else None
    return isinstance(entry, ConfigEntry) and sha256(entry.data).digest() == digest


def _root(hashes: Sequence[bytes]) -> bytes:
    level = list(hashes)
    while len(level) > 1:
        level = [node_hash(level[at], level[at + 1]) for at in range(0, len(level), 2)]
    return level[0]


def compare_root(source: TreeSource, subtrees: Iterable[Subtree]) -> list[Break]:
    """Return a break if these subtrees are not the tree of the checkpoint."""
    tree = source.tree
    try:
        root = join_subtrees(tree.size, subtrees)
    except Malformed as error:
        return [Break(LOG, 0, KIND, f"the {tree.size} leaves of the checkpoint", str(error))]
    return [] if root == tree.root else [Break(LOG, 0, KIND, f"root {tree.root.hex()}", root.hex())]


def join_subtrees(size: int, subtrees: Iterable[Subtree]) -> bytes:
    """The root over aligned subtrees. Raises `Malformed` unless the subtrees cover the whole tree, each part once."""
    stack: list[Subtree] = []
    end = 0
    for one in sorted(subtrees, key=lambda one: (one.index << one.level, -one.level)):
        if one.index << one.level != end:
            raise Malformed(f"leaf {end} is missing, or read twice")
        end += 1 << one.level
        joined = one
        while stack and joined.index & 1 and stack[-1].level == joined.level:
            left = stack.pop()
            joined = Subtree(left.level + 1, left.index >> 1, node_hash(left.hash, joined.hash))
        stack.append(joined)
    if end != size:
        raise Malformed(f"{end} leaves")
    root = stack[-1].hash if stack else EMPTY_ROOT
    for left in reversed(stack[:-1]):
        root = node_hash(left.hash, root)
    return root
