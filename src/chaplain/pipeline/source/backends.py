"""The two backends of the Spark source: segment files, and the running nodes of a cluster.

This module chooses the backend of a target and hides the difference from planning and reading. For a cluster's folder
it reads from the nodes. If no node answers, it reads the segments of the node with the longest log, if they are on this
machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from chaplain.errors import Unreachable
from chaplain.pipeline.source.live import LOOK_EVERY_S, LiveBackend, LiveRange, read_live
from chaplain.pipeline.source.offset_index import OffsetIndex, node_folders, open_index
from chaplain.pipeline.source.options import JOURNAL, RECONNECT_S, KnownOffsets, Target
from chaplain.pipeline.source.rows import OffsetRange, Range, ranges, read_range


class SourceBackend(Protocol):
    """The facts about a target's streams that planning needs."""

    @property
    def streams(self) -> Sequence[str]: ...

    def refresh(self, at_once: bool = True) -> None:
        """Update the known offsets; without `at_once` only if the last update is older than `LOOK_EVERY_S`."""

    def check_access(self, stream: str) -> None:
        """Raise `Refused` if a stream is not listed because this client has no right to read it."""

    def known_offsets(self, stream: str) -> KnownOffsets: ...

    def split(self, stream: str, start: int, end: int, parts: int) -> Sequence[OffsetRange]: ...


def known_offsets(index: OffsetIndex, stream: str) -> KnownOffsets:
    places = index.streams.get(stream, [])
    if not places:
        return KnownOffsets(0, 0, ())
    last = places[-1]
    times = [(place.first_offset, place.timestamp_ns) for place in places]
    return KnownOffsets(places[0].first_offset, last.first_offset + last.count, times)


class FolderBackend:
    """Reads segments in a folder."""

    def __init__(self, target: Target) -> None:
        self._index = open_index(target.folder, target.cluster, target.kind)
        self._looked_s = time.monotonic()

    @property
    def streams(self) -> Sequence[str]:
        return sorted(self._index.streams)

    def refresh(self, at_once: bool = True) -> None:
        if at_once or time.monotonic() - self._looked_s > LOOK_EVERY_S:
            self._index.refresh()
            self._looked_s = time.monotonic()

    def check_access(self, stream: str) -> None:
        """Nothing to check: the permissions of the files decide."""

    def known_offsets(self, stream: str) -> KnownOffsets:
        return known_offsets(self._index, stream)

    def split(self, stream: str, start: int, end: int, parts: int) -> Sequence[OffsetRange]:
        return ranges(self._index.streams.get(stream, []), stream, start, end, parts)


def open_backend(target: Target, reconnect_s: float = RECONNECT_S) -> SourceBackend:
    if target.folder or target.kind != JOURNAL or (target.cluster and not _has_nodes(target.cluster)):
        return FolderBackend(target)
    try:
        return LiveBackend(target, reconnect_s)
    except Unreachable:
        if not target.cluster or not node_folders(target.cluster):
            raise
        return FolderBackend(target)


def _has_nodes(cluster: str) -> bool:
    """Whether the nodes' addresses are known. A folder that contains only nodes' folders has no `cluster.toml`."""
    where = Path(cluster)
    return where.is_file() or (where / "cluster.toml").exists() or not node_folders(where)


def read_rows(
    wanted: OffsetRange, columns: Sequence[str], fail_on_loss: bool, fail_on_headers: bool = True
) -> Iterator[Any]:
    """Read the rows of a range, from segments or from nodes."""
    if isinstance(wanted, LiveRange):
        return read_live(wanted, columns, fail_on_loss, fail_on_headers)
    assert isinstance(wanted, Range)
    return read_range(wanted, columns, fail_on_loss, fail_on_headers)
