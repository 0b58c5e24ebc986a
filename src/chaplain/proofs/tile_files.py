"""Tiles in a directory, in the layout of `tiles`: for reading tiles that a node wrote, or copies of them.

A directory may lack partial tiles, because a node writes only full ones. Those above level 0 are computed from the full
tiles below them.
"""

from __future__ import annotations

from pathlib import Path

from chaplain.errors import Missing
from chaplain.proofs.merkle import HASH_BYTES, root_of
from chaplain.proofs.tiles import TILE_BYTES, TILE_HASHES, TileSource, decode_tile, encode_tile, tile_path


def directory_source(directory: Path) -> TileSource:
    """Return the source of proofs that reads tiles below this directory."""

    def read(level: int, index: int, width: int) -> bytes:
        for found in dict.fromkeys((width, TILE_HASHES)):  # a partial tile may have become full since
            try:
                with (directory / tile_path(level, index, found)).open("rb") as file:
                    octets = file.read(TILE_BYTES + 1)
            except FileNotFoundError:
                continue
            return octets if found == width else octets[: width * HASH_BYTES]
        if level and width < TILE_HASHES:
            below = range(index * TILE_HASHES, index * TILE_HASHES + width)
            return encode_tile([root_of(decode_tile(read(level - 1, one, TILE_HASHES))) for one in below])
        hint = "" if width == TILE_HASHES else "; a node serves it, and writes it when it is full"
        raise Missing(f"there is no tile {tile_path(level, index, width)} in {directory}{hint}")

    return read
