"""`verify`: verifies a log, or a table landed from it, in parallel, and reports every break.

This module distributes a verification over Spark. `chaplain.verification` decides what to verify and defines what a
break is. The plan is made by Spark's planning process, so the session may be on another machine; only the manifest is
read and written by the caller's process.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from chaplain.errors import ConfigError, Missing
from chaplain.pipeline.source.spark_errors import collect
from chaplain.pipeline.verification.table_proof import find_table_breaks
from chaplain.segment.arrow import cell_of
from chaplain.verification import manifest as manifests
from chaplain.verification.batches import Keys
from chaplain.verification.chain_selection import SelectedMessage
from chaplain.verification.manifest import ManifestContent
from chaplain.verification.plan import VerifyPlan, VerifyRequest, keys_of, make_plan
from chaplain.verification.proof_segments import ProofSegment
from chaplain.verification.record_reader import check
from chaplain.verification.result import VerifyResult, counted, join_results
from chaplain.verification.tree_check import LeafRange, TreeSource
from chaplain.verification.verify import verify_here, verify_log
from chaplain.verification.violations import FIELDS, Break

BREAKS = "stream string, offset bigint, kind string, expected string, found string"
_plans = msgspec.msgpack.Decoder(VerifyPlan)
_segments = msgspec.msgpack.Decoder(ProofSegment)


class _Partition(InputPartition):
    def __init__(
        self,
        messages: list[SelectedMessage],
        keys: Keys | None,
        plan: VerifyPlan | None = None,
        siblings: tuple[str, ...] = (),
        leaf_range: LeafRange | None = None,
    ) -> None:
        self.messages = messages
        self.keys = keys
        self.plan = plan
        self.siblings = siblings
        self.leaf_range = leaf_range


class ProofSource(DataSource):
    """A data source whose tasks verify messages: one row per task with its `ProofSegment`, and one row with the
    plan.
    """

    @classmethod
    def name(cls) -> str:
        return "chaplain-runs"

    def schema(self) -> str:
        return "kind string, data binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options["request"])


class _Reader(DataSourceReader):
    def __init__(self, request: str) -> None:
        self._request = request

    def partitions(self) -> list[InputPartition]:
        plan = make_plan(msgspec.msgpack.decode(base64.b64decode(self._request), type=VerifyRequest))
        parts: list[InputPartition] = [
            _Partition(segment, keys_of(plan, segment), siblings=plan.siblings, leaf_range=plan.leaf_range(task))
            for task, segment in enumerate(plan.segments)
        ]
        return [*parts, _Partition([], None, msgspec.structs.replace(plan, segments=[], keys=None, leaf_ranges=()))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        part = cast("_Partition", partition)
        if part.plan is not None:
            yield _row("plan", part.plan)
        else:
            yield _row("run", check(part.messages, part.keys, part.siblings, part.leaf_range))


def _row(kind: str, what: VerifyPlan | ProofSegment) -> Any:
    """Return an Arrow batch with one row. From a tuple Spark would build it with pandas, which is slow to import."""
    cells = [cell_of(kind.encode(), pa.string()), cell_of(msgspec.msgpack.encode(what), pa.binary())]
    return pa.RecordBatch.from_arrays(cells, names=["kind", "data"])


def _prove(spark: SparkSession, request: VerifyRequest) -> tuple[VerifyResult, VerifyPlan]:
    spark.dataSource.register(ProofSource)
    text = base64.b64encode(msgspec.msgpack.encode(request)).decode()
    rows = collect(spark.read.format("chaplain-runs").option("request", text).load())
    plan, segments = decode_rows((row.kind, bytes(row.data)) for row in rows)
    return join_results(plan, segments), plan


def decode_rows(rows: Iterable[tuple[str, bytes]]) -> tuple[VerifyPlan, list[ProofSegment]]:
    """Return what the rows of a `ProofSource` contain."""
    by_kind: dict[str, list[bytes]] = {"plan": [], "run": []}
    for kind, data in rows:
        by_kind[kind].append(data)
    (plan,) = by_kind["plan"]
    return _plans.decode(plan), [_segments.decode(data) for data in by_kind["run"]]


def prove(
    spark: SparkSession | None,
    *,
    cluster: str | Path = "",
    path: str | Path = "",
    manifest: str | Path | None = None,
    identity: str = "",
    signatures: bool = False,
    founding: str = "",
    tree: TreeSource | None = None,
) -> VerifyResult:
    """Verify a log and return the result, including its breaks.

    `spark` is the session whose executors verify the log; with None this process verifies it itself. The other
    arguments are those of `chaplain.verification.verify.verify_log`.
    """
    run = verify_here if spark is None else partial(_prove, spark)
    return verify_log(
        run,
        cluster=cluster,
        path=path,
        manifest=manifest,
        identity=identity,
        signatures=signatures,
        founding=founding,
        tree=tree,
    )


def _read_manifest(manifest: str | Path | None, identity: str) -> ManifestContent | None:
    if manifest is None:
        return None
    file = Path(manifest)
    if not file.exists():
        raise Missing(f"there is no manifest at {manifest}: prove the log with it first")
    return manifests.read(file, manifests.signer_for(file, identity, to_write=False))


def find_breaks(
    spark: SparkSession,
    *,
    cluster: str | Path = "",
    path: str | Path = "",
    tables: str | Path = "",
    stream: str = "",
    manifest: str | Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
    **more: Any,
) -> list[Break]:
    """Like `verify`, but return a list of `Break` objects.

    `tell` is called with one sentence about what was verified.
    """
    if sum(map(bool, (cluster, path, tables))) != 1:
        raise ConfigError("give the cluster's folder, a path to segments, or tables")
    if tables:
        breaks = find_table_breaks(spark, tables, stream, _read_manifest(manifest, str(more.get("identity", ""))))
        tell(f"tables in {tables} read: {counted(len(breaks), 'break')}" if breaks else f"tables in {tables} proven")
        return breaks
    proof = prove(spark, cluster=cluster, path=path, manifest=manifest, **more)
    tell(proof.told())
    return proof.breaks_of(stream)


def verify(
    spark: SparkSession,
    *,
    cluster: str | Path = "",
    path: str | Path = "",
    tables: str | Path = "",
    stream: str = "",
    manifest: str | Path | None = None,
    **more: Any,
) -> DataFrame:
    """Verify a log or landed tables, and return a DataFrame of breaks; it is empty if everything is intact.

    The columns are `stream`, `offset`, `kind`, `expected` and `found`. A row with an empty `stream` concerns the whole
    log; its `offset` is the index of the cluster message.

    Arguments:
        spark: The session whose executors do the work.
        cluster: Verify the log in this cluster's folder, as `prove` does.
        path: Verify the log in this folder of segments.
        tables: Verify the landed tables in this folder. Give exactly one of `cluster`, `path` and `tables`.
        stream: Report only breaks of this stream and of the whole log. Default: all streams.
        manifest: See `prove`. For tables, the chain of each stream must agree with this manifest.
        more: `identity`, `signatures`, `founding` and `tree`, as for `prove`.

    Raises `Missing` if there is nothing to verify, or if `stream` does not exist.
    """
    breaks = find_breaks(spark, cluster=cluster, path=path, tables=tables, stream=stream, manifest=manifest, **more)
    rows = [tuple(getattr(one, name) for name in FIELDS) for one in breaks]
    return spark.createDataFrame(rows, BREAKS)
