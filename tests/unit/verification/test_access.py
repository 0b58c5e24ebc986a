"""A file that cannot be read is neither whole nor broken: the verification ends with an error that names it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chaplain.errors import Inaccessible, Missing
from chaplain.segment.files import OpenSegment, Recycled, list_segments
from chaplain.verification import header_scan
from chaplain.verification.plan import VerifyRequest, make_plan
from chaplain.verification.record_reader import check
from chaplain.verification.verify import verify_here
from tests.spark.support.scene import Scene
from tests.support.unreadable_file import PAGE_BYTES, make_unreadable


def written(directory: Path) -> Scene:
    scene = Scene(directory, 1)
    scene.write()
    return scene


def segment(scene: Scene, number: int = 1) -> Path:
    return list_segments(scene.segments)[number].path


def verify(scene: Scene) -> list[tuple[int, str]]:
    return [(one.offset, one.kind) for one in verify_here(VerifyRequest(str(scene.segments)))[0].breaks]


def fail_to_open(monkeypatch: pytest.MonkeyPatch, path: Path, number: int) -> None:
    """Let the system refuse to open a file. Permissions would not do: root may read everything."""
    real = os.open

    def refuse(name: str | Path, *rest: int) -> int:
        if os.fspath(name) == str(path):
            raise OSError(number, os.strerror(number), str(path))
        return real(name, *rest)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ENOENT, errno.ESTALE])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_segment_that_cannot_be_opened_is_no_break(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, which: int
) -> None:
    scene = written(tmp_path)
    path = segment(scene, which)
    fail_to_open(monkeypatch, path, number)
    with pytest.raises(Inaccessible, match=f"^cannot read {path}: {os.strerror(number)}$"):
        verify(scene)


def test_link_to_a_segment_that_is_not_mounted_is_no_break(tmp_path: Path) -> None:
    scene = written(tmp_path)
    path = segment(scene)
    path.unlink()
    path.symlink_to("/nowhere")
    with pytest.raises(Inaccessible, match=f"cannot read {path}: No such file"):
        verify(scene)


def test_segment_that_vanishes_after_planning_is_no_break(tmp_path: Path) -> None:
    scene = written(tmp_path)
    plan = make_plan(VerifyRequest(str(scene.segments)))
    path = segment(scene)
    path.unlink()
    concerned = next(messages for messages in plan.segments if str(path) in repr(messages))
    with pytest.raises(Inaccessible, match=f"cannot read {path}: No such file"):
        check(concerned)


def test_segment_that_is_recycled_while_it_is_read_is_no_break(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = written(tmp_path)
    plan = make_plan(VerifyRequest(str(scene.segments)))

    def recycled(segment: OpenSegment) -> None:
        raise Recycled("it was recycled while it was read")

    monkeypatch.setattr(OpenSegment, "check_not_recycled", recycled)
    with pytest.raises(Inaccessible, match="the node dropped this part of its log; verify again"):
        check(plan.segments[0])


def test_log_is_planned_again_if_the_node_drops_a_segment_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = written(tmp_path)
    real, failures = header_scan.open_segment, [FileNotFoundError(2, "gone", "x"), Recycled("x was recycled")]

    def open_segment(path: Path) -> OpenSegment:
        if failures:
            raise failures.pop()
        return real(path)

    monkeypatch.setattr(header_scan, "open_segment", open_segment)
    assert verify(scene) == []
    assert not failures


def test_header_on_unreadable_sectors_is_no_break(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = written(tmp_path)
    make_unreadable(monkeypatch, segment(scene), 0, 2 * PAGE_BYTES)
    with pytest.raises(Inaccessible, match="the disk does not return its header"):
        verify(scene)


def test_unreadable_sector_behind_a_readable_header_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node repairs it by writing the records again, so a verification must not end there."""
    scene = written(tmp_path)
    make_unreadable(monkeypatch, segment(scene), 3 * PAGE_BYTES)
    assert {kind for _, kind in verify(scene)} <= {"damaged", "missing"}
    assert verify(scene)


@pytest.mark.parametrize("name", ["journal.jot", "journal.checkpoint"])
def test_statement_beside_the_log_that_cannot_be_read_is_not_left_out(tmp_path: Path, name: str) -> None:
    """Without the sync hint a log that was cut short seems whole; without the checkpoint a shortened one broken."""
    scene = written(tmp_path)
    (scene.segments / name).mkdir()
    with pytest.raises(Inaccessible, match=f"cannot read .*{name}: Is a directory"):
        verify(scene)


def test_configuration_that_cannot_be_read_is_not_left_out(tmp_path: Path) -> None:
    scene = written(tmp_path)
    file = scene.directory / "node-1" / "node.toml"
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(Inaccessible, match=r"cannot read .*node.toml: Too many levels of symbolic links"):
        verify(scene)


def absent(directory: Path) -> VerifyRequest:
    return VerifyRequest(path=str(directory / "nowhere"))


def absent_cluster(directory: Path) -> VerifyRequest:
    return VerifyRequest(cluster=str(directory / "nowhere"))


def file_instead_of_folder(directory: Path) -> VerifyRequest:
    (directory / "file").touch()
    return VerifyRequest(path=str(directory / "file"))


@pytest.mark.parametrize("request_of", [absent, absent_cluster, file_instead_of_folder])
def test_folder_that_cannot_be_opened_is_named(tmp_path: Path, request_of: Callable[[Path], VerifyRequest]) -> None:
    with pytest.raises(Inaccessible, match=f"cannot read {tmp_path}/(nowhere|file): "):
        verify_here(request_of(tmp_path))


def test_folder_without_segments_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="there are no segments in"):
        verify_here(VerifyRequest(path=str(tmp_path)))


def closed_node(scene: Scene) -> Path:
    """A second node, whose folder cannot be opened."""
    folder = scene.directory / "node-2" / "segments"
    folder.parent.mkdir()
    folder.symlink_to(folder)
    (scene.directory / "cluster.toml").touch()
    return folder


def test_cluster_with_a_folder_that_cannot_be_opened_is_not_called_whole(tmp_path: Path) -> None:
    folder = closed_node(written(tmp_path))
    with pytest.raises(Inaccessible, match=f"cannot read {folder}: Too many levels"):
        verify_here(VerifyRequest(cluster=str(tmp_path)))


def test_neighbour_that_cannot_be_opened_is_reported_as_not_compared(tmp_path: Path) -> None:
    scene = written(tmp_path)
    folder = closed_node(scene)
    proof, _ = verify_here(VerifyRequest(str(scene.segments)))
    assert proof.breaks == []
    assert proof.told().endswith(f"; not compared: cannot read {folder}: Too many levels of symbolic links")
    assert proof.summary()["not_compared"] == list(proof.skipped)


def test_copy_of_a_neighbour_that_cannot_be_read_leaves_the_damage_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = written(tmp_path)
    scene.write(node=2)
    plan = make_plan(VerifyRequest(cluster=str(tmp_path)))
    first = segment(scene)
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    for file in list_segments(plan.siblings[0]):
        file.path.unlink()
    kinds = {one.kind for messages in plan.segments for one in check(messages, siblings=plan.siblings).breaks}
    assert kinds <= {"damaged"}
