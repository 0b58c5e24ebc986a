"""Decide with which endpoints to keep a session, and which one to try next.

Inputs are failures, nodes that turn out to be unusable, and the member lists that nodes send: all configured nodes may
be replaced while the client runs. Knows nothing of sessions or frames. The order is random, so that many clients spread
over the nodes. A failed endpoint is tried again after a back-off that grows with each consecutive failure. Among the
endpoints that may be tried, the one with the fewest failures comes first. The user has chosen the configured endpoints,
so the client keeps as many sessions with them as if no others were known. Learned endpoints only replace configured
ones that do not serve.

Invariants:
- at most `sessions_max` endpoints are wanted at once;
- among the wanted endpoints that are usable, at most `sessions_warm` are configured ones;
- no endpoint is wanted twice, and no two wanted endpoints are known to belong to one node;
- a removed node's endpoints are forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from chaplain.client.protocol.events import Settings
from chaplain.config import NODE_IDS_MAX
from chaplain.journal.messages.client import MembersAre


class _EndpointRecord:
    """The client's knowledge about one endpoint."""

    __slots__ = ("failures", "key", "progress", "ready_ns", "reason", "refusals")

    def __init__(self, key: bytes = b"") -> None:
        self.key = key
        """Key of the node that was met there or is reported to be there; empty if unknown."""
        self.failures = 0
        self.progress = ""
        """The stage of the current attempt, for error messages."""
        self.ready_ns = 0
        """When the endpoint may be tried again."""
        self.reason = ""
        self.refusals = 0
        """Consecutive refusals."""


class Endpoints:
    """All known endpoints, and those that are wanted now."""

    def __init__(self, endpoints: Sequence[str], settings: Settings, random: Random) -> None:
        names = list(dict.fromkeys(endpoints))
        if not names:
            raise ValueError("a client needs at least one endpoint")
        random.shuffle(names)
        self._given = frozenset(names)
        self._records = {name: _EndpointRecord() for name in names}
        self._settings = settings
        self._random = random
        self.removed_keys: frozenset[bytes] = frozenset()
        """Keys of removed nodes: a node that lags behind may still report them as members."""
        self.wanted: dict[str, int] = {}
        """Endpoints with which to keep a session, and since when."""
        self.unusable: frozenset[str] = frozenset()
        """Endpoints of nodes that are reserved for others or are no executors. Sessions with them are kept, because
        there may be no better node, but they do not count towards `sessions_warm`.
        """

    def choose(self, now_ns: int) -> list[str]:
        """Fill the wanted endpoints up to the limits and return the new ones."""
        chosen: list[str] = []
        while ready := [name for name in self._idle() if self._records[name].ready_ns <= now_ns]:
            name = min(ready, key=lambda name: self._records[name].failures)
            self.wanted[name] = now_ns
            chosen.append(name)
        return chosen

    def next_ns(self) -> int | None:
        """When the next idle endpoint may be tried; None if there is none."""
        return min((self._records[name].ready_ns for name in self._idle()), default=None)

    def succeeded(self, endpoint: str, key: bytes) -> None:
        """A session with the node of this key is up."""
        self._records[endpoint] = _EndpointRecord(key)

    def update_members(self, nodes: MembersAre) -> list[str]:
        """Add the members of the list, and forget removed nodes. Returns the endpoints that were forgotten.

        A list that would leave no endpoint at all is not believed.
        """
        removed_keys = self.removed_keys | {one.key for one in nodes.gone}
        members = {one.endpoint: one.key for one in nodes.members if one.key not in removed_keys}
        removed_endpoints = {one.endpoint for one in nodes.gone if one.endpoint not in members}
        removed = [
            name
            for name, one in self._records.items()
            if one.key in removed_keys or (not one.key and name in removed_endpoints)
        ]
        if len(removed_keys) > NODE_IDS_MAX or not (members or len(removed) < len(self._records)):
            return []
        self.removed_keys = removed_keys
        for name in removed:
            del self._records[name]
            self.wanted.pop(name, None)
        names = list(members)
        self._random.shuffle(names)
        for name in names:
            if name in self._records or len(self._records) < NODE_IDS_MAX:
                record = self._records.setdefault(name, _EndpointRecord())
                record.key = record.key or members[name]
        return removed

    @property
    def keys(self) -> frozenset[bytes]:
        """Keys of the nodes that are known to be at these endpoints."""
        return frozenset(record.key for record in self._records.values()) - {b""}

    def set_progress(self, endpoint: str, progress: str) -> None:
        """Record the stage of the current attempt, for the error message if the attempt fails."""
        self._records[endpoint].progress = progress

    def progress(self, endpoint: str) -> str:
        """The stage of the current attempt."""
        return self._records[endpoint].progress

    def failed(self, now_ns: int, endpoint: str, reason: str, *, refused: bool) -> None:
        """Stop wanting the endpoint and back off from it."""
        self.wanted.pop(endpoint, None)
        record = self._records[endpoint]
        longest_ns = min(self._settings.retry_first_ns << min(record.failures, 16), self._settings.retry_most_ns)
        record.failures += 1
        record.ready_ns = now_ns + self._random.randint(longest_ns // 2, longest_ns)
        record.progress, record.reason = "", reason
        record.refusals = record.refusals + 1 if refused else 0

    def has_others(self, asked: Collection[str]) -> bool:
        """True if an endpoint other than these is known, whether or not it was reached."""
        return any(name not in asked for name in self._records)

    def all_refused(self) -> bool:
        """True if every endpoint has refused often enough to be believed."""
        return all(record.refusals >= self._settings.refusals_max for record in self._records.values())

    def any_refused(self) -> bool:
        """True if the last attempt of some endpoint was refused."""
        return any(record.refusals for record in self._records.values())

    def describe(self) -> str:
        """Every endpoint and its failure, for error messages."""
        return "; ".join(
            f"{name}: {record.reason or record.progress or 'no answer yet'}" for name, record in self._records.items()
        )

    def advice(self) -> str:
        """Text for error messages: what the user can do."""
        if any("other version" in record.reason for record in self._records.values()):
            return "use the version of chaplain that the nodes run"
        checks = "check that the cluster is up and knows this client"
        return f"{checks}, and that the clocks here and there agree" if self.any_refused() else checks

    def _idle(self) -> list[str]:
        """Endpoints that may be added to the wanted ones.

        They are not wanted yet, there is room for them, and they are not known to belong to the node of a wanted
        endpoint.
        """
        taken = {self._records[name].key for name in self.wanted} - {b""}
        idle = [name for name, record in self._records.items() if name not in self.wanted and record.key not in taken]
        return [name for name in idle if self._has_room(name)]

    def _has_room(self, name: str) -> bool:
        """True if one more session may be kept with this endpoint."""
        useful = self.wanted.keys() - self.unusable
        if name in self._given:
            useful &= self._given
        return len(useful) < self._settings.sessions_warm and len(self.wanted) < self._settings.sessions_max
