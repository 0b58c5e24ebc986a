"""Node ids, the small numbers for people: from the configuration file and from the configuration stream."""

from __future__ import annotations

from collections.abc import Mapping

from chaplain.journal.core import JournalCore
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.link.auth.identity import identifier_of


class NodeIds:
    def __init__(self, configured: Mapping[int, int], journal: JournalCore | None) -> None:
        self._configured = configured
        self._journal = journal
        self._seen: ClusterConfig | None = None
        self._ids: dict[int, int] = dict(configured)
        self._members: tuple[int, ...] = tuple(sorted(configured))
        self._keys: tuple[bytes, ...] = ()
        self._removed: frozenset[int] = frozenset()

    def id(self, identifier: int) -> int:
        """The node's id, or its identifier if it has none."""
        self._refresh()
        return self._ids.get(identifier, identifier)

    def identifier(self, node_id: int) -> int:
        self._refresh()
        return next((identifier for identifier, known in self._ids.items() if known == node_id), node_id)

    def members(self) -> tuple[int, ...]:
        """Identifiers of the nodes that belong to the cluster, present or not."""
        self._refresh()
        return self._members

    def keys(self) -> tuple[bytes, ...]:
        """Public keys of the same nodes, if the configuration stream defines them; else none."""
        self._refresh()
        return self._keys

    def removed(self) -> frozenset[int]:
        """Identifiers of nodes that were removed from the cluster. Their ids and keys are never used again."""
        self._refresh()
        return self._removed

    def _refresh(self) -> None:
        cluster_config = None if self._journal is None else self._journal.execution.cluster_config
        if cluster_config is None or cluster_config is self._seen:
            return
        self._seen = cluster_config
        known = {identifier_of(placed.key): placed for placed in cluster_config.nodes}
        self._ids = {**self._configured, **{identifier: placed.node for identifier, placed in known.items()}}
        self._members = tuple(
            sorted(identifier for identifier, placed in known.items() if cluster_config.is_member(placed))
        )
        self._keys = tuple(placed.key for placed in cluster_config.nodes if cluster_config.is_member(placed))
        self._removed = frozenset(known.keys() - {*self._members})
