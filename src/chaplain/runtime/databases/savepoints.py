"""Savepoints inside one request: SAVEPOINT, RELEASE and ROLLBACK TO (journal.txt: "checkpoints and the like").

Decides which texts are such a command, and to which open savepoint it refers. The engines run the command under names
of the executor's own, which follow from the depth. Does not know the engines.

Invariants: a command refers only to savepoints of its own request; savepoints that are open at the end of a request end
with it; the result of a command follows from the texts of the request alone, so it is the same on every executor.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, Literal, NamedTuple, TypeVar

DEPTH_MAX = 16
"""Savepoints that one request may have open at a time."""
SAVEPOINTS_MAX = 1000
"""SAVEPOINT commands of one request."""
NAME_MAX = 63
"""Length of a name."""
_TEXT_MAX = 1024
_WORDS = ("savepoint", "release", "rollback")
_COMMAND = re.compile(
    r"\s*(?:(?P<begin>savepoint)|(?P<release>release)(?:\s+savepoint)?"
    r"|(?P<undo>rollback)(?:\s+(?:work|transaction))?\s+to(?:\s+savepoint)?)"
    rf"\s+(?P<name>[a-z_][a-z0-9_]{{0,{NAME_MAX - 1}}})\s*;?\s*",
    re.IGNORECASE | re.ASCII,
)
Mark = TypeVar("Mark")


class SavepointError(Exception):
    """A command that cannot be executed. `kind` is that of the request's error."""

    def __init__(self, kind: Literal["refused", "limit", "error"], message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Command(NamedTuple):
    verb: Literal["begin", "release", "undo"]
    name: str
    """In lower case: names are not case-sensitive, as in SQLite and PostgreSQL."""


def command_of(sql: str) -> Command | None:
    """The command; None for every other statement. Raises `SavepointError` for a command of another form."""
    if not sql.lstrip()[:9].lower().startswith(_WORDS):
        return None
    found = _COMMAND.fullmatch(sql) if len(sql) <= _TEXT_MAX else None
    if found is None:
        allowed = "SAVEPOINT name, RELEASE name and ROLLBACK TO name"
        raise SavepointError("refused", f"of transactions, a request may contain {allowed}, with plain names")
    name = found["name"].lower()
    if found["begin"]:
        return Command("begin", name)
    return Command("release" if found["release"] else "undo", name)


class Savepoints(Generic[Mark]):
    """The open savepoints of one request. A mark is an engine's own state at a savepoint."""

    def __init__(self, run: Callable[[str], object], mark: Callable[[], Mark], restore: Callable[[Mark], None]) -> None:
        self._run = run
        self._mark = mark
        self._restore = restore
        self._open: list[_Savepoint[Mark]] = []
        self._begun = 0

    def execute(self, command: Command) -> None:
        if command.verb == "begin":
            self._begin(command.name)
            return
        place = self._place_of(command.name)
        if command.verb == "release":
            self._run(f"release savepoint {_own_name(place)}")
            del self._open[place:]
        else:
            self._run(f"rollback to savepoint {_own_name(place)}")
            del self._open[place + 1 :]
            self._restore(self._open[place].mark)

    def _begin(self, name: str) -> None:
        if len(self._open) >= DEPTH_MAX:
            raise SavepointError("limit", f"at most {DEPTH_MAX} savepoints of a request may be open")
        if self._begun >= SAVEPOINTS_MAX:
            raise SavepointError("limit", f"a request may contain at most {SAVEPOINTS_MAX} savepoints")
        self._begun += 1
        self._run(f"savepoint {_own_name(len(self._open))}")
        self._open.append(_Savepoint(name, self._mark()))

    def _place_of(self, name: str) -> int:
        """The latest open savepoint of this name; the same name may be open several times."""
        for place in range(len(self._open) - 1, -1, -1):
            if self._open[place].name == name:
                return place
        raise SavepointError("error", f"no such savepoint in this request: {name}")


class _Savepoint(NamedTuple, Generic[Mark]):
    name: str
    mark: Mark


def _own_name(place: int) -> str:
    return f"chaplain_{place}"
