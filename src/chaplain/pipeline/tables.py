"""Landed tables: where they are, which files belong to them, how to read them, and how to append a batch.

    delta     Parquet files and a Delta log; a commit makes a batch visible and records the offset after it
    parquet   Parquet files only, each named by its offsets: FIRST-END.parquet; a batch is renamed into place in order

This module decides which files of a folder belong to the table. It does not know how the files are written.

Invariant: the table itself contains its first and its next offset, so there is no other state that could be lost.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession

from chaplain import durable
from chaplain.core import Frozen
from chaplain.errors import Missing, StorageError
from chaplain.file_names import FILE_NAME_BYTES_MAX, bounded, is_shortened
from chaplain.pipeline.source.rows import HEADERS_TYPE, fields, schema_text
from chaplain.segment.arrow import SCHEMA

Format = Literal["delta", "parquet"]
Storage = Mapping[str, str] | None
_RANGE = re.compile(r"(\d{20})-(\d{20})\.parquet")
_OFFSETS = re.compile(r"(\d{20})-(\d{20})")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.-]|^\.")
_ESCAPE = "~"
_ESCAPED = re.compile(r"~([0-9A-F]{2})")
"""Escapes in folder names. Percent signs would not work: delta-rs always treats them as its own escapes."""
_PATTERN = re.compile(r"[][{}*?\\]")
"""Characters that Spark treats as glob patterns in paths unless they are escaped with a backslash."""
STAGING = "_staging"
"""Folder for files that are not part of the table yet. Parquet readers ignore names that begin with an underscore."""
CHECKPOINT_KEY = "chaplain.checkpoint"
"""Name of the signed checkpoint in the metadata of a Delta commit."""
_FIRST = "_first"
"""File with the first offset of a plain table that does not begin with offset 0."""


class ParquetFile(Frozen, frozen=True, array_like=True):
    """A Parquet file with the offsets from `start` up to, but not including, `end` of a stream."""

    name: str
    """Relative to the table's folder."""
    start: int
    end: int
    size_bytes: int


def table_path(tables: str | Path, stream: str) -> str:
    """Return the path of a stream's table below `tables`.

    Characters other than letters, digits, `_`, `.` and `-` are escaped: the table of stream `a/b` is `a~2Fb`. A name
    that is too long for a folder is shortened and ends with a digest of the stream's name.
    """
    escaped = _NOT_PLAIN.sub(lambda found: f"{_ESCAPE}{ord(found[0]):02X}", stream)
    return f"{str(tables).rstrip('/')}/{bounded(escaped, stream, _ESCAPE, FILE_NAME_BYTES_MAX)}"


def _stream_of(folder: Path) -> str:
    """Return the stream of a table's folder: from the folder's name or, if that was shortened, from the first row."""
    if not is_shortened(folder.name, _ESCAPE):
        return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), folder.name)
    files = _files_of(str(folder), None)
    return str(next(pq.ParquetFile(files[0]).iter_batches(1, columns=["topic"])).column(0)[0]) if files else ""


def landed_streams(tables: str | Path) -> list[str]:
    """Return the streams that have a table in a local folder."""
    folder = Path(tables)
    found = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    streams = [_stream_of(path) for path in found if kind_of(str(path)) is not None]
    return [stream for stream in streams if stream]  # the stream of an empty table with a shortened name is unknown


def kind_of(table: str, storage: Storage = None) -> Format | None:
    if DeltaTable.is_deltatable(table, dict(storage or {})):
        return "delta"
    folder = Path(table)
    return "parquet" if "://" not in table and folder.is_dir() and _ranges(folder) else None


def landed_offset(tables: str | Path, stream: str, storage: Storage = None) -> int:
    """Return the next offset to land: one more than the last offset in the table, or 0 for a new table."""
    table = table_path(tables, stream)
    kind = kind_of(table, storage)
    if kind == "delta":
        version = DeltaTable(table, storage_options=dict(storage or {})).transaction_version(app_of(stream))
        return 0 if version is None else int(version)
    return _ranges(Path(table))[-1][1] if kind == "parquet" else 0


def first_landed(tables: str | Path, stream: str, storage: Storage = None) -> int:
    """Return the first offset of the table. It is not 0 if the log had dropped its beginning before the first
    `land`.
    """
    table = table_path(tables, stream)
    if kind_of(table, storage) == "delta":
        return DeltaTable(table, storage_options=dict(storage or {})).transaction_version(_first_of(stream)) or 0
    return _noted_first(Path(table))


def _noted_first(folder: Path) -> int:
    try:
        return int((folder / _FIRST).read_text())
    except FileNotFoundError:
        return 0


def landed_files(tables: str | Path, stream: str, storage: Storage = None) -> list[str]:
    """Return the files of the table's current version, in the order of their offsets."""
    return _files_of(table_path(tables, stream), storage)


def _files_of(table: str, storage: Storage) -> list[str]:
    kind = kind_of(table, storage)
    if kind == "delta":
        files = sorted(DeltaTable(table, storage_options=dict(storage or {})).file_uris())
        return files if "://" in table else [unquote(file) for file in files]  # delta-rs escapes even local paths
    return [str(Path(table) / file) for _, _, file in _ranges(Path(table))] if kind == "parquet" else []


def _ranges(folder: Path) -> list[tuple[int, int, str]]:
    """Return the offsets and names of the files that continue one another without a gap from the first offset on."""
    found: list[tuple[int, int, str]] = []
    first = _noted_first(folder)
    for start, end, name in _named(folder):
        if start == (found[-1][1] if found else first):
            found.append((start, end, name))
    return found


def offsets_in_name(name: str) -> tuple[int, int]:
    """Return the offsets that the name of a landed file states; (0, 0) for any other name."""
    found = _OFFSETS.match(name)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _named(folder: Path) -> list[tuple[int, int, str]]:
    named = [(match, path.name) for path in folder.iterdir() if (match := _RANGE.fullmatch(path.name))]
    return sorted((int(match[1]), int(match[2]), name) for match, name in named)


def stray_files(tables: str | Path, stream: str) -> list[str]:
    """Return the files of a plain table that follow a gap. A gap means that a landed file was deleted."""
    folder = Path(table_path(tables, stream))
    if kind_of(str(folder)) != "parquet":
        return []
    end = _ranges(folder)[-1][1]
    return [str(folder / name) for start, _, name in _named(folder) if start > end]


def app_of(stream: str) -> str:
    return f"chaplain/{stream}"


def _first_of(stream: str) -> str:
    """Return the application id under which a Delta table stores its first offset. Stream names contain no blanks."""
    return f"{app_of(stream)} first"


def commit(
    table: str,
    stream: str,
    files: Sequence[ParquetFile],
    schema: Any,
    storage: Storage = None,
    *,
    checkpoint: str = "",
) -> None:
    """Append files to a Delta table in one commit, and record the next offset as the commit's transaction version.

    The signed checkpoint, if there is one, becomes the commit's metadata `CHECKPOINT_KEY`.
    """
    options = dict(storage or {})
    if not DeltaTable.is_deltatable(table, options):
        DeltaTable.create(table, schema=schema, storage_options=options)
    delta = DeltaTable(table, storage_options=options)
    landed = delta.transaction_version(app_of(stream))
    if landed not in (None, files[0].start):
        # If another process commits between this check and our commit, delta-rs rejects the second transaction.
        raise StorageError(_conflict(table, landed))
    notes = [Transaction(app_of(stream), files[-1].end)]
    if landed is None and files[0].start:
        notes.append(Transaction(_first_of(stream), files[0].start))
    now_ms = int(time.time() * 1000)
    delta.create_write_transaction(
        [added(file, now_ms, new=True) for file in files],
        mode="append",
        schema=delta.schema(),
        partition_by=[],
        commit_properties=CommitProperties(
            app_transactions=notes, custom_metadata={CHECKPOINT_KEY: checkpoint} if checkpoint else None
        ),
    )


def _conflict(table: str, landed: int | None) -> str:
    return f"another process landed {table} up to offset {landed}: run one `land` per table at a time"


def added(file: ParquetFile, now_ms: int, *, new: bool) -> AddAction:
    """Return the entry of a file in the Delta log, with statistics on offsets that let readers skip the file."""
    bounds = {"minValues": {"offset": file.start}, "maxValues": {"offset": file.end - 1}, "nullCount": {"offset": 0}}
    stats = json.dumps({"numRecords": file.end - file.start, **bounds})
    return AddAction(file.name, file.size_bytes, {}, now_ms, new, stats)


def append_files(table: str, files: Sequence[ParquetFile]) -> None:
    """Append files to a plain table by renaming them in order, so that a crash leaves a prefix of the stream."""
    folder = Path(table)
    present = _ranges(folder)
    if present and present[-1][1] != files[0].start:
        raise StorageError(_conflict(table, present[-1][1]))
    if files[0].start and not present:
        durable.put(folder / _FIRST, f"{files[0].start}\n", mode=0o666)
    for file in files:
        os.replace(folder / file.name, folder / f"{file.start:020d}-{file.end:020d}.parquet")


def table(spark: SparkSession, path: str | Path, storage_options: Storage = None) -> DataFrame:
    """Return the current content of a landed table as a DataFrame.

    `path` is the table's folder (see `table_path`), or a folder that contains a single table. `storage_options` are
    passed to delta-rs, for tables in an object store. A table without rows yields an empty DataFrame with the usual
    columns. Raises `Missing` if there is no table.

    Use this function instead of `spark.read.parquet`: the folder of a Delta table may contain files that are not part
    of its current version.
    """
    location = str(path).rstrip("/")
    if kind_of(location, storage_options) is None:
        location = _resolve(location)
    files = _files_of(location, storage_options)
    if not files:
        return spark.createDataFrame([], schema_text(headers=True))
    return spark.read.parquet(*(_PATTERN.sub(r"\\\g<0>", file) for file in files))


def _resolve(location: str) -> str:
    """Resolve a path that is not a table itself.

    A folder that contains exactly one table stands for that table. A folder to which a first batch is being written is
    an empty table.
    """
    if "://" in location:
        raise Missing(f"there is no table at {location}: land a stream first, or give its path by table_path")
    inside, beside = landed_streams(location), landed_streams(Path(location).parent)
    if len(inside) == 1:
        return table_path(location, inside[0])
    if _begun(Path(location)):
        return location
    if inside or beside:
        names = ", ".join(inside or beside)
        raise Missing(f"there is no table at {location}: there are tables of {names} {'in' if inside else 'beside'} it")
    raise Missing(f"there is no table at {location}: land a stream first, or give its path by table_path")


def _begun(folder: Path) -> bool:
    """Whether a first batch is being written to this folder."""
    return (folder / STAGING).is_dir() or any(folder.glob("*.parquet"))


def arrow_schema() -> Any:
    """Return the Arrow schema of all landed tables."""
    ours = {"partition": pa.int32(), "timestampType": pa.int32(), "headers": HEADERS_TYPE}
    names = [field.split()[0] for field in fields(headers=True)]
    return pa.schema([(name, ours[name] if name in ours else SCHEMA.field(name).type) for name in names])
