"""Tiles in a directory, in the layout of `tiles`: for reading what a node wrote, or what somebody copied."""

from __future__ import annotations

from pathlib import Path

from chaplain.errors import Missing
from chaplain.proofs.merkle import HASH_BYTES
from chaplain.proofs.tiles import TILE_BYTES, TILE_HASHES, TileSource, tile_path


def directory_source(directory: Path) -> TileSource:
    """Return the source of proofs that reads tiles below this directory. A partial tile may have become full since."""

    def read(level: int, index: int, width: int) -> bytes:
        for found in dict.fromkeys((width, TILE_HASHES)):
            try:
                with (directory / tile_path(level, index, found)).open("rb") as file:
                    return file.read(TILE_BYTES + 1)[: width * HASH_BYTES if found != width else None]
            except FileNotFoundError:
                continue
        raise Missing(f"there is no tile {tile_path(level, index, width)} in {directory}")

    return read
