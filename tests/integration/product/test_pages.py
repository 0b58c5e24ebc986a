"""Pages as programs: every block of `sh` and `python` in these pages is run, in order, as it stands.

Other pages show excerpts, of programs and of settings that need more than one machine. A block of `output` after one of
them is what it prints; hashes differ for every cluster. The pages share one folder and one cluster under the names that
they give it, and one Spark session, for starting those is what takes time.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chaplain.runtime.cluster.local import bring_down
from tests.integration.product.product_shell import BIN, Shell

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", "docs/tutorial.md", "docs/executor.md", "docs/pipeline.md", "docs/reference/python.md")
"""The first two bring their cluster up themselves; what they print depends on what was written before."""
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HASH = re.compile(r"\b[0-9a-f]{16,}\b")
CLUSTERS = ("my-cluster", "shop", "demo", "c")
LIMIT_S = 120.0


@dataclass(frozen=True)
class Block:
    page: str
    number: int
    kind: str
    source: str
    output: str | None


def blocks(page: Path) -> Iterator[Block]:
    found = FENCE.findall(page.read_text())
    for number, (kind, source) in enumerate(found):
        if kind in ("sh", "python"):
            following = found[number + 1] if number + 1 < len(found) else ("", "")
            yield Block(page.name, number, kind, source, following[1] if following[0] == "output" else None)


class Driver:
    """The one interpreter for all Python blocks."""

    def __init__(self, shell: Shell) -> None:
        runner = str(Path(__file__).with_name("page_runner.py"))
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, runner], cwd=shell.folder, env=shell.environment, stdin=pipe, stdout=pipe, text=True
        )

    def run(self, block: Block) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"page": block.page, "source": block.source}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert not answer["error"], f"{block.page}, block {block.number}:\n{block.source}\n{answer['error']}"
        return answer["out"]

    def close(self) -> None:
        self._process.communicate(timeout=LIMIT_S)


@pytest.mark.timeout(900)
def test_every_code_block_of_the_pages_runs(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/bin").symlink_to(BIN)
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    for name in CLUSTERS:
        (tmp_path / name).symlink_to(tmp_path / "cluster")
    (tmp_path / "cluster").mkdir()
    driver = Driver(shell)
    ran = []
    try:
        for page in PAGES:
            shell.worked("chaplain cluster up --nodes 3 --dir demo")
            ran += [run(block, shell, driver) for block in blocks(ROOT / page)]
        surface = Path(__file__).with_name("surface_spark.py").read_text()
        driver.run(Block("surface_spark.py", 0, "python", f"{surface}\neverything()\n", None))
    finally:
        driver.close()
        if (tmp_path / "cluster/cluster.toml").exists():
            bring_down(tmp_path / "cluster")
    assert {*ran} == {Path(page).name for page in PAGES}
    assert shell.processes() == []


def run(block: Block, shell: Shell, driver: Driver) -> str:
    said = shell.worked(f"set -e\n{block.source}", LIMIT_S) if block.kind == "sh" else driver.run(block)
    if block.output is not None:
        assert HASH.sub("#", said) == HASH.sub("#", block.output), f"{block.page}, block {block.number}"
    return block.page


def test_links_between_pages_lead_to_existing_pages() -> None:
    missing = []
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    assert len(pages) > 80
    for page in pages:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            if not (page.parent / link).exists():
                missing.append(f"{os.path.relpath(page, ROOT)}: {link}")
    assert missing == []


def figures(page: str) -> list[str]:
    """The commands in the last column of a page's table of figures."""
    table = (ROOT / page).read_text().partition("\n## Figures\n")[2].partition("\n## ")[0]
    return re.findall(r"\| `([^`|]+)` \|$", table, re.MULTILINE)


def test_figures_name_existing_commands() -> None:
    """Each figure names a command that is there. The README has at most five of them, the performance page all."""
    shown = figures("docs/performance.md")
    assert len(shown) > 8
    assert 0 < len(figures("README.md")) <= 5
    assert {*figures("README.md")} <= {*shown}
    campaigns = subprocess.run(
        [sys.executable, "-m", "campaigns", "--list"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for command in shown:
        words = command.split()
        if "campaigns" in words:
            assert re.search(rf"^{words[-1]}\b", campaigns, re.MULTILINE), command
        elif words[0] == "make":
            assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(), command
        else:
            files = [word for word in words if "/" in word]
            assert files, command
            assert all((ROOT / file).exists() for file in files), command


SOURCES = ("src", "simulator", "campaigns", "tests", "bench", "tools")


def test_module_names_in_pages_exist() -> None:
    """`link/zmq/sockets.py`, or `sockets.py` alone, in a page is the end of the path of a module of ours."""
    modules = [f"/{file.relative_to(ROOT)}" for folder in SOURCES for file in (ROOT / folder).rglob("*.py")]
    stale = []
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for module in re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", page.read_text()):
            if not any(one.endswith(f"/{module}") for one in modules):
                stale.append(f"{os.path.relpath(page, ROOT)}: {module}")
    assert stale == []


def test_decisions_cited_in_sources_exist() -> None:
    decisions = {page.stem for page in (ROOT / "docs/decisions").glob("*.md")}
    stale = []
    for folder in SOURCES:
        for file in (ROOT / folder).rglob("*.py"):
            cited = re.findall(r"\bdecisions/([a-z0-9-]+)", file.read_text())
            stale += [f"{file.relative_to(ROOT)}: {name}" for name in cited if name not in decisions]
    assert stale == []
