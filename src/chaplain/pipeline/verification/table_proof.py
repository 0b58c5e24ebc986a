"""Verifies landed tables: tasks check the files in parallel (`table_check`), and the driver joins the results by
offset.

This module decides whether files continue one another and, with a manifest, whether the table is the stream that was
verified in the log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from chaplain.errors import Inaccessible, Missing
from chaplain.journal.execution.state import stream_genesis, stream_hash
from chaplain.pipeline.source.spark_errors import collect
from chaplain.pipeline.tables import (
    first_landed,
    kind_of,
    landed_files,
    landed_offset,
    landed_streams,
    offsets_in_name,
    stray_files,
    table_path,
)
from chaplain.pipeline.verification.table_check import (
    COLUMNS,
    FileProof,
    MessageRows,
    check_pack,
    check_rows,
    from_bytes,
    join_message,
)
from chaplain.segment.layout import HASH_BYTES
from chaplain.verification.manifest import ManifestContent
from chaplain.verification.violations import Break, deduplicate

ROWS_A_STEP = 65_536
_proof_decoder = msgspec.msgpack.Decoder(FileProof)


class _Partition(InputPartition):
    def __init__(self, stream: str, file: str, chains: bool) -> None:
        self.stream = stream
        self.file = file
        self.chains = chains


class TableProofSource(DataSource):
    """A data source whose tasks check files. It yields one row for each file, with its `FileProof`."""

    @classmethod
    def name(cls) -> str:
        return "chaplain-table-runs"

    def schema(self) -> str:
        return "data binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options["tables"], self.options["stream"], self.options["chains"] == "true")


class _Reader(DataSourceReader):
    def __init__(self, tables: str, stream: str, chains: bool) -> None:
        self._tables, self._stream, self._chains = tables, stream, chains

    def partitions(self) -> list[InputPartition]:
        files = _files(self._tables, self._stream)
        return [_Partition(self._stream, file, self._chains) for file in files] or [_Partition(self._stream, "", False)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        part = cast("_Partition", partition)
        if part.file:
            yield (msgspec.msgpack.encode(check_file(part.stream, part.file, part.chains)),)


def check_file(stream: str, file: str, chains: bool = False) -> FileProof:
    """Check one file. A file that is missing from its table, or is no valid Parquet, is reported as a break.

    Raises `Inaccessible` if the file or the table's folder cannot be opened: that does not show any damage.
    """
    try:
        return _check_file(stream, file, chains)
    except (OSError, pa.ArrowException, KeyError) as error:
        if isinstance(error, OSError) and error.errno is not None and not _is_lost(file, error):
            raise Inaccessible(f"cannot read {file}: {os.strerror(error.errno)}") from error
        name = Path(file).name
        start, end = offsets_in_name(name)
        reason = str(error).strip().partition("\n")[0]
        return FileProof(breaks=[Break(stream, start, "damaged", f"offsets {start} to {end - 1}", reason, file=name)])


def _is_lost(file: str, error: OSError) -> bool:
    """Whether the table's folder is here and lacks the file. Arrow raises errors of content without a number."""
    return isinstance(error, FileNotFoundError) and Path(file).parent.is_dir()


def _check_file(stream: str, file: str, chains: bool) -> FileProof:
    opened = pq.ParquetFile(file)
    columns = [name for name in COLUMNS if name in opened.schema_arrow.names]
    batches = (pa.Table.from_batches([batch]) for batch in opened.iter_batches(ROWS_A_STEP, columns=columns))
    return check_rows(stream, batches, chains)


def find_table_breaks(
    spark: SparkSession | None, tables: str | Path, stream: str = "", proven: ManifestContent | None = None
) -> list[Break]:
    """Return all breaks of one landed stream, or of all streams in `tables`."""
    present = landed_streams(tables)
    streams = [one for one in present if stream in ("", one)]
    if not streams:
        found = f"; there are tables of {', '.join(present)}" if present else ""
        raise Missing(
            f"there are no tables {f'of {stream!r} ' if stream else ''}in {tables}: land a stream first{found}"
        )
    breaks: list[Break] = []
    for name in streams:
        proofs = _file_proofs(spark, str(tables), name, proven is not None)
        delta = kind_of(table_path(tables, name)) == "delta"
        end = landed_offset(tables, name) if delta else None
        breaks += join(name, proofs, end, proven, first=first_landed(tables, name))
    return deduplicate(breaks)


def _files(tables: str, stream: str) -> list[str]:
    return [*landed_files(tables, stream), *stray_files(tables, stream)]


def _file_proofs(spark: SparkSession | None, tables: str, stream: str, chains: bool) -> list[FileProof]:
    if spark is None:
        return [check_file(stream, file, chains) for file in _files(tables, stream)]
    spark.dataSource.register(TableProofSource)
    options = {"tables": tables, "stream": stream, "chains": str(chains).lower()}
    rows = collect(spark.read.format("chaplain-table-runs").options(**options).load())
    return [_proof_decoder.decode(bytes(row.data)) for row in rows]


def join(
    stream: str, proofs: Iterable[FileProof], end: int | None, proven: ManifestContent | None = None, *, first: int = 0
) -> list[Break]:
    """Return all breaks: within files, between them, at both ends of the table, and against the manifest.

    `end` is the next offset according to the Delta log. Plain Parquet tables have none; their last pack may continue in
    a file that is not landed yet, so it is not verified.
    """
    found = list(proofs)
    ordered = sorted((proof for proof in found if proof.rows), key=lambda proof: proof.first_offset)
    breaks = [one for proof in found for one in proof.breaks]
    expected, last = first, (0, 0, 0)
    for proof in ordered:
        if proof.first_offset != expected:
            breaks.append(_jump(stream, expected, proof.first_offset))
        for kind, before, after in zip(("order", "regime", "time"), last, proof.first, strict=True):
            if after < before:
                breaks.append(Break(stream, proof.first_offset, kind, f"{before} or more", str(after)))
        expected, last = proof.next_offset, proof.last
    if end is not None and expected != end:
        kind = "missing" if expected < end else "repeated"
        breaks.append(Break(stream, min(expected, end), kind, f"an end at {end}", f"an end at {expected}"))
    packs = list(_open_packs(ordered))
    for rows in packs if end is not None else packs[:-1]:
        breaks += check_pack(stream, rows)
    breaks = _causes(breaks)
    if proven is not None and not breaks and not first:  # the chain can be computed only from offset 0 on
        breaks += _compare_chain(stream, ordered, proven)
    return deduplicate(breaks)


def _jump(stream: str, expected: int, found: int) -> Break:
    kind = "missing" if found > expected else "repeated"
    return Break(stream, min(expected, found), kind, f"offset {expected}", f"offset {found}")


def _open_packs(proofs: list[FileProof]) -> Iterator[Any]:
    """Yield the packs at the ends of files, joined if a pack continues in the next file."""
    waiting: Any = None
    for data in [data for proof in proofs for data in (proof.head, proof.tail) if data]:
        rows = from_bytes(data)
        if waiting is not None and waiting.column("pack_digest")[0] == rows.column("pack_digest")[0]:
            waiting = pa.concat_tables([waiting, rows])
        else:
            if waiting is not None:
                yield waiting
            waiting = rows
    if waiting is not None:
        yield waiting


def _causes(breaks: list[Break]) -> list[Break]:
    """Drop digest breaks of packs that lack rows or have repeated rows: the missing or repeated rows are the cause."""
    holes = [one for one in breaks if one.kind in ("missing", "repeated")]
    if not holes:
        return breaks
    digests = sorted(one.offset for one in breaks if one.kind == "digest")
    incomplete = set()
    for hole in holes:
        behind = int(hole.found.split()[-1]) if hole.kind == "missing" else hole.offset
        # The pack that ends before the hole, and the one that begins after it.
        incomplete |= {max((at for at in digests if at <= hole.offset), default=-1), behind}
    return [one for one in breaks if one.kind != "digest" or one.offset not in incomplete]


def _compare_chain(stream: str, proofs: list[FileProof], proven: ManifestContent) -> list[Break]:
    """Return a break if the stream's hash chain over these rows differs from the manifest."""
    tail = proven.state.tails.get(stream)
    if tail is None or not tail.chains:
        return []
    messages: list[MessageRows] = []
    for proof in proofs:
        for message in proof.messages:
            join_message(messages, message)
    chain = stream_genesis(proven.cluster, stream)
    for message in messages:
        if message.first_offset >= tail.next_offset:
            break
        digests = [message.digests[at : at + HASH_BYTES] for at in range(0, len(message.digests), HASH_BYTES)]
        chain = stream_hash(chain, message.first_offset, message.count, digests)
    if chain in tail.chains or (messages and messages[-1].first_offset + messages[-1].count < tail.next_offset):
        return []
    return [Break(stream, tail.next_offset - 1, "stream chain", f"{tail.chains[0].hex()}, as proven", chain.hex())]
