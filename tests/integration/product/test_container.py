"""The container image is built from a lock with hashes, in the versions that everything is tested with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
_PIN = re.compile(r"^([a-z0-9-]+)(?:\[[a-z,]+\])?==(\S+) \\$", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9-]+")


def pins(lock: Path) -> dict[str, str]:
    return dict(_PIN.findall(lock.read_text()))


def test_container_image_installs_only_hashed_packages() -> None:
    text = re.sub(r"\\\n", " ", (ROOT / "deploy" / "Containerfile").read_text())
    installs = re.findall(r"pip install (.*)", text)
    assert len(installs) == 2
    assert {"--require-hashes", "requirements.lock"} <= {*installs[0].split()}
    assert {"--no-deps", "--no-build-isolation", "."} <= {*installs[1].split()}
    assert "COPY deploy/requirements.lock" in text


def test_container_lock_has_the_nodes_packages_in_tested_versions() -> None:
    image, tested = pins(ROOT / "deploy" / "requirements.lock"), pins(ROOT / "requirements.lock")
    assert image.items() <= tested.items()
    assert (ROOT / "deploy" / "requirements.lock").read_text().count("--hash=") >= len(image)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = project["project"]["dependencies"] + project["project"]["optional-dependencies"]["postgres"]
    names = {_NAME.match(one)[0].lower() for one in [*needed, *project["build-system"]["requires"]]}  # type: ignore[index]
    assert names <= image.keys()
