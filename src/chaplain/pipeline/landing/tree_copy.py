"""Copies to a landed table what proofs of its rows need, so that a row can be proven after the cluster is gone.

    TABLE/_signatures/FIRST-END.parquet   the offset of the first message of each pack, and the pack's signature
    TABLE/_tree/tile/…                    the tree over the log, as full and partial tiles of tlog-tiles
    TABLE/_tree/checkpoint                the newest signed checkpoint; every tile of its tree is in the copy

This module decides which tiles are missing and in which order files are written: tiles before the checkpoint that needs
them. It trusts no tile, because `row_proof` computes the root again for each proof.

A cluster that does not answer never stops `land`. The rows land without a new checkpoint, and a later batch copies what
is missing. Names that begin with an underscore are no data to readers of the table.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from chaplain.errors import ChaplainError, Malformed, Missing
from chaplain.pipeline.source.live import client_of
from chaplain.pipeline.source.options import Target
from chaplain.pipeline.tables import Storage
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs.checkpoint import SignedCheckpoint
from chaplain.proofs.tiles import TILE_HASHES, Tile, bundle_path, newly_full, widths
from chaplain.segment.arrow import SIGNATURES

SIGNATURES_FOLDER = "_signatures"
TREE_FOLDER = "_tree"
CHECKPOINT_FILE = "checkpoint"
COVER_S = 5.0
"""How long the last batch of `land(once=True)` waits for a checkpoint that covers it."""
LOOK_S = 0.1
ANSWER_S = 2.0
"""How long a cluster may take to answer."""
PAUSE_S = 30.0
"""A cluster that did not answer is not asked again for this long."""


def signatures_of(batch: Any) -> Any:
    """Return the offset of each pack's first message, and the pack's signature."""
    found = batch.select(["offset", SIGNATURES.name])
    return found.filter(pc.is_valid(found.column(1)))


def write_signatures(system: Any, folder: str, start: int, end: int, batches: Sequence[Any]) -> None:
    """Write the signatures of the packs that begin in these offsets. A repeated task replaces the file."""
    path = f"{folder}/{SIGNATURES_FOLDER}"
    system.create_dir(path, recursive=True)
    name = f"{path}/{start:020d}-{end:020d}.parquet"
    schema = pa.schema([("offset", pa.int64()), SIGNATURES])
    table = pa.Table.from_batches([batch.cast(schema) for batch in batches], schema=schema)
    written = f"{name}.{uuid.uuid4().hex}"
    pq.write_table(table, written, filesystem=system, compression="zstd")
    system.move(written, name)


class TreeCopy:
    """Copies the tree of one cluster. Without a cluster it copies nothing."""

    def __init__(self, cluster: str, storage: Storage = None) -> None:
        self._target = Target(cluster=str(Path(cluster).absolute())) if cluster else None
        self._storage = storage
        self._silent_until_s = 0.0

    def copy_to(self, table: str, *, wait: bool = False) -> str:
        """Copy the tree of the newest signed checkpoint, and return the checkpoint's text; empty if no node answers.

        With `wait`, first wait until a checkpoint covers everything that the log contains now.
        """
        if self._target is None or time.monotonic() < self._silent_until_s:
            return ""
        try:
            signed = self._newest(wait=wait)
            system, folder = filesystem_of(table)
            _copy(system, f"{folder}/{TREE_FOLDER}", signed, self._tile)
        except (ChaplainError, OSError):
            self._silent_until_s = time.monotonic() + PAUSE_S
            return ""
        return signed.text

    def _newest(self, *, wait: bool) -> SignedCheckpoint:
        assert self._target is not None
        client = client_of(self._target, ANSWER_S)
        size = int(client.status()["tree"]["size"]) if wait else 0
        end_s = time.monotonic() + COVER_S
        while True:
            signed = client.checkpoint()
            if signed.checkpoint.size >= size or time.monotonic() > end_s:
                return signed
            time.sleep(LOOK_S)

    def _tile(self, name: str) -> bytes:
        assert self._target is not None
        return client_of(self._target, ANSWER_S).tile(name)


def filesystem_of(table: str) -> tuple[Any, str]:
    """Return the file system of a table, and the table's path there."""
    found: tuple[Any, str] = fs.FileSystem.from_uri(table) if "://" in table else (fs.LocalFileSystem(), table)
    return found


def read_file(system: Any, path: str) -> bytes:
    with system.open_input_stream(path) as stream:
        octets: bytes = stream.read()
        return octets


def read_checkpoint(system: Any, folder: str) -> SignedCheckpoint:
    """Return the checkpoint of a copied tree. Raises `Missing` if there is none."""
    try:
        return checkpoints.parse(read_file(system, f"{folder}/{CHECKPOINT_FILE}"))
    except FileNotFoundError:
        raise Missing("the table has no copy of the log's tree: land it from a running cluster") from None


def _copy(system: Any, folder: str, signed: SignedCheckpoint, tile: Any) -> None:
    old: SignedCheckpoint | None = None
    with suppress(Missing, Malformed):
        old = read_checkpoint(system, folder)
    before = 0 if old is None else old.checkpoint.size
    size = signed.checkpoint.size
    if size <= before:
        return
    for name in _needed(before, size):
        _put(system, f"{folder}/{name}", tile(name))
    _put(system, f"{folder}/{CHECKPOINT_FILE}", signed.text.encode())
    for name in _partial(before):
        if name not in set(_partial(size)):
            system.delete_file(f"{folder}/{name}")


def _needed(before: int, size: int) -> Iterator[str]:
    """The parts of a tree of this size that a tree of the size before does not have."""
    for full in newly_full(before, size):
        yield full.path
    for index in range(before // TILE_HASHES, size // TILE_HASHES):
        yield bundle_path(index)
    yield from _partial(size)


def _partial(size: int) -> list[str]:
    """The partial tiles and the partial bundle of a tree of this size."""
    found = [one.path for one in widths(size)]
    last = Tile(0, size // TILE_HASHES, size % TILE_HASHES) if size % TILE_HASHES else None
    return found + ([bundle_path(last.index, last.width)] if last is not None else [])


def _put(system: Any, path: str, octets: bytes) -> None:
    system.create_dir(path.rpartition("/")[0], recursive=True)
    written = f"{path}.{uuid.uuid4().hex}"
    with system.open_output_stream(written) as stream:
        stream.write(octets)
    system.move(written, path)
