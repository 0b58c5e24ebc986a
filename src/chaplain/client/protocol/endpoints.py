"""Which endpoints to keep a session with, and which to try next.

Decides from failures, from which are of little use, and from what nodes say about who belongs to the cluster: those
whom we were given may all be replaced while we run. Knows nothing of sessions or frames. The order is drawn from the
chance it is given, so that many clients spread over the nodes. An endpoint that failed waits, longer each time in a
row; of those that may be tried, the one with the fewest failures comes first. Those we were given are somebody's
choice: they are wanted as if there were no others, and the others make up for those of them that do not serve.

Invariants: at most `sessions_max` endpoints are wanted at once, `sessions_warm` of those that were given and are not
set aside, none twice, and no two of one node, as far as we know; of one that was removed nothing is known any more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from chaplain.client.protocol.events import Settings
from chaplain.config import NODE_IDS_MAX
from chaplain.journal.messages.client import MembersAre


class _Record:
    __slots__ = ("failures", "key", "note", "ready_ns", "reason", "refusals")

    def __init__(self, key: bytes = b"") -> None:
        self.key = key
        """Of the node that was met there, or is said to be; empty: nobody knows."""
        self.failures = 0
        self.note = ""
        self.ready_ns = 0
        self.reason = ""
        self.refusals = 0


class Endpoints:
    def __init__(self, endpoints: Sequence[str], settings: Settings, random: Random) -> None:
        names = list(dict.fromkeys(endpoints))
        if not names:
            raise ValueError("a client needs at least one endpoint")
        random.shuffle(names)
        self._given = frozenset(names)
        self._records = {name: _Record() for name in names}
        self._settings = settings
        self._random = random
        self.gone: frozenset[bytes] = frozenset()
        """Keys of nodes that were removed: one that is behind may still call them members."""
        self.wanted: dict[str, int] = {}
        """Endpoints to keep a session with, and since when."""
        self.aside: frozenset[str] = frozenset()
        """Of nodes that are reserved for others, or no executors: kept, for there may be no better, but others are
        wanted, too.
        """

    def choose(self, now_ns: int) -> list[str]:
        """Want as many endpoints as there is room for, and say which are new."""
        chosen: list[str] = []
        while ready := [name for name in self._idle() if self._records[name].ready_ns <= now_ns]:
            name = min(ready, key=lambda name: self._records[name].failures)
            self.wanted[name] = now_ns
            chosen.append(name)
        return chosen

    def next_ns(self) -> int | None:
        """When an endpoint may be tried that may not be tried now."""
        return min((self._records[name].ready_ns for name in self._idle()), default=None)

    def succeeded(self, endpoint: str, key: bytes) -> None:
        self._records[endpoint] = _Record(key)

    def told(self, nodes: MembersAre) -> list[str]:
        """Know those that belong to the cluster, and forget those that are gone: these endpoints of theirs.

        A word that would leave us nobody is no true one.
        """
        gone = self.gone | {one.key for one in nodes.gone}
        members = {one.endpoint: one.key for one in nodes.members if one.key not in gone}
        left = {one.endpoint for one in nodes.gone if one.endpoint not in members}
        known = self._records.items()
        over = [name for name, one in known if one.key in gone or (not one.key and name in left)]
        if len(gone) > NODE_IDS_MAX or not (members or len(over) < len(self._records)):
            return []
        self.gone = gone
        for name in over:
            del self._records[name]
            self.wanted.pop(name, None)
        names = list(members)
        self._random.shuffle(names)
        for name in names:
            if name in self._records or len(self._records) < NODE_IDS_MAX:
                record = self._records.setdefault(name, _Record())
                record.key = record.key or members[name]
        return over

    @property
    def keys(self) -> frozenset[bytes]:
        """Of the nodes that are known to be at these endpoints."""
        return frozenset(record.key for record in self._records.values()) - {b""}

    def note(self, endpoint: str, note: str) -> None:
        """How far it got this time, should nothing more come of it."""
        self._records[endpoint].note = note

    def noted(self, endpoint: str) -> str:
        return self._records[endpoint].note

    def failed(self, now_ns: int, endpoint: str, reason: str, *, refused: bool) -> None:
        """Let go of it, and stay away from it for a while."""
        self.wanted.pop(endpoint, None)
        record = self._records[endpoint]
        longest_ns = min(self._settings.retry_first_ns << min(record.failures, 16), self._settings.retry_most_ns)
        record.failures += 1
        record.ready_ns = now_ns + self._random.randint(longest_ns // 2, longest_ns)
        record.note, record.reason = "", reason
        record.refusals = record.refusals + 1 if refused else 0

    def has_others(self, asked: Collection[str]) -> bool:
        """Whether there is one beside these, reached or not."""
        return any(name not in asked for name in self._records)

    def all_refused(self) -> bool:
        """Whether every endpoint said no often enough to be believed."""
        return all(record.refusals >= self._settings.refusals_max for record in self._records.values())

    def any_refused(self) -> bool:
        return any(record.refusals for record in self._records.values())

    def describe(self) -> str:
        """Every endpoint and what went wrong there, for a message to a person."""
        return "; ".join(
            f"{name}: {record.reason or record.note or 'no answer yet'}" for name, record in self._records.items()
        )

    def advice(self) -> str:
        """What a person can do about it."""
        if any("other version" in record.reason for record in self._records.values()):
            return "use the version of chaplain that the nodes run"
        told = "check that the cluster is up and knows this client"
        return f"{told}, and that the clocks here and there agree" if self.any_refused() else told

    def _idle(self) -> list[str]:
        """Those that are not wanted, though there is room, and lead to nobody to whom one leads that is."""
        taken = {self._records[name].key for name in self.wanted} - {b""}
        idle = [name for name, record in self._records.items() if name not in self.wanted and record.key not in taken]
        return [name for name in idle if self._has_room(name)]

    def _has_room(self, name: str) -> bool:
        useful = self.wanted.keys() - self.aside
        if name in self._given:
            useful &= self._given
        return len(useful) < self._settings.sessions_warm and len(self.wanted) < self._settings.sessions_max
