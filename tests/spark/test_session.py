"""Where Spark runs decides addresses and defaults. No test here starts Spark."""

from __future__ import annotations

import os
import pkgutil
import socket
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from chaplain import pipeline as jobs
from chaplain.cli.commands.pipeline import pipeline
from chaplain.errors import Unreachable
from chaplain.pipeline import session
from chaplain.pipeline.data_source import ChaplainSource
from chaplain.pipeline.session import await_executor, is_local, local_session, spark_settings
from pyspark_chaplain import DefaultSource

LOGGING = Path("/tmp/log4j2.properties")
LOCAL_ONLY = {
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.ui.enabled",
    "spark.sql.shuffle.partitions",
    "spark.sql.adaptive.enabled",
}


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", "local-cluster[2,1,1024]"])
def test_addresses_and_local_defaults_are_for_local_masters_only(master: str) -> None:
    assert not LOCAL_ONLY & set(spark_settings(master, "1g", {}, LOGGING))
    assert not is_local(master)


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,3]"])
def test_local_driver_stays_on_this_machine(master: str) -> None:
    found = spark_settings(master, "1g", {}, LOGGING)
    assert set(found) >= LOCAL_ONLY
    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "127.0.0.1"


def test_settings_of_the_user_take_precedence() -> None:
    given = {"spark.ui.enabled": "true", "spark.driver.memory": "3g", "spark.driver.extraJavaOptions": "-Dx=y"}
    found = spark_settings("local[*]", "1g", given, LOGGING)
    assert (found["spark.ui.enabled"], found["spark.driver.memory"]) == ("true", "3g")
    assert found["spark.driver.extraJavaOptions"] == f"-Dlog4j2.configurationFile=file:{LOGGING} -Dx=y"


@pytest.mark.parametrize("local", [True, False])
def test_workers_on_other_machines_inherit_no_address(local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/their/python")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "")
    session._prepare_environment(local)
    assert os.environ.get("SPARK_LOCAL_IP") == ("127.0.0.1" if local else None)
    assert (os.environ["PYSPARK_PYTHON"] == "/opt/their/python") is not local
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)


def test_worker_that_does_not_reach_the_driver_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(session.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(session.time, "sleep", lambda wait_s: now_s.__setitem__(0, now_s[0] + wait_s))
    counts = [0] * 20 + [1]
    await_executor(lambda: counts.pop(0), "here:1", "spark://m:7077", session.EXECUTOR_WAIT_S)
    with pytest.raises(Unreachable, match=r"reached the driver at here:1 after 20 s.*set spark\.driver\.host"):
        await_executor(lambda: 0, "here:1", "spark://m:7077", session.EXECUTOR_WAIT_S)
    assert now_s[0] < 30


def test_absent_master_is_reported_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and not listening
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            monkeypatch.setenv(name, os.environ.get(name, ""))
        with pytest.raises(Unreachable, match=f"nothing listens at {place}, {place}: start a Spark master"):
            local_session(f"spark://{place},{place}")


def test_pyspark_finds_the_source_by_the_name_of_a_module() -> None:
    found = [one.name for one in pkgutil.iter_modules() if one.name.startswith("pyspark_")]
    assert "pyspark_chaplain" in found
    assert DefaultSource is ChaplainSource
    assert DefaultSource.name() == "chaplain"


class Asked(Exception):
    """Instead of a session: what it was asked with."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    def started(*given: Any, **named: Any) -> Any:
        raise Asked(given, named)

    monkeypatch.setattr(jobs, "local_session", started)

    def ask(*words: str) -> Any:
        done = CliRunner().invoke(pipeline, ["fold", "--stream", "s", *words])
        return done.exception.args if isinstance(done.exception, Asked) else (done.exit_code, done.output)

    return ask


def test_options_of_the_shell_reach_spark(asked: Any, tmp_path: Path) -> None:
    (tmp_path / "more.zip").touch()
    where = ("--path", str(tmp_path))
    conf = ("--conf", "spark.a=1", "--conf", "spark.b=x=y", "--packages", "g:a:1", "--py-files", f"{tmp_path}/more.zip")
    (master,), named = asked(*where, "--master", "spark://m:7077", *conf)
    assert master == "spark://m:7077"
    assert named["settings"] == {"spark.a": "1", "spark.b": "x=y", "spark.jars.packages": "g:a:1"}
    assert named["py_files"] == [f"{tmp_path}/more.zip"]
    assert asked(*where)[0] == ("local[*]",)
    assert asked(*where, "--conf", "spark.master=spark://n:7077")[0] == ("spark://n:7077",)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--conf", "spark.a"), "write it as spark.KEY=VALUE"),
        (("--conf", "a=b"), "write it as spark.KEY=VALUE"),
        (("--remote", "sc://h", "--packages", "g:a:1"), "jars are the Connect server's"),
    ],
)
def test_wrong_options_of_the_shell_are_usage_errors(asked: Any, tmp_path: Path, words: Any, error: str) -> None:
    code, output = asked("--path", str(tmp_path), *words)
    assert (code, error in output) == (click.UsageError.exit_code, True), output
