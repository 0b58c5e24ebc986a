"""The local node's roles in the cluster configuration: which requests of clients it accepts, and when it must stop.

Decides from the executed state alone, and evaluates it again only after the cluster configuration changed. A node that
is not in the configuration yet has no role. A node that was in it and lost all roles was removed and stops. If it
already knew this at its start, it stops at once. Otherwise it continues for `PARTING_NS`, so that other nodes can take
over its duties in other layers, such as its seat in the sequence.
"""

from __future__ import annotations

from chaplain.core import Halt
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.membership import Stage
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.journal.settings import JournalSettings

SAY_AGAIN_NS = 200_000_000
"""A blocked ingest node repeats its drained notice at this interval until the master drops it."""

PARTING_NS = 5_000_000_000
"""A node continues for this time after its removal. The sequence needs a second or two to replace it."""
REMOVED = "the cluster removed this node, for ever: do not start it again; `chaplain member add` makes a new one"
"""Advice for the operator of a removed node."""
NO_CLIENT = ""
"""A name that no client has."""


class LocalRoles:
    """The roles of this node, cached per cluster configuration."""

    def __init__(self, settings: JournalSettings, execution: JournalExecution) -> None:
        self._node = settings.node
        self.reserved = settings.reserved
        self._execution = execution
        self._seen: ClusterConfig | None = None
        self._ingest = self._executor = self._config = Stage.NONE
        self._was_member = self._is_member = False
        self._drained_sent_ns = 0
        self.due_ns: int | None = None
        """When a removed node must stop."""

    @property
    def takes_writes(self) -> bool:
        if self._execution.state.cluster_config is not self._seen:
            self._refresh()
        return self._ingest is Stage.LIVE

    @property
    def accepted_clients(self) -> tuple[str, ...]:
        """Names of the clients whose packs this node accepts; empty for all clients. A node without payloads accepts
        packs of no client.
        """
        cluster_config = self._execution.cluster_config
        bare = self._execution.copies and not cluster_config.holds_data(self._node)
        return (NO_CLIENT,) if bare else self.reserved

    def accepts_client(self, acl: bytes) -> bool:
        """True if this node accepts packs of this identity. Reserved names are compared at each call, because an
        identity with a reserved name may be added later.
        """
        client = self._execution.state.clients.get(acl) if self.reserved else None
        return not self.reserved or (client is not None and client.name in self.reserved)

    @property
    def blocked(self) -> bool:
        if self._execution.state.cluster_config is not self._seen:
            self._refresh()
        return Stage.BLOCK in (self._ingest, self._config)

    @property
    def may_propose(self) -> bool:
        """True if this node may still send packs to be ordered. A blocked ingest node sends only packs that it accepted
        before.
        """
        return self.takes_writes or self.blocked

    @property
    def answers_reads(self) -> bool:
        self._refresh()
        return self._executor is Stage.LIVE

    @property
    def takes_config(self) -> bool:
        self._refresh()
        return self._config is Stage.LIVE

    @property
    def was_removed(self) -> bool:
        """True if this node was a member and no longer is."""
        self._refresh()
        return self._was_member and not self._is_member

    def schedule_stop(self, now_ns: int, after_ns: int = PARTING_NS) -> None:
        """Stop this node after `after_ns`."""
        self.due_ns = now_ns + after_ns

    def on_timer(self, now_ns: int) -> list[Halt]:
        if self.due_ns is None or now_ns < self.due_ns:
            return []
        self.due_ns = None
        return [Halt(REMOVED, removed=True)]

    def drained_notice_to(self, now_ns: int, master: int, idle: bool) -> int:
        """The master, if a notice is due that none of this node's messages waits to be ordered; otherwise 0."""
        if not self.blocked or not idle or now_ns - self._drained_sent_ns < SAY_AGAIN_NS:
            return 0
        self._drained_sent_ns = now_ns
        return master

    def _refresh(self) -> None:
        cluster_config = self._execution.state.cluster_config
        if cluster_config is self._seen:
            return
        self._seen = cluster_config
        member = cluster_config.node(self._node)
        self._was_member = member is not None
        if member is not None:
            self._is_member = cluster_config.is_member(member)
            self._ingest, self._executor = Stage(member.ingest), Stage(member.executor)
            self._config = Stage(member.config)
