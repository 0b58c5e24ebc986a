"""What `chaplain pipeline` refuses before Spark is started, and how errors of tasks come back."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException

from chaplain.cli.main import cli
from chaplain.errors import ChaplainError, ConfigError, Missing
from chaplain.pipeline.source.spark_errors import translated


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("verify", "give either --cluster or --path"),
        ("verify --path a --cluster b", "give either --cluster or --path"),
        ("verify --tables t --signatures", "signatures are in the log"),
        ("verify --path p --master m --remote r", "give either --master or --remote"),
        ("land --path p --stream s", "Missing option '--tables'"),
        ("land --path p --stream s --tables t --storage-option x", "write it as K=V"),
        ("fold --stream s", "give either --cluster or --path"),
        ("report", "Missing option '--tables'"),
    ],
)
def test_pipeline_options_with_wrong_values_are_refused(words: str, why: str) -> None:
    result = CliRunner().invoke(cli, ["pipeline", *words.split()], env={"CHAPLAIN_CLUSTER": ""})
    assert (result.exit_code, why in result.output) == (2, True), result.output


@pytest.mark.parametrize(("tables", "why"), [("f.txt", "f.txt is no folder"), ("f.txt/t", "f.txt is no folder"),
                                             ("/proc/x", "nothing can be written there")])  # fmt: skip
def test_unusable_tables_folder_is_refused_before_spark_starts(
    tables: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.txt").touch()
    Path("segments").mkdir()
    words = ["pipeline", "land", "--path", "segments", "--stream", "orders", "--once", "--tables", tables]
    with pytest.raises(ConfigError, match=f"^tables cannot be kept in {tables}: .*{why}"):
        CliRunner().invoke(cli, words, catch_exceptions=False)


def test_spark_error_is_reported_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n[CONNECT] no server at sc://far:1\nJVM stacktrace:\n\tat java"

    def fail(*_: object, **__: object) -> NoReturn:
        raise PySparkException(text)

    monkeypatch.setattr("chaplain.pipeline.local_session", fail)
    words = ["pipeline", "verify", "--path", str(tmp_path), "--remote", "sc://far:1"]
    with pytest.raises(ChaplainError, match=r"^Spark failed: \[CONNECT\] no server at sc://far:1$"):
        CliRunner().invoke(cli, words, catch_exceptions=False)
    with pytest.raises(ConfigError, match="is there already: choose another folder"):
        CliRunner().invoke(cli, ["pipeline", "fold", "--path", "p", "--stream", "s", "--out", str(tmp_path)],
                           catch_exceptions=False)  # fmt: skip


def test_chaplain_error_of_a_spark_task_keeps_its_class() -> None:
    text = "[PYTHON_DATA_SOURCE_ERROR] …\n  File x\nchaplain.errors.Missing: there is no stream 'a'\n\tat java"
    found = translated(PySparkException(text))
    assert isinstance(found, Missing)
    assert str(found) == "there is no stream 'a'"
    other = PySparkException("out of memory")
    assert translated(other) is other
