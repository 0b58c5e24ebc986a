"""A verification takes the forms of a log's place, and continues where its manifest ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaplain.errors import ConfigError, Missing
from chaplain.verification.verify import verify_log
from tests.spark.support.stage import journal, put


def test_verification_continues_from_its_manifest(tmp_path: Path) -> None:
    groups = journal()
    segments, manifest = put(tmp_path / "segments", groups[:30]), tmp_path / "manifest.json"
    first = verify_log(path=segments, manifest=manifest)
    assert (first.breaks, first.rows) == ([], 29 * 25)
    put(segments, groups)
    second = verify_log(path=segments, manifest=manifest)
    assert (second.breaks, second.rows) == ([], 11 * 25)
    note = json.loads(manifest.read_text())
    assert note["rows"] == 40 * 25
    note["rows"], note["signer"] = 7, "A" * 43
    manifest.write_text(json.dumps(note))
    with pytest.raises(ConfigError, match="signed by another identity"):
        verify_log(path=segments, manifest=manifest)


def test_log_is_found_by_path_cluster_folder_and_cluster_file(tmp_path: Path) -> None:
    segments = put(tmp_path / "node-1" / "segments", journal(messages=10))
    (tmp_path / "cluster.toml").touch()
    found = [
        verify_log(path=segments),
        verify_log(cluster=tmp_path),
        verify_log(cluster=tmp_path / "cluster.toml"),
    ]
    assert [(proof.breaks, proof.rows, proof.node) for proof in found] == [([], 10 * 25, 1)] * 3


def test_stream_without_messages_is_not_called_whole(tmp_path: Path) -> None:
    proof = verify_log(path=put(tmp_path, journal(messages=10)))
    assert proof.breaks_of("orders") == proof.breaks_of() == []
    with pytest.raises(Missing, match="there is no stream 'oders', so nothing is proven of it"):
        proof.breaks_of("oders")
