"""Runs Spark queries and translates Spark's exceptions back into those of `chaplain.errors`.

An exception that a task or the planning code raises reaches the driver as a `PySparkException` with a long text that
contains the original one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from chaplain import errors
from chaplain.errors import ChaplainError

_OURS = re.compile(r"chaplain\.errors\.(\w+): (.+)")


def collect(frame: DataFrame) -> list[Any]:
    """Return all rows. Raises the `ChaplainError` of a task as such."""
    try:
        return list(frame.collect())
    except PySparkException as error:
        raise translated(error) from error


def each(frame: DataFrame) -> Iterator[Any]:
    """Yield one row after the other. Raises the `ChaplainError` of a task as such."""
    try:
        yield from frame.toLocalIterator()
    except PySparkException as error:
        raise translated(error) from error


def translated(error: PySparkException) -> Exception:
    found = _OURS.findall(str(error))
    if not found:
        return error
    name, words = found[-1]
    kind = getattr(errors, name, ChaplainError)
    return kind(words) if isinstance(kind, type) and issubclass(kind, ChaplainError) else ChaplainError(words)


def sentence(error: PySparkException) -> Exception:
    """Like `translated`, but shorten errors of Spark itself to their first line, for the command line."""
    ours = translated(error)
    if ours is not error:
        return ours
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return ChaplainError(f"Spark failed: {first}")
