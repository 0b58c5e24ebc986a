"""Planted damage is found and named, exactly; a log that is whole has no break, however it is cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaplain.journal.execution import two_phase
from chaplain.journal.execution.two_phase import COMMIT, STAGED, TRANSACTIONS, Commit, RequestRange
from chaplain.verification.plan import VerifyRequest
from chaplain.verification.verify import verify_here
from tests.spark.support.damage import CASES
from tests.spark.support.journal import recorded, rich_journal
from tests.spark.support.scene import Named, Scene
from tests.spark.support.stage import journal, put
from tests.support.execution_stage import Stage, pack

CUTS = (1, 4, 1000)


def named(scene: Scene, tasks: int) -> list[tuple[str, int, str]]:
    return [(one.stream, one.offset, one.kind) for one in scene.breaks(tasks)]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_log_damage_is_named(tmp_path: Path, case: Callable[[Scene], Named], seed: int) -> None:
    scene = Scene(tmp_path, seed)
    expected = sorted(case(scene))
    for tasks in CUTS:
        assert named(scene, tasks) == expected, scene.breaks(tasks)


@pytest.mark.parametrize("seed", range(5))
def test_undamaged_log_has_no_violation(tmp_path: Path, seed: int) -> None:
    scene = Scene(tmp_path, seed)
    scene.write()
    scene.jot()
    for scene.signatures, tasks in ((False, 1), (True, 4), (False, 1000)):
        assert named(scene, tasks) == []


@pytest.mark.parametrize("behind", [False, True])
def test_replaced_proposal_is_no_violation(tmp_path: Path, behind: bool) -> None:
    """A proposal that was never agreed, and a message that a restarted node wrote again."""
    scene = Scene(tmp_path, 1)
    other = rich_journal(1, parts_at=20, messages=31)
    at = next(n for n, (a, b) in enumerate(zip(scene.groups, other, strict=False)) if a[0].body != b[0].body)
    pair = [scene.groups[at], other[at]] if behind else [other[at], scene.groups[at]]
    scene.write([*scene.groups[:at], *pair, *scene.groups[at + 1 :], scene.groups[-1]])
    assert named(scene, 4) == []


def test_message_stored_under_a_later_regime_is_no_violation(tmp_path: Path) -> None:
    """A node that was down when a message was agreed has it from others, under the regime they are in."""
    proof, _ = verify_here(VerifyRequest(str(put(tmp_path, journal(ballot=2)))))
    assert not proof.breaks
    assert proof.rows == 1000


@pytest.mark.parametrize("tasks", CUTS)
def test_log_with_two_phase_batches_has_no_violation(tmp_path: Path, tasks: int) -> None:
    """Packs that are staged take ids of their lane there, and offsets when they were committed."""
    stage = Stage()
    lane, driver = stage.lane(1), stage.lane(2)
    staged = [pack(lane, first_id, [b"a", b"b"], message_type=STAGED) for first_id in (1, 5)]
    value = two_phase.encode(Commit("job", 1, (RequestRange(lane, 1, 2), RequestRange(lane, 5, 6))))
    stage.write(staged[0])
    stage.write(pack(lane, 3, [b"x", b"y"]))
    stage.write(staged[1], pack(driver, 1, [value], stream=TRANSACTIONS, message_type=COMMIT))
    stage.write(pack(lane, 7, [b"z"]))
    stage.write(*staged)
    stage.write(pack(lane, 8, [b"end"]))
    scene = Scene(tmp_path, 1)
    scene.groups = recorded(stage)
    scene.write()
    scene.signatures = True
    assert named(scene, tasks) == []
    assert stage.execution.state.streams["orders"].next_offset == 8
