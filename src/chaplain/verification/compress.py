"""`compress`: verifies a log, then has the nodes take a checkpoint and drop the beginning of the log.

    verify the log ──▶ request a checkpoint ──▶ wait until the nodes have dropped the messages that it covers

This module decides whether the messages to drop are verified. The nodes decide whether they can drop them: a quorum
must have the checkpoint, and no node or reader may need the messages. One log contains all streams in one order, so
dropping the beginning of one stream drops that part of all streams: every stream is verified, and the log is dropped up
to the message with the last offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaplain import Client
from chaplain.config import find_cluster, load_cluster
from chaplain.core import Frozen
from chaplain.errors import ChaplainError, Missing, Refused
from chaplain.segment.pack import heads_of
from chaplain.verification.result import VerifyResult
from chaplain.verification.violations import Break

WAIT_S = 60.0
_POLL_S = 0.2
_ANSWER_S = 10.0


class Broken(Refused):
    """Raised if the verification found breaks, which `breaks` lists. Nothing is dropped."""

    def __init__(self, breaks: list[Break]) -> None:
        first = breaks[0]
        where = f"{first.stream}/{first.offset}" if first.stream else f"message {first.offset}"
        super().__init__(f"the log has {len(breaks)} breaks, the first at {where} ({first.kind}): nothing is dropped")
        self.breaks = breaks


class Freed(Frozen, frozen=True):
    """The segments that one node dropped."""

    node: int
    segments: int
    """Number of dropped segment files."""
    bytes: int
    """Their size."""
    first: int
    """The index of the message with which the node's log begins now."""
    done: bool
    """Whether the node has dropped everything that the checkpoint released."""
    left_bytes: int = 0
    """The size of the remaining log."""


def compress(
    verify: Callable[..., VerifyResult],
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
        verify: Verifies the log: of the cluster, or in a folder of segments (`path`).
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
    cluster = str(cluster)
    with Client.connect(cluster, node=node, timeout=_ANSWER_S) as client:
        index = _index_of(client, stream, through)
    tell("proving")
    proof = verify(cluster=cluster) if node is None else verify(path=_segments_of(cluster, node))
    if proof.breaks:
        raise Broken(proof.breaks)
    proven = proof.state.point.index if proof.state.point is not None else 0
    if proven < index:
        raise Refused(f"the log is verified up to message {proven} only, not up to {index}: try again")
    before = {node: log for node, log in _logs(cluster).items() if log}
    with Client.connect(cluster, node=node, timeout=_ANSWER_S) as client:
        position = client.snapshot(index)
    tell(f"checkpoint behind message {position}")
    after = _await(cluster, position, wait)
    return [_freed(node, before[node], after[node]) for node in sorted(before) if after.get(node)]


def _segments_of(cluster: str, node: int) -> Path:
    """Return the folder of segments of a local node."""
    return find_cluster(cluster).parent / f"node-{node}" / "segments"


def _index_of(client: Client, stream: str, through: int | None) -> int:
    """Return the index of the last cluster message that contains no offset of the stream after `through`."""
    known = next((one for one in client.streams() if one.stream == stream), None)
    if known is None:
        raise Missing(f"there is no stream {stream!r}")
    last = known.next_offset - 1 if through is None else through
    if not known.first_offset <= last < known.next_offset:
        raise Missing(f"{stream!r} has offsets {known.first_offset} to {known.next_offset - 1}, not {last}")
    with client.journal(stream).read(last, last + 1) as reader:
        portion = next(reader.portions())
    end = portion.first_offset + sum(head.count for head in heads_of(portion.packs))
    return portion.index if end <= last + 1 else portion.index - 1


def _logs(cluster: str) -> dict[int, dict[str, Any]]:
    """Return the log's status on each node; empty for a node that cannot be reached."""
    found: dict[int, dict[str, Any]] = {}
    for node in load_cluster(find_cluster(cluster)).nodes:
        found[node.id] = {}
        with suppress(ChaplainError), Client.connect(cluster, node=node.id, timeout=_ANSWER_S) as client:
            found[node.id] = dict(client.status().get("log", {}))
    return found


def _await(cluster: str, position: int, wait_s: float) -> dict[int, dict[str, Any]]:
    """Wait until every reachable node has dropped what the checkpoint released, or `wait_s` is over."""
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
