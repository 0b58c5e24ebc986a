"""What a proof says of itself: whose log it read, in which file a break is, and what it did not read."""

from __future__ import annotations

import shutil
from pathlib import Path

from chaplain.segment.record import Record
from chaplain.segment.verdicts import join_parts
from chaplain.verification.plan import VerifyRequest
from chaplain.verification.result import VerifyResult
from chaplain.verification.verify import verify_here, verify_log
from chaplain.verification.violations import break_fields
from tests.spark.support.damage import flipped_header, flipped_payload
from tests.spark.support.scene import Scene, find


def of_cluster(scene: Scene) -> VerifyResult:
    return verify_here(VerifyRequest(cluster=str(scene.directory)))[0]


def holds(batch: Record, offset: int) -> bool:
    return batch.first_offset <= offset < batch.first_offset + batch.count


def test_verification_summary_names_proven_and_compared_nodes(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 1)
    scene.write()
    for node in (2, 3):
        scene.write(node=node)
    proof = of_cluster(scene)
    assert (
        proof.told()
        == f"node 1 proven: {proof.rows:,} messages, 2 streams; nodes 2, 3 by their heads only: prove them with --node"
    )
    (alone, _) = verify_here(VerifyRequest(path=str(scene.segments)))
    assert alone.told() == f"node 1 proven: {proof.rows:,} messages, 2 streams"


def test_violation_names_its_node_and_file(tmp_path: Path) -> None:
    for number, case in enumerate((flipped_payload, flipped_header)):
        scene = Scene(tmp_path / str(number), 1)
        ((stream, offset, _),) = case(scene)
        proof = of_cluster(scene)
        (found,) = proof.breaks
        batch = next(
            one for group in scene.groups for one in join_parts(group) if one.stream == stream and holds(one, offset)
        )
        file = find(scene, batch.index, 0)[0].name
        expected = {"stream": stream, "offset": offset, "kind": "damaged", "node": 1, "file": file}
        assert break_fields(found).items() >= expected.items()
        assert proof.told().startswith(f"node 1 read: {proof.rows:,} messages, 2 streams, 1 break")


def test_violation_in_two_nodes_is_reported_for_each(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 1)
    scene.write()
    index = scene.index()
    scene.write([*scene.groups[: index - 1], *scene.groups[index:]], node=2)
    scene.write([*scene.groups[: index - 1], *scene.groups[index:]], node=3)
    assert [(one.node, one.offset, one.kind) for one in of_cluster(scene).breaks] == [
        (2, index, "missing"),
        (3, index, "missing"),
    ]


def test_log_from_a_plain_path_has_no_node(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 1)
    flipped_payload(scene)
    copied = shutil.copytree(scene.segments, tmp_path / "copy")
    (found,) = verify_here(VerifyRequest(path=str(copied)))[0].breaks
    assert "node" not in break_fields(found)
    assert found.file


def test_verification_from_a_manifest_says_so(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 1)
    scene.write()
    manifest = tmp_path / "manifest"
    assert "manifest" not in verify_log(path=scene.segments, manifest=manifest).told()
    assert (
        verify_log(path=scene.segments, manifest=manifest).told()
        == "node 1 proven: 0 messages more than the manifest says, 2 streams"
    )
