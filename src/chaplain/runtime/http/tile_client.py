"""Reads tiles from the HTTP ports of nodes. Their content is not trusted: proofs made of it are checked."""

from __future__ import annotations

from collections.abc import Sequence
from http.client import HTTPException
from urllib.request import ProxyHandler, build_opener

from chaplain.errors import Unreachable
from chaplain.proofs.merkle import HASH_BYTES
from chaplain.proofs.tiles import BUNDLE_BYTES_MAX, TILE_BYTES, TILE_HASHES, TileSource, tile_path

READ_S = 5.0
PART_S = 1.0
"""Time-out of a part that a caller can do without."""


def http_source(endpoints: Sequence[str]) -> TileSource:
    """Return the source of proofs that asks these nodes (address and port), one after the other, for each tile."""
    opener = build_opener(ProxyHandler({}))  # nodes are never behind a proxy of the environment

    def read(level: int, index: int, width: int) -> bytes:
        reason = "no node serves HTTP"
        for endpoint in endpoints:
            for found in dict.fromkeys((width, TILE_HASHES)):  # a partial tile may have become full since
                url = f"http://{endpoint}/{tile_path(level, index, found)}"
                try:
                    with opener.open(url, timeout=READ_S) as response:
                        data: bytes = response.read(TILE_BYTES + 1)
                        return data[: width * HASH_BYTES] if found != width else data
                except (OSError, HTTPException) as error:
                    reason = f"{url}: {error}"
        raise Unreachable(f"no node has tile {tile_path(level, index, width)}: {reason}")

    return read


def fetch_part(endpoints: Sequence[str], name: str) -> bytes | None:
    """Return a part of the tree from the first of these nodes that has it; None if none answers with it."""
    opener = build_opener(ProxyHandler({}))
    for endpoint in endpoints:
        try:
            with opener.open(f"http://{endpoint}/{name}", timeout=PART_S) as response:
                data: bytes = response.read(BUNDLE_BYTES_MAX + 1)
                return data
        except (OSError, HTTPException):
            continue
    return None
