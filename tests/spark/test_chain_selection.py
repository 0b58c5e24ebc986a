"""What is said of a stream that is not there, or seems not to be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from chaplain.errors import Missing, Refused, Unreachable
from chaplain.pipeline.data_source import _select_streams
from chaplain.pipeline.landing.land import SegmentLogs, open_log
from chaplain.pipeline.source import live
from chaplain.pipeline.source.backends import open_backend
from chaplain.pipeline.source.live import LiveBackend
from chaplain.pipeline.source.options import parse
from tests.spark.support.scene import Scene


def chosen(**given: str) -> list[str]:
    options = parse(given, streaming=False)
    return _select_streams(options, open_backend(options.target))


@pytest.mark.parametrize("given", ["", "node-1"])
def test_folder_above_segments_names_the_existing_segment_folders(tmp_path: Path, given: str) -> None:
    scene = Scene(tmp_path, 1)
    scene.write()
    with pytest.raises(Missing, match=f"give a node's segments, such as {scene.segments}$"):
        chosen(path=str(tmp_path / given), subscribe="orders")
    assert chosen(path=str(scene.segments), subscribe="orders") == ["orders"]


def test_empty_folder_gives_an_error_without_suggestions(tmp_path: Path) -> None:
    with pytest.raises(Missing, match=f"there are no streams in {tmp_path}: give a node's segments$"):
        chosen(path=str(tmp_path), subscribe="orders")


@pytest.mark.parametrize("given", ["", "cluster.toml"])
def test_cluster_file_is_accepted_in_place_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """For kinds that are read from segments alone, and for all of them if no node answers."""
    Scene(tmp_path, 1).write()
    (tmp_path / "cluster.toml").touch()

    def connect(*_: object, **__: object) -> NoReturn:
        raise Unreachable("nobody")

    monkeypatch.setattr(live, "connect", connect)
    monkeypatch.setattr(live, "ANSWER_S", 0)
    assert chosen(cluster=str(tmp_path / given), subscribe="orders") == ["orders"]
    assert chosen(cluster=str(tmp_path / given), subscribePattern=".*", kind="graph") == []
    assert isinstance(open_log(str(tmp_path / given), ""), SegmentLogs)


@pytest.mark.parametrize(
    ("answer", "words"), [(Refused("this client may not read"), "may not read"), (Missing("?"), "there is no stream")]
)
def test_missing_right_or_stream_is_reported(monkeypatch: pytest.MonkeyPatch, answer: Exception, words: str) -> None:
    def read(*_: object, **__: object) -> NoReturn:
        raise answer

    client = SimpleNamespace(streams=list, journal=lambda stream: SimpleNamespace(read=read))
    monkeypatch.setattr(live, "client_of", lambda target: client)
    options = parse({"cluster": "c", "subscribe": "orders"}, streaming=False)
    with pytest.raises((Refused, Missing), match=words):
        _select_streams(options, LiveBackend(options.target))
