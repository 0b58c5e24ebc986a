"""Which endpoints to keep a session with, and which to try next.

Decides from failures, and from which are of little use; knows nothing of sessions or frames. The order is drawn once
from the chance it is given, so that many clients spread over the nodes. An endpoint that failed waits, longer each time
in a row; of those that may be tried, the one with the fewest failures comes first.

Invariant: at most `sessions_max` endpoints are wanted at once, `sessions_warm` of them that are not set aside, none
twice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from chaplain.client.events import Settings


class _Record:
    __slots__ = ("failures", "note", "ready_ns", "reason", "refusals")

    def __init__(self) -> None:
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
        self._records = {name: _Record() for name in names}
        self._settings = settings
        self._random = random
        self.wanted: dict[str, int] = {}
        """Endpoints to keep a session with, and since when."""
        self.aside: frozenset[str] = frozenset()
        """Of nodes that are reserved for others, or no executors: kept, for there may be no better, but others are
        wanted, too.
        """

    def choose(self, now_ns: int) -> list[str]:
        """Want as many endpoints as there is room for, and say which are new."""
        chosen: list[str] = []
        while self._has_room():
            ready = [name for name in self._idle() if self._records[name].ready_ns <= now_ns]
            if not ready:
                break
            name = min(ready, key=lambda name: self._records[name].failures)
            self.wanted[name] = now_ns
            chosen.append(name)
        return chosen

    def _has_room(self) -> bool:
        useful = len(self.wanted.keys() - self.aside)
        return useful < self._settings.sessions_warm and len(self.wanted) < self._settings.sessions_max

    def next_ns(self) -> int | None:
        """When an endpoint may be tried that may not be tried now."""
        if not self._has_room():
            return None
        return min((self._records[name].ready_ns for name in self._idle()), default=None)

    def succeeded(self, endpoint: str) -> None:
        self._records[endpoint] = _Record()

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
        return [name for name in self._records if name not in self.wanted]
