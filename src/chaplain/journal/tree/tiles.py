"""Writes the full tiles of the tree over the log as files, and finds the octets of any tile.

    leaf appended by execution ──▶ tile full ──▶ in memory ──▶ file `tree/tile/…`, in the layout of tlog-tiles

Decides when files are written: when `TILES_WAITING_MAX` tiles wait, or `WRITE_NS` after the first of them, or together
with the next snapshot, whichever is first. Only proofs wait for these writes. After a restart, execution replays the
log from the snapshot, and the same tiles become full again. A file of a tile always has the same content, so it may be
written twice.

Invariants: all tiles that are full when a snapshot is made are written before the snapshot. A segment is dropped only
when a snapshot covers it, so the leaves of a dropped segment are in files or in the snapshot's open tiles. No file of a
tile is ever removed.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.core import Frozen, Operation, Persist, Replace
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.model.log_tree import BUNDLES, FinishedTile, LogTree
from chaplain.proofs.merkle import HASH_BYTES
from chaplain.proofs.tiles import TILE_HASHES, TILE_HEIGHT, Tile, bundle_path, decode_bundle, encode_bundle, tile_path
from chaplain.units import SECOND_NS

WRITE_NS = SECOND_NS
TILES_WAITING_MAX = 64
"""About 3 MiB of bundles, with leaves of common sizes."""


class OnDisk(Frozen, frozen=True):
    """The tile is in this file. If the file does not exist, this node has never had the tile."""

    file: str
    tile: Tile


class TileWriter:
    """The tiles of one node. `effects` are for its host."""

    def __init__(self, folder: str, execution: JournalExecution) -> None:
        self._folder = folder
        self._execution = execution
        self._waiting: dict[Tile, bytes] = {}
        """Full tiles that no write has taken yet."""
        self._writing: dict[Tile, tuple[bytes, int]] = {}
        """Full tiles whose write is under way, and the ticket of this writer after which they are on disk."""
        self._ticket = 0
        self.due_ns: int | None = None
        self.written = 0
        """Files written since the start."""

    @property
    def _tree(self) -> LogTree:
        return self._execution.state.tree

    def add(self, finished: Iterable[FinishedTile]) -> None:
        """An applied message filled these tiles."""
        self._waiting.update((one.tile, one.data) for one in finished)

    def due(self, now_ns: int) -> list[Persist]:
        """Write the waiting tiles if a write is due."""
        if not self._waiting:
            return []
        if self.due_ns is None:
            self.due_ns = now_ns + WRITE_NS
        if now_ns < self.due_ns and len(self._waiting) < TILES_WAITING_MAX:
            return []
        operations = self.take_operations()
        self._ticket += 1
        return [Persist(self._ticket, operations)]

    def take_operations(self) -> tuple[Operation, ...]:
        """The writes of all waiting tiles. The caller performs them before its own writes."""
        operations = tuple(Replace(self.file_of(tile), data) for tile, data in self._waiting.items())
        # Writes complete in order: the next write of this writer completes after these.
        self._writing.update((tile, (data, self._ticket + 1)) for tile, data in self._waiting.items())
        self._waiting = {}
        self.due_ns = None
        self.written += len(operations)
        return operations

    def on_written(self, ticket: int) -> None:
        self._writing = {tile: entry for tile, entry in self._writing.items() if entry[1] > ticket}

    def file_of(self, tile: Tile) -> str:
        """The file of a full tile."""
        name = bundle_path(tile.index) if tile.level == BUNDLES else tile_path(tile.level, tile.index)
        return self._folder + name

    def find(self, tile: Tile) -> bytes | OnDisk | None:
        """The octets of a tile of this width, the file to read them from, or None if the tree has no such tile."""
        level = max(tile.level, 0)
        size = self._tree.size >> level * TILE_HEIGHT
        if tile.index * TILE_HASHES + tile.width > size:
            return None
        if tile.index == size // TILE_HASHES:
            return cut(tile, self._tree.open_tile(tile.level))
        full = Tile(tile.level, tile.index)
        data = self._waiting.get(full)
        if data is None and full in self._writing:
            data = self._writing[full][0]
        return OnDisk(self.file_of(full), tile) if data is None else cut(tile, data)


def cut(tile: Tile, data: bytes) -> bytes:
    """The first `width` hashes or entries. Raises `Malformed` if the data has another form."""
    if tile.level != BUNDLES:
        return data[: tile.width * HASH_BYTES]
    if tile.width == TILE_HASHES:
        return data
    return encode_bundle(_entries(data)[: tile.width])


def _entries(data: bytes) -> list[bytes]:
    count = at = 0
    while at < len(data):
        at += 2 + int.from_bytes(data[at : at + 2], "big")
        count += 1
    return decode_bundle(data, count)
