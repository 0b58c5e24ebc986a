"""The Spark job and the worker processes report the same breaks: for every planted damage, without Spark or processes.

Each task and each result takes the way that it takes in a job: it is pickled or encoded, and decoded again. One
verification of a damaged log by Spark itself is in `test_spark.py`, one by real processes in
`tests/unit/verification/test_process_pool.py`.
"""

from __future__ import annotations

import base64
import pickle
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Pipe
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from chaplain.errors import Inaccessible
from chaplain.pipeline.source.spark_errors import translated
from chaplain.pipeline.verification.table_proof import check_file
from chaplain.pipeline.verification.verify import ProofSource, decode_rows
from chaplain.segment.files import list_segments
from chaplain.verification.batches import Keys
from chaplain.verification.plan import VerifyRequest, keys_of, make_plan
from chaplain.verification.proof_segments import ProofSegment
from chaplain.verification.result import VerifyResult, join_results
from chaplain.verification.verify import verify_here
from chaplain.verification.worker import Outcome, Setup, Task, serve
from tests.spark.support.damage import CASES
from tests.spark.support.scene import Named, Scene

TASKS = 4


def reader_of(request: VerifyRequest) -> DataSourceReader:
    text = base64.b64encode(msgspec.msgpack.encode(request)).decode()
    return ProofSource({"request": text}).reader(StructType())


def spark_rows(request: VerifyRequest) -> Iterator[tuple[str, bytes]]:
    """The rows that the Spark job collects."""
    reader = reader_of(request)
    for partition in pickle.loads(pickle.dumps(reader.partitions())):
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            yield from ((row["kind"], row["data"]) for row in batch.to_pylist())


def by_spark(request: VerifyRequest) -> VerifyResult:
    plan, segments = decode_rows(spark_rows(request))
    return join_results(plan, segments)


def by_worker(request: VerifyRequest) -> VerifyResult:
    plan = make_plan(request, TASKS)
    ours, theirs = Pipe()
    worker = threading.Thread(target=serve, args=[theirs])
    worker.start()
    with ours:
        ours.send_bytes(msgspec.msgpack.encode(Setup(plan.keys and Keys(plan.cluster, plan.keys), plan.siblings)))
        segments: list[ProofSegment] = []
        for messages in plan.segments:
            ours.send_bytes(msgspec.msgpack.encode(Task(messages, keys_of(plan, messages) is not None)))
            outcome = msgspec.msgpack.decode(ours.recv_bytes(), type=Outcome)
            assert outcome.segment is not None, outcome.error
            segments.append(outcome.segment)
    worker.join(60)
    theirs.close()
    return join_results(plan, segments)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_both_runners_report_the_same_breaks(tmp_path: Path, case: Callable[[Scene], Named], seed: int) -> None:
    scene = Scene(tmp_path, seed)
    expected = sorted(case(scene))
    request = scene.request()
    spark, worker, here = by_spark(request), by_worker(request), verify_here(request, TASKS)[0]
    assert spark == worker == here
    assert [(one.stream, one.offset, one.kind) for one in here.breaks] == expected


def test_task_of_spark_does_not_call_a_file_damaged_that_it_cannot_open(tmp_path: Path) -> None:
    """As on a worker that does not have the folder of the segments."""
    scene = Scene(tmp_path, 1)
    scene.write()
    gone = list_segments(scene.segments)[0].path
    reader = reader_of(scene.request())
    first = reader.partitions()[0]
    gone.unlink()
    with pytest.raises(Inaccessible, match=f"cannot read {gone}: No such file") as raised:
        list(reader.read(first))
    known = translated(PySparkException(f"[PYTHON_DATA_SOURCE_ERROR]\nchaplain.errors.Inaccessible: {raised.value}\n"))
    assert isinstance(known, Inaccessible)


def test_table_that_is_not_mounted_is_not_damaged(tmp_path: Path) -> None:
    """If the folder is there and lacks the file, the table has lost it."""
    with pytest.raises(Inaccessible, match=r"nowhere/0-10\.parquet: No such file"):
        check_file("orders", str(tmp_path / "nowhere/0-10.parquet"))
    (found,) = check_file("orders", str(tmp_path / "0-10.parquet")).breaks
    assert (found.kind, found.offset) == ("damaged", 0)
    (tmp_path / "folder.parquet").symlink_to(tmp_path / "folder.parquet")
    with pytest.raises(Inaccessible, match="Too many levels"):
        check_file("orders", str(tmp_path / "folder.parquet"))
