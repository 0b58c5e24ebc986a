"""Landed tables: where they are, what they hold, how to read them, and how a batch becomes part of one.

    delta     Parquet files and a Delta log; a commit makes a batch visible, and records the offset behind it
    parquet   Parquet files alone, each named by the offsets it holds: FIRST-END.parquet, moved in place in order

Decides what of a folder is the table. Refuses to know how files are filled.

Invariant: the offsets from which and up to which a table is filled follow from the table alone, so there is no other
state to lose.
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
_HELD = re.compile(r"(\d{20})-(\d{20})")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.-]|^\.")
_ESCAPE = "~"
_ESCAPED = re.compile(r"~([0-9A-F]{2})")
"""Not with percent signs: delta-rs reads those as escapes of its own, whichever way they are given to it."""
_PATTERN = re.compile(r"[][{}*?\\]")
"""What Spark takes for a pattern unless a backslash is before it."""
STAGING = "_staging"
"""Readers of Parquet pass over names that begin like this."""
_FIRST = "_first"
"""In a plain table that does not begin with offset 0: the one that it begins with."""


class ParquetFile(Frozen, frozen=True, array_like=True):
    """A Parquet file that holds these offsets of a stream."""

    name: str
    """Relative to the table's folder."""
    start: int
    end: int
    size_bytes: int


def table_path(tables: str | Path, stream: str) -> str:
    """The folder of a stream's table. What is no plain name is escaped: `a/b` becomes `a~2Fb`.

    A name that would be too long for a folder is shortened, and ends with a digest of the stream's name.
    """
    escaped = _NOT_PLAIN.sub(lambda found: f"{_ESCAPE}{ord(found[0]):02X}", stream)
    return f"{str(tables).rstrip('/')}/{bounded(escaped, stream, _ESCAPE, FILE_NAME_BYTES_MAX)}"


def _stream_of(folder: Path) -> str:
    """The stream whose table this folder is; a shortened name does not say, but every row does."""
    if not is_shortened(folder.name, _ESCAPE):
        return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), folder.name)
    files = _files_of(str(folder), None)
    return str(next(pq.ParquetFile(files[0]).iter_batches(1, columns=["topic"])).column(0)[0]) if files else ""


def landed_streams(tables: str | Path) -> list[str]:
    """The streams that have a table in a local folder."""
    folder = Path(tables)
    found = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    streams = [_stream_of(path) for path in found if kind_of(str(path)) is not None]
    return [stream for stream in streams if stream]  # a table that was created and has no rows yet may not say


def kind_of(table: str, storage: Storage = None) -> Format | None:
    if DeltaTable.is_deltatable(table, dict(storage or {})):
        return "delta"
    folder = Path(table)
    return "parquet" if "://" not in table and folder.is_dir() and _ranges(folder) else None


def landed_offset(tables: str | Path, stream: str, storage: Storage = None) -> int:
    """The first offset that the table does not hold."""
    table = table_path(tables, stream)
    kind = kind_of(table, storage)
    if kind == "delta":
        version = DeltaTable(table, storage_options=dict(storage or {})).transaction_version(app_of(stream))
        return 0 if version is None else int(version)
    return _ranges(Path(table))[-1][1] if kind == "parquet" else 0


def first_landed(tables: str | Path, stream: str, storage: Storage = None) -> int:
    """The offset that the table begins with: what the log had lost before it began is no part of it."""
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
    """The files that are the table now, in the order of their offsets."""
    return _files_of(table_path(tables, stream), storage)


def _files_of(table: str, storage: Storage) -> list[str]:
    kind = kind_of(table, storage)
    if kind == "delta":
        files = sorted(DeltaTable(table, storage_options=dict(storage or {})).file_uris())
        return files if "://" in table else [unquote(file) for file in files]  # blanks come as %20 even in local paths
    return [str(Path(table) / file) for _, _, file in _ranges(Path(table))] if kind == "parquet" else []


def _ranges(folder: Path) -> list[tuple[int, int, str]]:
    """Offsets and names of the files that follow one another from the first offset on."""
    found: list[tuple[int, int, str]] = []
    first = _noted_first(folder)
    for start, end, name in _named(folder):
        if start == (found[-1][1] if found else first):
            found.append((start, end, name))
    return found


def held_by(name: str) -> tuple[int, int]:
    """The offsets that a landed file of this name was filled with."""
    found = _HELD.match(name)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _named(folder: Path) -> list[tuple[int, int, str]]:
    named = [(match, path.name) for path in folder.iterdir() if (match := _RANGE.fullmatch(path.name))]
    return sorted((int(match[1]), int(match[2]), name) for match, name in named)


def stray_files(tables: str | Path, stream: str) -> list[str]:
    """Files of a plain table that lie behind a gap: something that was landed is gone."""
    folder = Path(table_path(tables, stream))
    if kind_of(str(folder)) != "parquet":
        return []
    end = _ranges(folder)[-1][1]
    return [str(folder / name) for start, _, name in _named(folder) if start > end]


def app_of(stream: str) -> str:
    return f"chaplain/{stream}"


def _first_of(stream: str) -> str:
    """Under which name a Delta table notes its beginning; no stream has blanks in its name."""
    return f"{app_of(stream)} first"


def commit(table: str, stream: str, files: Sequence[ParquetFile], schema: Any, storage: Storage = None) -> None:
    """Make these files part of a Delta table, all or none, and note the offset behind them."""
    options = dict(storage or {})
    if not DeltaTable.is_deltatable(table, options):
        DeltaTable.create(table, schema=schema, storage_options=options)
    delta = DeltaTable(table, storage_options=options)
    landed = delta.transaction_version(app_of(stream))
    if landed not in (None, files[0].start):
        # Between this look and the commit, delta-rs refuses a second transaction of the same stream.
        raise StorageError(_taken(table, landed))
    notes = [Transaction(app_of(stream), files[-1].end)]
    if landed is None and files[0].start:
        notes.append(Transaction(_first_of(stream), files[0].start))
    now_ms = int(time.time() * 1000)
    delta.create_write_transaction(
        [added(file, now_ms, new=True) for file in files],
        mode="append",
        schema=delta.schema(),
        partition_by=[],
        commit_properties=CommitProperties(app_transactions=notes),
    )


def _taken(table: str, landed: int | None) -> str:
    return f"{table} was filled up to {landed} by somebody else: one `land` for each table at a time"


def added(file: ParquetFile, now_ms: int, *, new: bool) -> AddAction:
    """What a Delta log says of a file; its bounds let readers pass over it."""
    bounds = {"minValues": {"offset": file.start}, "maxValues": {"offset": file.end - 1}, "nullCount": {"offset": 0}}
    stats = json.dumps({"numRecords": file.end - file.start, **bounds})
    return AddAction(file.name, file.size_bytes, {}, now_ms, new, stats)


def move_in(table: str, files: Sequence[ParquetFile]) -> None:
    """Make these files part of a plain table, one after the other: whatever is there is a prefix of the stream."""
    folder = Path(table)
    there = _ranges(folder)
    if there and there[-1][1] != files[0].start:
        raise StorageError(_taken(table, there[-1][1]))
    if files[0].start and not there:
        durable.put(folder / _FIRST, f"{files[0].start}\n", mode=0o666)
    for file in files:
        os.replace(folder / file.name, folder / f"{file.start:020d}-{file.end:020d}.parquet")


def table(spark: SparkSession, path: str | Path, storage_options: Storage = None) -> DataFrame:
    """A landed table as it is now. Never read the folder of a Delta table as plain Parquet: it may hold more."""
    place = str(path).rstrip("/")
    if kind_of(place, storage_options) is None:
        place = _meant(place)
    files = _files_of(place, storage_options)
    if not files:
        return spark.createDataFrame([], schema_text(headers=True))
    return spark.read.parquet(*(_PATTERN.sub(r"\\\g<0>", file) for file in files))


def _meant(place: str) -> str:
    """A folder with one table in it is taken for that table, one that a first batch goes to for an empty one."""
    if "://" in place:
        raise Missing(f"there is no table at {place}: land a stream first, or give its path by table_path")
    inside, beside = landed_streams(place), landed_streams(Path(place).parent)
    if len(inside) == 1:
        return table_path(place, inside[0])
    if _begun(Path(place)):
        return place
    if inside or beside:
        names = ", ".join(inside or beside)
        raise Missing(f"there is no table at {place}: there are tables of {names} {'in' if inside else 'beside'} it")
    raise Missing(f"there is no table at {place}: land a stream first, or give its path by table_path")


def _begun(folder: Path) -> bool:
    """Whether a first batch is on its way there."""
    return (folder / STAGING).is_dir() or any(folder.glob("*.parquet"))


def arrow_schema() -> Any:
    """The schema of every landed table."""
    ours = {"partition": pa.int32(), "timestampType": pa.int32(), "headers": HEADERS_TYPE}
    names = [field.split()[0] for field in fields(headers=True)]
    return pa.schema([(name, ours[name] if name in ours else SCHEMA.field(name).type) for name in names])
