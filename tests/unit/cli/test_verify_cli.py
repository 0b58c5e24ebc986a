"""`chaplain verify` and `chaplain pipeline verify`: exit codes, output, and how little is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chaplain.cli.main import main
from chaplain.verification.violations import FIELDS
from tests.spark.support.damage import flipped_payload
from tests.spark.support.scene import Scene


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[object, str, str]:
    """A command's exit code, output and complaint."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    return ended.value.code, *capsys.readouterr()


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHAPLAIN_CLUSTER", raising=False)
    monkeypatch.delenv("CHAPLAIN_IDENTITY", raising=False)


def test_whole_log_prints_nothing_but_what_was_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene(tmp_path, 1)
    scene.write()
    scene.write(node=2)
    code, out, told = run(capsys, "verify", "--cluster", tmp_path, "--signatures")
    assert (code, out) == (0, "")
    assert told.startswith("node 1 proven: 655 messages, 2 streams; node 2 by its heads only")
    code, out, told = run(capsys, "verify", "--cluster", tmp_path, "--node", 2)
    assert (code, out, told) == (0, "", "node 2 proven: 655 messages, 2 streams\n")


def test_break_is_a_line_and_the_summary_is_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene(tmp_path, 1)
    ((stream, offset, kind),) = flipped_payload(scene)
    code, out, summary = run(capsys, "verify", "--path", scene.segments, "--output", "json")
    (line,) = out.splitlines()
    found = json.loads(line)
    assert code == 3
    assert list(found)[: len(FIELDS)] == list(FIELDS)
    assert (found["stream"], found["offset"], found["kind"]) == (stream, offset, kind)
    told = json.loads(summary)
    assert (told["whole"], told["breaks"], told["log"]["node"]) == (False, 1, 1)
    assert told["log"]["streams"].keys() == {"orders", "audit"}
    code, table, sentence = run(capsys, "verify", "--path", scene.segments, "--output", "table")
    assert (code, sentence.partition(":")[0]) == (3, "node 1 read")
    assert "damaged" in table
    other = "audit" if stream == "orders" else "orders"
    assert run(capsys, "verify", "--path", scene.segments, "--stream", other)[:2] == (0, "")


def test_manifest_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene(tmp_path, 1)
    scene.write()
    words = ("verify", "--path", scene.segments, "--manifest", tmp_path / "manifest", "--output", "json")
    first, second = (json.loads(run(capsys, *words)[2])["log"] for _ in range(2))
    assert (first["continued"], second["continued"], second["messages"]) == (False, True, 0)
    assert second["index"] == first["index"] == len(scene.groups)


@pytest.mark.parametrize("command", ["verify", "pipeline verify"])
@pytest.mark.parametrize("source", ["--path nowhere", "--cluster nowhere", "--path loop"])
def test_log_that_cannot_be_opened_has_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, source: str
) -> None:
    """`pipeline verify` finds that out before it starts Spark."""
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    code, out, said = run(capsys, *command.split(), *source.split())
    assert (code, out) == (4, "")
    assert said.startswith(f"chaplain: cannot read {source.split()[1]}: ")


def test_stream_that_is_not_there_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene(tmp_path, 1)
    scene.write()
    code, _, said = run(capsys, "verify", "--path", scene.segments, "--stream", "nothing")
    assert code == 1
    assert "there is no stream 'nothing', so nothing is proven of it: streams here are audit, orders" in said


def test_verify_loads_neither_spark_nor_pandas() -> None:
    """It must start in less than a second."""
    code = (
        "import sys, chaplain.cli.main, chaplain.cli.commands.verify, chaplain.verification.worker\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    heavy = {"pyspark", "py4j", "pandas", "matplotlib", "pyarrow", "deltalake", "zmq", "apsw", "rich"}
    assert not heavy & set(done.stdout.split())
