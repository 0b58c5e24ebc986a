"""Makes the proof of one row of a landed table, without the cluster: the same file as `Client.prove` makes.

The row's pack is rebuilt from the rows of the table, octet by octet. Its signature, the leaf and the path come from the
copies that `land` made (`tree_copy`). Nothing of this is trusted: the digest of the pack and the root of the
checkpoint are computed again, so that damage never leads to a proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from chaplain.client.api import proof_calls
from chaplain.client.api.proof_calls import FoundPack, LeafSearch
from chaplain.errors import Missing, Unproven
from chaplain.pipeline.landing.tree_copy import (
    SIGNATURES_FOLDER,
    TREE_FOLDER,
    filesystem_of,
    read_checkpoint,
    read_file,
)
from chaplain.pipeline.tables import Storage, landed_files, offsets_in_name, table_path
from chaplain.pipeline.verification.table_check import COLUMNS, rebuilt_packs
from chaplain.proofs.proof import Proof


def prove_row(*, tables: str | Path, stream: str, offset: int, storage_options: Storage = None) -> Proof:
    """Make the proof of one row.

    Arguments:
        tables: The folder of the tables, or its URL, as for `land`.
        stream: The stream of the row.
        offset: The offset of the row.
        storage_options: Options of delta-rs for tables in an object store.

    Raises `Missing` if the table lacks the row or something that its proof needs, and `Unproven` if the table and the
    tree do not belong together, because one of them was changed.
    """
    offset = proof_calls.offset(offset)
    tables = tables if "://" in str(tables) else Path(tables).absolute()
    table = table_path(tables, stream)
    system, folder = filesystem_of(table)
    tree = f"{folder}/{TREE_FOLDER}"
    signed = read_checkpoint(system, tree)
    pack = _pack(system, folder, landed_files(tables, stream, storage_options), stream, offset)
    size = signed.checkpoint.size

    def part(name: str) -> bytes:
        try:
            return read_file(system, f"{tree}/{name}")
        except FileNotFoundError:
            raise Missing(f"the copy of the log's tree lacks {name}") from None

    search = LeafSearch(pack, stream, size)
    while (name := search.next_bundle()) is not None:
        search.take(part(name))
    at = search.result()
    tiles = {tile: part(tile.path) for tile in proof_calls.tiles_needed(at[0], size)}
    return proof_calls.assemble(pack, at, offset, signed, tiles)


def _pack(system: Any, folder: str, files: Sequence[str], stream: str, offset: int) -> FoundPack:
    """Rebuild the pack of a row."""
    rows = _rows(files, pc.field("offset") == offset) if files else None
    if rows is None or not rows.num_rows:
        raise Missing(f"the table of {stream!r} has no offset {offset}")
    index, digest = rows.column("message_index")[0].as_py(), rows.column("pack_digest")[0].as_py()
    whole = _rows(files, (pc.field("message_index") == index) & (pc.field("pack_digest") == digest))
    first = int(whole.column("offset")[0].as_py())
    signature = _signature(system, f"{folder}/{SIGNATURES_FOLDER}", first)
    for found in rebuilt_packs(whole):
        if found.digest == digest and found.slot_bytes == len(signature):
            return FoundPack(found.octets(signature), first, index)
    raise Unproven(f"the rows of the pack with offset {offset} of {stream!r} do not have the digest that they state")


def _rows(files: Sequence[str], wanted: Any) -> Any:
    remote = "://" in files[0]
    system = fs.FileSystem.from_uri(files[0])[0] if remote else fs.LocalFileSystem()
    paths = [fs.FileSystem.from_uri(file)[1] if remote else file for file in files]
    import pyarrow.dataset as ds  # noqa: PLC0415  it imports pandas, which every Python worker of Spark would pay for

    found = ds.dataset(paths, filesystem=system, format="parquet").to_table(columns=list(COLUMNS), filter=wanted)
    return found.sort_by("offset").combine_chunks()


def _signature(system: Any, folder: str, first: int) -> bytes:
    """The signature of the pack whose first message has this offset."""
    for info in system.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
        start, end = offsets_in_name(info.base_name)
        if info.base_name.endswith(".parquet") and start <= first < end:
            rows = pq.read_table(info.path, filesystem=system)
            found = rows.filter(pc.equal(rows.column("offset"), pa.scalar(first, pa.int64())))
            if found.num_rows:
                signature: bytes = found.column(1)[0].as_py()
                return signature
    raise Missing(f"the table has no signature of the pack at offset {first}: it was landed by an older version")
