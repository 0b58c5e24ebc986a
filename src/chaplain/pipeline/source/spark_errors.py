"""Answers of Spark, with errors of ours coming back as ours.

What a task or a plan raises reaches the driver as an error of Spark's, many lines long, with the one that matters
within it.
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
    """All rows. Raises what we raised, wherever that was."""
    try:
        return list(frame.collect())
    except PySparkException as wrong:
        raise translated(wrong) from wrong


def each(frame: DataFrame) -> Iterator[Any]:
    """One row after the other, in the same way."""
    try:
        yield from frame.toLocalIterator()
    except PySparkException as wrong:
        raise translated(wrong) from wrong


def translated(wrong: PySparkException) -> Exception:
    found = _OURS.findall(str(wrong))
    if not found:
        return wrong
    name, words = found[-1]
    kind = getattr(errors, name, ChaplainError)
    return kind(words) if isinstance(kind, type) and issubclass(kind, ChaplainError) else ChaplainError(words)


def sentence(wrong: PySparkException) -> Exception:
    """The same for who wants no trace: Spark's own errors by the first line of theirs."""
    ours = translated(wrong)
    if ours is not wrong:
        return ours
    first = next((line.strip() for line in str(wrong).splitlines() if line.strip()), type(wrong).__name__)
    return ChaplainError(f"Spark failed: {first}")
