"""`verify`: verifies a log, or a table landed from it, in parallel, and reports every break.

This module distributes a verification over Spark. `plan` decides what to verify; `checker` and `proof_segments` define
what a break is. The plan is made by Spark's planning process, so the session may be on another machine; only the
manifest is read and written by the caller's process.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from chaplain.config import find_cluster, load_cluster
from chaplain.core import Frozen
from chaplain.errors import ConfigError, Missing
from chaplain.pipeline.source.spark_errors import collect
from chaplain.pipeline.verification.table_proof import find_table_breaks
from chaplain.segment.arrow import cell_of
from chaplain.verification import manifest as manifests
from chaplain.verification.batches import Keys
from chaplain.verification.chain_selection import SelectedMessage
from chaplain.verification.manifest import Proven
from chaplain.verification.plan import VerifyPlan, VerifyRequest, keys_of, make_plan
from chaplain.verification.proof_segments import ProofSegment, ProofState, join_segments
from chaplain.verification.record_reader import check
from chaplain.verification.trust_anchor import join_segments_at
from chaplain.verification.violations import FIELDS, Break, deduplicate

BREAKS = "stream string, offset bigint, kind string, expected string, found string"
_plans = msgspec.msgpack.Decoder(VerifyPlan)
_segments = msgspec.msgpack.Decoder(ProofSegment)


class VerifyResult(Frozen, frozen=True):
    """The result of a verification."""

    breaks: list[Break]
    state: ProofState
    """How far the log is verified, if there are no breaks."""
    rows: int = 0
    """Number of stream messages that were read."""
    packs: int = 0
    """Number of packs that were read."""
    unchecked: int = 0
    """Packs with an HMAC signature, which only nodes can check because only they have the secret."""
    node: int = 0
    """The node whose log was verified; 0 if unknown."""
    others: tuple[int, ...] = ()
    """Nodes whose record headers were compared with that log."""
    went_on: bool = False
    """Whether the verification continued an earlier one, from its manifest."""

    def told(self) -> str:
        """Return one sentence about what was verified and what was not."""
        whose = f"node {self.node}" if self.node else "the log"
        more = " more than the manifest says" if self.went_on else ""
        what = f"{_counted(self.rows, 'message')}{more}, {_counted(len(self.state.tails), 'stream')}"
        ours = [one for one in self.breaks if one.node in (0, self.node)]
        said = f"{whose} read: {what}, {_counted(len(ours), 'break')}" if ours else f"{whose} proven: {what}"
        heads = ", ".join(map(str, self.others))
        return f"{said}; nodes {heads} by their heads only: prove them with --node" if heads else said


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


class _Partition(InputPartition):
    def __init__(
        self,
        messages: list[SelectedMessage],
        keys: Keys | None,
        plan: VerifyPlan | None = None,
        siblings: tuple[str, ...] = (),
    ) -> None:
        self.messages = messages
        self.keys = keys
        self.plan = plan
        self.siblings = siblings


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
            _Partition(segment, keys_of(plan, segment), siblings=plan.siblings) for segment in plan.segments
        ]
        return [*parts, _Partition([], None, msgspec.structs.replace(plan, segments=[], keys=None))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        part = cast("_Partition", partition)
        if part.plan is not None:
            yield _row("plan", part.plan)
        else:
            yield _row("run", check(part.messages, part.keys, part.siblings))


def _row(kind: str, what: VerifyPlan | ProofSegment) -> Any:
    """Return an Arrow batch with one row. From a tuple Spark would build it with pandas, which is slow to import."""
    cells = [cell_of(kind.encode(), pa.string()), cell_of(msgspec.msgpack.encode(what), pa.binary())]
    return pa.RecordBatch.from_arrays(cells, names=["kind", "data"])


def join_results(plan: VerifyPlan, segments: list[ProofSegment]) -> VerifyResult:
    if plan.anchor is None:
        breaks, state = join_segments(segments, plan.begin, plan.cluster)
    else:
        breaks, state = join_segments_at(segments, plan.anchor, plan.cluster)
    sums = {name: sum(getattr(segment, name) for segment in segments) for name in ("rows", "packs", "unchecked")}
    went_on = plan.begin.point is not None and plan.begin.point.index > 0
    ours = [one if one.node else msgspec.structs.replace(one, node=plan.node) for one in [*plan.breaks, *breaks]]
    return VerifyResult(deduplicate(ours), state, **sums, node=plan.node, others=plan.others, went_on=went_on)


def verify_here(request: VerifyRequest, tasks: int = 4) -> tuple[VerifyResult, VerifyPlan]:
    """Verify a log in this process, without Spark."""
    plan = make_plan(request, tasks)
    return join_results(
        plan, [check(segment, keys_of(plan, segment), plan.siblings) for segment in plan.segments]
    ), plan


def _prove(spark: SparkSession, request: VerifyRequest) -> tuple[VerifyResult, VerifyPlan]:
    spark.dataSource.register(ProofSource)
    text = base64.b64encode(msgspec.msgpack.encode(request)).decode()
    rows = collect(spark.read.format("chaplain-runs").option("request", text).load())
    plan = next(_plans.decode(bytes(row.data)) for row in rows if row.kind == "plan")
    segments = [_segments.decode(bytes(row.data)) for row in rows if row.kind == "run"]
    return join_results(plan, segments), plan


def prove(
    spark: SparkSession | None,
    *,
    cluster: str | Path = "",
    path: str | Path = "",
    manifest: str | Path | None = None,
    identity: str = "",
    signatures: bool = False,
    founding: str = "",
) -> VerifyResult:
    """Verify a log and return the result, including its breaks.

    Arguments: spark: The session whose executors verify the log. With None this process verifies it itself. cluster:
    The cluster's folder. The longest log is verified, and the other nodes' logs are compared with it. path: A node's
    folder of segments, instead of `cluster`. manifest: A file with the signed result of an earlier verification. The
    verification continues where it ended. A result without breaks is written to this file. identity: The identity
    file that signs the manifest. Default: `CHAPLAIN_IDENTITY`, the cluster's client, or a key that is created beside
    the manifest. signatures: Also verify the clients' signatures, from the founding clients on. founding: A
    `node.toml` with the founding clients, if there is none beside the segments.
    """
    path, cluster = str(path), str(cluster)
    if manifest is None:
        request = VerifyRequest(path, cluster, founding, signatures)
        return (_prove(spark, request) if spark is not None else verify_here(request))[0]
    file = Path(manifest)
    signer = manifests.signer_for(file, signing(identity, cluster))
    before = manifests.read(file, signer)
    request = VerifyRequest(path, cluster, founding, signatures, before)
    proof, plan = _prove(spark, request) if spark is not None else verify_here(request)
    if not proof.breaks:
        rows = proof.rows + (before.rows if before is not None and plan.begin == before.state else 0)
        manifests.write(file, Proven(plan.cluster, proof.state, plan.start, rows, plan.signers), signer)
    return proof


def signing(identity: str, cluster: str) -> str:
    """Return the identity file that signs a manifest: the given one, the environment's, or the cluster's client's."""
    chosen = identity or os.environ.get(manifests.IDENTITY_VARIABLE, "")
    if chosen or not cluster:
        return chosen
    file = find_cluster(cluster)
    return str(file.parent / load_cluster(file).identity)


def _read_manifest(manifest: str | Path | None, identity: str) -> Proven | None:
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
        tell(f"tables in {tables} read: {_counted(len(breaks), 'break')}" if breaks else f"tables in {tables} proven")
        return breaks
    proof = prove(spark, cluster=cluster, path=path, manifest=manifest, **more)
    tell(proof.told())
    if stream and stream not in proof.state.tails and not proof.breaks:
        there = ", ".join(sorted(proof.state.tails)) or "none"
        raise Missing(f"there is no stream {stream!r}, so nothing is proven of it: streams here are {there}")
    return [one for one in proof.breaks if not stream or one.stream in ("", stream)]


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
        more: `identity`, `signatures` and `founding`, as for `prove`.

    Raises `Missing` if there is nothing to verify, or if `stream` does not exist.
    """
    breaks = find_breaks(spark, cluster=cluster, path=path, tables=tables, stream=stream, manifest=manifest, **more)
    rows = [tuple(getattr(one, name) for name in FIELDS) for one in breaks]
    return spark.createDataFrame(rows, BREAKS)
