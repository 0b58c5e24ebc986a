"""`compress` with Spark: its executors verify the log; the rest is `chaplain.verification.compress`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chaplain.pipeline.verification.verify import prove
from chaplain.verification import compress as without_spark
from chaplain.verification.compress import WAIT_S, Broken, Freed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Broken", "Freed", "compress"]


def compress(
    spark: SparkSession | None,
    *,
    cluster: str | Path,
    stream: str,
    through: int | None = None,
    node: int | None = None,
    wait: float = WAIT_S,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Freed]:
    """Verify the log, then drop its beginning on every reachable node, up to an offset of a stream.

    Arguments:
        spark: The session whose executors verify the log. With None this process verifies it itself.
        cluster: The cluster's folder.
        stream: The stream to which `through` refers. The log contains all streams in one order, so the same part of all
            other streams is dropped as well.
        through: The last offset to drop. Default: the last offset of the stream.
        node: Verify the log of this local node, and request the checkpoint from it. Default: the longest log.
        wait: Seconds to wait until the nodes have dropped the messages.
        tell: Called with a sentence about each step.

    Returns what each reachable node dropped. Raises `Broken` if the verification finds a break, and `Refused` if the
    verified log does not reach the offset; nothing is dropped then.
    """
    return without_spark.compress(
        partial(prove, spark), cluster=cluster, stream=stream, through=through, node=node, wait=wait, tell=tell
    )
