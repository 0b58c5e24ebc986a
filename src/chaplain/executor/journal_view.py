"""The journal as an executor sees it: clients, membership, the end of the log, and its positions on disk."""

from __future__ import annotations

from collections.abc import Mapping

from chaplain.journal.core import JournalCore
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.journal.model.records import ClientIdentity
from chaplain.journal.snapshots.checkpoint import CheckpointBase


class NodesJournal:
    """The `JournalView` of a node that runs both a journal and an executor."""

    def __init__(self, journal: JournalCore) -> None:
        self._journal = journal

    @property
    def clients(self) -> Mapping[bytes, ClientIdentity]:
        return self._journal.execution.state.clients

    @property
    def cluster_config(self) -> ClusterConfig:
        return self._journal.execution.cluster_config

    @property
    def lanes(self) -> Mapping[int, object]:
        return self._journal.execution.state.lanes

    @property
    def reach(self) -> int | None:
        return self._journal.serializer.last_index

    def fingerprints(self) -> Mapping[int, bytes]:
        return self._journal.fingerprints.at(self._journal.execution.applied_index)

    @property
    def first(self) -> int:
        return self._journal.serializer.context.log.segment_index.first

    def first_offset(self, stream: str, /) -> int:
        return self._journal.first_offset(stream)

    @property
    def keep_through(self) -> int:
        return self._journal.snapshots.checkpointer.drops_through

    def held_bytes(self, now_ns: int, index: int, /) -> int:
        return self._journal.snapshots.checkpointer.retained_bytes(now_ns, index)

    @property
    def base(self) -> CheckpointBase:
        return self._journal.base

    def locate(self, index: int, bytes_max: int, /) -> tuple[int, int] | None:
        return self._journal.serializer.span(index, bytes_max)
