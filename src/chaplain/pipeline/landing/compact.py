"""Compaction of a Delta table: merges consecutive small files into larger ones, with rows in the order of offsets.

This module decides which files to merge. One Delta commit replaces the small files with the new one, so readers see the
same rows before and after. The compaction of delta-rs does not keep the order of rows.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from chaplain.pipeline.tables import ParquetFile, Storage, added

SMALL_ROWS = 100_000
"""A file with fewer rows than this is small."""
FILES_MIN = 8
"""Fewer small files than this are not merged."""
ROWS_MAX = 1_000_000
"""Upper bound for the rows of a merged file."""
KEEP_HOURS = 168
"""Replaced files are deleted after this time. Until then, readers of older versions of the table find them."""


def compact(table: str, storage: Storage = None) -> int:
    """Merge each group of consecutive small files of a local Delta table. Return how many small files are left."""
    if "://" in table:
        return 0  # tables in object stores are not compacted here
    left = 0
    for files in groups_of_small(list_files(table, storage)):
        if len(files) < FILES_MIN:
            left += len(files)
        else:
            _replace(table, files, storage)
    DeltaTable(table).vacuum(KEEP_HOURS, dry_run=False)
    return left


def list_files(table: str, storage: Storage = None) -> list[ParquetFile]:
    """Return the files of a table's current version, in the order of their offsets."""
    actions = DeltaTable(table, storage_options=dict(storage or {})).get_add_actions(flatten=True)
    rows: list[dict[str, Any]] = actions.to_pylist() if hasattr(actions, "to_pylist") else _as_rows(actions)
    found = [
        ParquetFile(row["path"], int(row["min.offset"]), int(row["max.offset"]) + 1, int(row["size_bytes"]))
        for row in rows
    ]
    return sorted(found, key=lambda file: file.start)


def _as_rows(actions: Any) -> list[dict[str, Any]]:
    import pyarrow as pa  # noqa: PLC0415

    listed: list[dict[str, Any]] = pa.table(actions).to_pylist()
    return listed


def groups_of_small(files: list[ParquetFile]) -> Iterator[list[ParquetFile]]:
    """Yield groups of consecutive small files, each with at most `ROWS_MAX` rows."""
    group: list[ParquetFile] = []
    for file in files:
        small = file.end - file.start < SMALL_ROWS
        if group and (not small or file.end - group[0].start > ROWS_MAX or file.start != group[-1].end):
            yield group
            group = []
        if small:
            group.append(file)
    if group:
        yield group


def _replace(table: str, files: list[ParquetFile], storage: Storage) -> None:
    folder = Path(table)
    name = f"{files[0].start:020d}-{files[-1].end:020d}-{uuid.uuid4().hex}.parquet"
    with pq.ParquetWriter(folder / name, pq.read_schema(folder / files[0].name), compression="zstd") as writer:
        for file in files:
            writer.write_table(pq.read_table(folder / file.name))
    now_ms = int(time.time() * 1000)
    new = ParquetFile(name, files[0].start, files[-1].end, (folder / name).stat().st_size)
    removed = [RemoveAction(file.name, False, now_ms, file.size_bytes, {}) for file in files]
    delta = DeltaTable(table, storage_options=dict(storage or {}))
    delta.create_write_transaction(
        [*removed, added(new, now_ms, new=False)], mode="append", schema=delta.schema(), partition_by=[]
    )
