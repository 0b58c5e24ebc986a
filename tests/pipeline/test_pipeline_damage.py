"""Planted damage is found and named, exactly; a log that is whole has no break, however it is cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pipeline_damage import CASES, Named, Scene

CUTS = (1, 4, 1000)


def named(scene: Scene, tasks: int) -> list[tuple[str, int, str]]:
    return [(one.stream, one.offset, one.kind) for one in scene.breaks(tasks)]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_damage_is_named(tmp_path: Path, case: Callable[[Scene], Named], seed: int) -> None:
    scene = Scene(tmp_path, seed)
    expected = sorted(case(scene))
    for tasks in CUTS:
        assert named(scene, tasks) == expected, scene.breaks(tasks)


@pytest.mark.parametrize("seed", range(10))
def test_whole(tmp_path: Path, seed: int) -> None:
    scene = Scene(tmp_path, seed)
    scene.write()
    scene.jot()
    for scene.signatures in (False, True):
        for tasks in CUTS:
            assert named(scene, tasks) == []
