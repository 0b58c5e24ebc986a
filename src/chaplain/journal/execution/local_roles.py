"""One node's own seat in the assembly: what its roles let it do for clients.

Decides from the executed state alone, and looks again only when the assembly changed. A node that is not in the
assembly yet has no role; one that was in it and lost everything has left, and stops: at once if it knew when it was
started, else after a while in which others can take what it had elsewhere, as its seat in the sequence.
"""

from __future__ import annotations

from chaplain.core import Halt
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.membership import Stage
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.journal.settings import JournalSettings

SAY_AGAIN_NS = 200_000_000
"""A blocked ingest node says so often that nothing of it waits, until it is dropped."""

PARTING_NS = 5_000_000_000
"""How long a node goes on after it was removed; the sequence takes a second or two to let it go."""
REMOVED = "the cluster removed this node, for ever: do not start it again; `chaplain member add` makes a new one"
"""What to do with a node that left."""
NOBODY = ""
"""A name that no client has."""


class LocalRoles:
    def __init__(self, settings: JournalSettings, execution: JournalExecution) -> None:
        self._node = settings.node
        self.reserved = settings.reserved
        self._execution = execution
        self._seen: ClusterConfig | None = None
        self._ingest = self._executor = self._config = Stage.NONE
        self._was_member = self._is_member = False
        self._drained_sent_ns = 0
        self.due_ns: int | None = None
        """When a node that has left is to stop."""

    @property
    def takes_writes(self) -> bool:
        if self._execution.state.cluster_config is not self._seen:
            self._refresh()
        return self._ingest is Stage.LIVE

    @property
    def accepted_clients(self) -> tuple[str, ...]:
        """Names of those whose packs are taken here; empty: everybody's. Who holds no data takes nobody's."""
        cluster_config = self._execution.cluster_config
        bare = self._execution.copies and not cluster_config.holds_data(self._node)
        return (NOBODY,) if bare else self.reserved

    def accepts_client(self, acl: bytes) -> bool:
        """Whether what this identity writes is taken here. A name that nobody has yet may be given later."""
        client = self._execution.state.clients.get(acl) if self.reserved else None
        return not self.reserved or (client is not None and client.name in self.reserved)

    @property
    def blocked(self) -> bool:
        if self._execution.state.cluster_config is not self._seen:
            self._refresh()
        return Stage.BLOCK in (self._ingest, self._config)

    @property
    def may_propose(self) -> bool:
        """What was taken before a block may still be ordered."""
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
        """We were a member, and are none any more."""
        self._refresh()
        return self._was_member and not self._is_member

    def schedule_stop(self, now_ns: int, after_ns: int = PARTING_NS) -> None:
        self.due_ns = now_ns + after_ns

    def on_timer(self, now_ns: int) -> list[Halt]:
        if self.due_ns is None or now_ns < self.due_ns:
            return []
        self.due_ns = None
        return [Halt(REMOVED, removed=True)]

    def drained_notice_to(self, now_ns: int, master: int, idle: bool) -> int:
        """The master, if it is to be told that nothing of ours waits; 0 if not, or not again yet."""
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
