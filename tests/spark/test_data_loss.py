"""Only rows that retention dropped may be left out, and only with `failOnDataLoss=false`. No test here starts Spark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from chaplain.errors import ConfigError, Dropped, Inaccessible, Missing, Refused, StorageError, Unreachable
from chaplain.pipeline.data_source import ChaplainSource
from chaplain.pipeline.landing.land import open_log
from chaplain.pipeline.source import live
from chaplain.pipeline.source.live import LiveRange
from chaplain.pipeline.source.options import Target, parse, parse_target
from chaplain.pipeline.source.rows import DroppedRows
from chaplain.segment.files import list_segments
from tests.spark.support.stage import journal, put

ROWS = 900
LOOSE = {"failOnDataLoss": "false"}
COLUMNS = StructType([StructField("offset", LongType())])


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    return put(tmp_path / "node-1" / "segments", journal())


class Query:
    """A batch query, planned by the driver. `offsets` does what the tasks do."""

    def __init__(self, **options: str) -> None:
        self._reader = ChaplainSource({"subscribe": "orders", **options}).reader(COLUMNS)
        self._partitions = self._reader.partitions()

    def offsets(self) -> list[int]:
        read = self._reader.read
        batches = [batch for one in self._partitions for batch in cast("Iterator[Any]", read(one))]
        return [offset for batch in batches for offset in batch.column(0).to_pylist()]


@pytest.mark.parametrize("option", ["path", "cluster"])
def test_worker_in_another_directory_reads_a_relative_path(
    segments: Path, option: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    query = Query(**LOOSE, **{option: "node-1/segments" if option == "path" else "."})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert query.offsets() == list(range(ROWS))


def test_land_makes_its_paths_absolute(segments: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    log = open_log("", "node-1/segments")
    assert log.end("orders") == ROWS
    assert all(
        Path(place.path).is_absolute() for one in cast("Any", log.split("orders", 0, ROWS, 2)) for place in one.places
    )


def test_paths_of_identities_are_absolute_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    found = parse_target({"cluster": "demo", "identityFile": "keys/ann"})
    assert (found.cluster, found.identity_file) == (str(tmp_path / "demo"), str(tmp_path / "keys" / "ann"))


@pytest.mark.parametrize("loss", ["true", "false"])
def test_worker_that_cannot_open_the_folder_fails(segments: Path, loss: str) -> None:
    query = Query(path=str(segments), failOnDataLoss=loss)
    segments.rename(segments.with_name("not mounted here"))
    with pytest.raises(Inaccessible, match="cannot be read here"):
        query.offsets()


def test_worker_without_rights_to_the_files_fails(segments: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(path=str(segments), **LOOSE)

    def refuse(path: Any, *_: Any, **__: Any) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(Inaccessible, match="Permission denied"):
        query.offsets()


def test_worker_that_finds_damage_fails(segments: Path) -> None:
    query = Query(path=str(segments), **LOOSE)
    middle = list_segments(segments)[1].path
    middle.write_bytes(bytes(middle.stat().st_size))
    with pytest.raises(StorageError, match="verify the log"):
        query.offsets()


def test_segment_that_vanished_from_the_middle_is_not_dropped(segments: Path) -> None:
    query = Query(path=str(segments), **LOOSE)
    list_segments(segments)[1].path.unlink()
    with pytest.raises(Inaccessible, match="cannot be read here"):
        query.offsets()


def test_rows_that_retention_dropped_are_left_out_with_a_warning(
    segments: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loose, strict = (Query(path=str(segments), failOnDataLoss=loss) for loss in ("false", "true"))
    for file in list_segments(segments)[:2]:
        file.path.unlink()
    kept = loose.offsets()
    assert 0 < kept[0] < ROWS
    assert kept == list(range(kept[0], ROWS))
    assert caplog.messages[0].startswith("'orders': offsets 0 to ")
    assert caplog.messages[-1].endswith(f" to {kept[0] - 1} were dropped, and are left out")
    with pytest.raises(Dropped, match="set failOnDataLoss to false"):
        strict.offsets()


def test_folder_without_streams_is_an_error_without_fail_on_loss(tmp_path: Path) -> None:
    (tmp_path / "node-1" / "segments").mkdir(parents=True)
    with pytest.raises(Missing, match="give a node's segments, such as"):
        Query(path=str(tmp_path), **LOOSE)


@pytest.mark.parametrize("error", [ConfigError("no identity"), Refused("no right to read"), StorageError("disk")])
def test_worker_that_cannot_read_from_nodes_fails(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Iterator[object]:
        raise error

    monkeypatch.setattr(live, "_chunks", refuse)
    wanted = LiveRange("orders", 20, 100, Target(cluster="c"))
    with pytest.raises(type(error)) as found:
        list(live._records(wanted, False, DroppedRows("orders")))
    assert found.value is error


def test_worker_that_cannot_reach_the_cluster_fails_after_the_time_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]

    def refuse(*_: object) -> Iterator[object]:
        now_s[0] += 20
        raise Unreachable("no node answers")

    monkeypatch.setattr(live, "_chunks", refuse)
    monkeypatch.setattr(live.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(live.time, "sleep", lambda _: None)
    options = parse({"cluster": "c", "subscribe": "orders", "reconnectTimeout": "3m"}, streaming=True)
    wanted = LiveRange("orders", 20, 100, options.target, options.reconnect_s)
    with pytest.raises(Unreachable):
        list(live._records(wanted, False, DroppedRows("orders")))
    assert 180 < now_s[0] <= 200


@pytest.mark.parametrize(("down_s", "fails"), [(170, False), (190, True)])
def test_streaming_query_outlives_a_cluster_that_is_down(
    down_s: float, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, up_s = [100.0], [0.0]

    class Cluster:
        def streams(self) -> list[object]:
            if now_s[0] < up_s[0]:
                raise Unreachable("no node answers")
            return [SimpleNamespace(stream="orders", first_offset=0, next_offset=int(now_s[0]))]

    monkeypatch.setattr(live, "client_of", lambda _: Cluster())
    monkeypatch.setattr(live.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(live.time, "sleep", lambda wait_s: now_s.__setitem__(0, now_s[0] + max(wait_s, 1)))
    options = {"endpoints": "tcp://a:1", "subscribe": "orders", "reconnectTimeout": "3m"}
    query = cast("Any", ChaplainSource(options).streamReader(COLUMNS))
    assert query.reportLatestOffset() == {"orders": {"0": 100}}
    now_s[0] += 1
    up_s[0] = now_s[0] + down_s
    if fails:
        with pytest.raises(Unreachable):
            query.reportLatestOffset()
    else:
        assert query.reportLatestOffset() == {"orders": {"0": int(up_s[0])}}


def test_query_that_never_reached_its_cluster_fails_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]

    def refuse(_: object) -> object:
        raise Unreachable("no node answers")

    monkeypatch.setattr(live, "client_of", refuse)
    monkeypatch.setattr(live.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(live.time, "sleep", lambda wait_s: now_s.__setitem__(0, now_s[0] + max(wait_s, 1)))
    with pytest.raises(Unreachable):
        Query(endpoints="tcp://a:1")
    assert now_s[0] <= live.ANSWER_S + 1


def test_stream_that_a_client_may_not_read_is_not_an_empty_one(segments: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object, stream: str) -> None:
        raise Refused(f"no right to read {stream!r}")

    monkeypatch.setattr("chaplain.pipeline.source.backends.FolderBackend.check_access", refuse)
    options = {"path": str(segments), "subscribe": "orders,secret", **LOOSE}
    with pytest.raises(Refused, match="no right to read 'secret'"):
        Query(**options)
    streaming = ChaplainSource(options).streamReader(COLUMNS)
    with pytest.raises(Refused, match="no right to read 'secret'"):
        cast("Any", streaming).latestOffset({"orders": {"0": 0}, "secret": {"0": 7}}, None)


def test_streaming_query_does_not_commit_past_a_log_that_it_cannot_open(segments: Path, tmp_path: Path) -> None:
    reader = cast("Any", ChaplainSource({"path": str(segments), "subscribe": "orders", **LOOSE}).streamReader(COLUMNS))
    planned = reader.partitions({"orders": {"0": 0}}, {"orders": {"0": ROWS}})
    shutil.rmtree(segments)
    with pytest.raises(StorageError):
        [list(reader.read(one)) for one in planned]
