"""`compress`: makes the log smaller, once it is proven: a checkpoint that lets nodes drop what it covers.

    prove everything ──▶ ask for a checkpoint that releases it ──▶ wait until the nodes have dropped it

Decides whether what is to go is proven. Refuses to decide whether it can go: nodes do, when a quorum has the checkpoint
and nobody needs the log. One log holds all streams in one order, so what goes of one stream goes of all: every stream
is proven, and the log goes up to the message that has the last offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaplain import Client
from chaplain.config import find_cluster, load_cluster
from chaplain.core import Frozen
from chaplain.errors import ChaplainError, Missing, Refused
from chaplain.pipeline.verification.verify import prove
from chaplain.pipeline.verification.violations import Break
from chaplain.segment.pack import heads_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_S = 60.0
_POLL_S = 0.2
_ANSWER_S = 10.0


class Broken(Refused):
    """What was to be dropped is not whole: nothing is dropped."""

    def __init__(self, breaks: list[Break]) -> None:
        first = breaks[0]
        where = f"{first.stream}/{first.offset}" if first.stream else f"message {first.offset}"
        super().__init__(f"the log has {len(breaks)} breaks, the first at {where} ({first.kind}): nothing is dropped")
        self.breaks = breaks


class Freed(Frozen, frozen=True):
    """What became of one node's log."""

    node: int
    segments: int
    """That went."""
    bytes: int
    first: int
    """The message that its log begins with now."""
    done: bool
    """Nothing that was released is left."""
    left_bytes: int = 0


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
    """Drop the log up to offset `through` of a stream, or up to its end, on every node that can be reached.

    Everything in the log is proven first: that of the node that got furthest, or of `node`, which is then asked for the
    checkpoint, too. `Broken` if something does not hold; `Refused` if it is not proven so far.
    """
    cluster = str(cluster)
    with Client.connect(cluster, node=node, timeout=_ANSWER_S) as client:
        index = _index_of(client, stream, through)
    tell("proving")
    proof = prove(spark, cluster=cluster) if node is None else prove(spark, path=_segments_of(cluster, node))
    if proof.breaks:
        raise Broken(proof.breaks)
    proven = proof.state.point.index if proof.state.point is not None else 0
    if proven < index:
        raise Refused(f"the log is proven up to message {proven}, and {index} was to go: try again")
    before = {node: log for node, log in _logs(cluster).items() if log}
    with Client.connect(cluster, node=node, timeout=_ANSWER_S) as client:
        position = client.checkpoint(index)
    tell(f"checkpoint behind message {position}")
    after = _await(cluster, position, wait)
    return [_freed(node, before[node], after[node]) for node in sorted(before) if after.get(node)]


def _segments_of(cluster: str, node: int) -> Path:
    """Where the files of one node are, if it is on this machine."""
    return find_cluster(cluster).parent / f"node-{node}" / "segments"


def _index_of(client: Client, stream: str, through: int | None) -> int:
    """The last message that has nothing of the stream behind the offset."""
    known = next((one for one in client.streams() if one.stream == stream), None)
    if known is None:
        raise Missing(f"there is no stream {stream!r}")
    last = known.next_offset - 1 if through is None else through
    if not known.first_offset <= last < known.next_offset:
        raise Missing(f"{stream!r} holds offsets {known.first_offset} to {known.next_offset - 1}, not {last}")
    with client.journal(stream).read(last, last + 1) as reader:
        portion = next(reader.portions())
    end = portion.first_offset + sum(head.count for head in heads_of(portion.packs))
    return portion.index if end <= last + 1 else portion.index - 1


def _logs(cluster: str) -> dict[int, dict[str, Any]]:
    """What each node says of its log; nothing, if it is not reached."""
    found: dict[int, dict[str, Any]] = {}
    for node in load_cluster(find_cluster(cluster)).nodes:
        found[node.id] = {}
        with suppress(ChaplainError), Client.connect(cluster, node=node.id, timeout=_ANSWER_S) as client:
            found[node.id] = dict(client.status().get("log", {}))
    return found


def _await(cluster: str, position: int, wait_s: float) -> dict[int, dict[str, Any]]:
    """Until every node that is reached has dropped what it can, or for so long."""
    until_s = time.monotonic() + wait_s
    while True:
        logs = _logs(cluster)
        if all(_done(log, position) for log in logs.values() if log) or time.monotonic() > until_s:
            return logs
        time.sleep(_POLL_S)


def _done(log: dict[str, Any], position: int) -> bool:
    return bool(log["checkpoint"] >= position and not log["pending"])


def _freed(node: int, before: dict[str, Any], after: dict[str, Any]) -> Freed:
    gone = after["dropped_segments"] - before["dropped_segments"]
    size = after["dropped_bytes"] - before["dropped_bytes"]
    return Freed(node, gone, size, after["first"], not after["pending"], after["bytes"])
