"""`verify`: proves a log, or a table that was landed from it, in parallel, and names every break.

Decides how a proof is spread over Spark. What is to be proven `plan` decides, what a break is `checker` and `runs`.
The log is planned where Spark runs, so that the session may be anywhere; only the manifest is read and written here.
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
from chaplain.pipeline.verification import manifest as manifests
from chaplain.pipeline.verification.batches import Keys
from chaplain.pipeline.verification.chain_selection import SelectedMessage
from chaplain.pipeline.verification.manifest import Proven
from chaplain.pipeline.verification.plan import Asked, VerifyPlan, keys_of, make_plan
from chaplain.pipeline.verification.proof_segments import ProofSegment, ProofState, stitch
from chaplain.pipeline.verification.record_reader import check
from chaplain.pipeline.verification.table_proof import find_table_breaks
from chaplain.pipeline.verification.trust_anchor import stitch_at
from chaplain.pipeline.verification.violations import FIELDS, Break, told
from chaplain.segment.arrow import cell_of

BREAKS = "stream string, offset bigint, kind string, expected string, found string"
_plans = msgspec.msgpack.Decoder(VerifyPlan)
_runs = msgspec.msgpack.Decoder(ProofSegment)


class VerifyResult(Frozen, frozen=True):
    """What came of it."""

    breaks: list[Break]
    state: ProofState
    """How far the log is proven, if there are no breaks."""
    rows: int = 0
    """Messages of streams that were read."""
    packs: int = 0
    unchecked: int = 0
    """Packs whose signature was made with a secret that only nodes have."""
    node: int = 0
    """Whose log it is; 0: not known."""
    others: tuple[int, ...] = ()
    """Whose logs were only compared with it, by their heads."""
    went_on: bool = False
    """From where an earlier proof had come to."""

    def told(self) -> str:
        """What was proven, and what was not, in one sentence."""
        whose = f"node {self.node}" if self.node else "the log"
        more = " more than the manifest says" if self.went_on else ""
        what = f"{_counted(self.rows, 'message')}{more}, {_counted(len(self.state.tails), 'stream')}"
        ours = [one for one in self.breaks if one.node in (0, self.node)]
        said = f"{whose} read: {what}, {_counted(len(ours), 'break')}" if ours else f"{whose} proven: {what}"
        heads = ", ".join(map(str, self.others))
        return f"{said}; nodes {heads} by their heads only: prove them with --node" if heads else said


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


class _Part(InputPartition):
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


class RunsSource(DataSource):
    """One row a task: its run, as msgpack; and one row with the plan."""

    @classmethod
    def name(cls) -> str:
        return "chaplain-runs"

    def schema(self) -> str:
        return "kind string, data binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options["asked"])


class _Reader(DataSourceReader):
    def __init__(self, asked: str) -> None:
        self._asked = asked

    def partitions(self) -> list[InputPartition]:
        plan = make_plan(msgspec.msgpack.decode(base64.b64decode(self._asked), type=Asked))
        parts: list[InputPartition] = [_Part(run, keys_of(plan, run), siblings=plan.siblings) for run in plan.runs]
        return [*parts, _Part([], None, msgspec.structs.replace(plan, runs=[], keys=None))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        part = cast("_Part", partition)
        if part.plan is not None:
            yield _row("plan", part.plan)
        else:
            yield _row("run", check(part.messages, part.keys, part.siblings))


def _row(kind: str, what: VerifyPlan | ProofSegment) -> Any:
    """As Arrow, at once: Spark would import pandas to make it of a tuple."""
    cells = [cell_of(kind.encode(), pa.string()), cell_of(msgspec.msgpack.encode(what), pa.binary())]
    return pa.RecordBatch.from_arrays(cells, names=["kind", "data"])


def joined(plan: VerifyPlan, runs: list[ProofSegment]) -> VerifyResult:
    if plan.anchor is None:
        breaks, state = stitch(runs, plan.begin, plan.cluster)
    else:
        breaks, state = stitch_at(runs, plan.anchor, plan.cluster)
    sums = {name: sum(getattr(run, name) for run in runs) for name in ("rows", "packs", "unchecked")}
    went_on = plan.begin.point is not None and plan.begin.point.index > 0
    ours = [one if one.node else msgspec.structs.replace(one, node=plan.node) for one in [*plan.breaks, *breaks]]
    return VerifyResult(told(ours), state, **sums, node=plan.node, others=plan.others, went_on=went_on)


def prove_here(asked: Asked, tasks: int = 4) -> tuple[VerifyResult, VerifyPlan]:
    """The same proof in this process, without Spark."""
    plan = make_plan(asked, tasks)
    return joined(plan, [check(run, keys_of(plan, run), plan.siblings) for run in plan.runs]), plan


def _prove(spark: SparkSession, asked: Asked) -> tuple[VerifyResult, VerifyPlan]:
    spark.dataSource.register(RunsSource)
    text = base64.b64encode(msgspec.msgpack.encode(asked)).decode()
    rows = collect(spark.read.format("chaplain-runs").option("asked", text).load())
    plan = next(_plans.decode(bytes(row.data)) for row in rows if row.kind == "plan")
    runs = [_runs.decode(bytes(row.data)) for row in rows if row.kind == "run"]
    return joined(plan, runs), plan


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
    """Prove a log: from its beginning, or from where the manifest says. A proof without breaks writes the manifest."""
    path, cluster = str(path), str(cluster)
    if manifest is None:
        asked = Asked(path, cluster, founding, signatures)
        return (_prove(spark, asked) if spark is not None else prove_here(asked))[0]
    note = Path(manifest)
    signer = manifests.signer_for(note, signing(identity, cluster))
    before = manifests.read(note, signer)
    asked = Asked(path, cluster, founding, signatures, before)
    proof, plan = _prove(spark, asked) if spark is not None else prove_here(asked)
    if not proof.breaks:
        rows = proof.rows + (before.rows if before is not None and plan.begin == before.state else 0)
        manifests.write(note, Proven(plan.cluster, proof.state, plan.start, rows, plan.signers), signer)
    return proof


def signing(identity: str, cluster: str) -> str:
    """The file of who signs a manifest: as given, or as the environment says, or the cluster's client; else none."""
    chosen = identity or os.environ.get(manifests.IDENTITY_VARIABLE, "")
    if chosen or not cluster:
        return chosen
    file = find_cluster(cluster)
    return str(file.parent / load_cluster(file).identity)


def _proven(manifest: str | Path | None, identity: str) -> Proven | None:
    if manifest is None:
        return None
    note = Path(manifest)
    if not note.exists():
        raise Missing(f"there is no manifest at {manifest}: prove the log with it first")
    return manifests.read(note, manifests.signer_for(note, identity, to_write=False))


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
    """All breaks; with a stream, those of other streams are left out. `tell` is given what was proven."""
    if sum(map(bool, (cluster, path, tables))) != 1:
        raise ConfigError("give the cluster's folder, a path to segments, or tables")
    if tables:
        breaks = find_table_breaks(spark, tables, stream, _proven(manifest, str(more.get("identity", ""))))
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
    """A table of breaks: stream, offset, kind, expected, found. Empty if everything holds.

    Where `stream` is empty, the break is one of the log and `offset` is the index of the message.
    """
    breaks = find_breaks(spark, cluster=cluster, path=path, tables=tables, stream=stream, manifest=manifest, **more)
    rows = [tuple(getattr(one, name) for name in FIELDS) for one in breaks]
    return spark.createDataFrame(rows, BREAKS)
