"""Integrity check of a SQLite file: reads all rows and compares them with the stored tallies.

Tallies are updated as rows change and never recomputed. So bit rot in a row would be served and copied, and no
fingerprint would show it. SQLite has no checksums: it detects malformed pages and, on request, indexes that do not
match their table, but not a changed letter in a row.

Decides what counts as damage. Results are not part of the fingerprint, so only SQLite's own check covers them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import apsw
import msgspec

from chaplain.executor.fingerprint import RowTally, Tallies
from chaplain.file_names import is_shortened
from chaplain.runtime.databases.change_log import ESCAPE
from chaplain.runtime.databases.interface import DatabaseDamaged, EngineFailed
from chaplain.runtime.databases.sqlite.metadata import state_of, stream_in
from chaplain.runtime.databases.sqlite.row_tracker import SqliteLimitExceeded, SqliteRowTracker

PAUSE_S = 0.0005
"""Pause after some rows when the check runs in a node: Python runs one thread at a time, and others need it."""
_CACHE_KIB = 64 * 1024
"""SQLite looks up every row in every index, so the check needs a large cache."""
_STEPS_A_CALL = 100_000
_NAMED_MAX = 3
MALFORMED = (apsw.CorruptError, apsw.NotADBError)


class Checked(msgspec.Struct, frozen=True):
    index: int
    """The last message that is completely applied."""
    changes: int
    """Number of row changes so far."""
    rows: int


def check(file: Path, stream: str, pause_s: float = 0.0, given_up: Callable[[], bool] = bool) -> Checked:
    """Check the whole file as it is now. Raise `DatabaseDamaged` if its contents differ from what was executed."""
    try:
        connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            # CHECK constraints may depend on the time, so they cannot be verified now.
            connection.pragma("ignore_check_constraints", True)
            connection.pragma("cache_size", -_CACHE_KIB)
            connection.set_progress_handler(given_up, _STEPS_A_CALL)
            connection.execute("begin")
            return _check(connection, stream, pause_s)
        finally:
            connection.close()
    except (*MALFORMED, SqliteLimitExceeded, UnicodeDecodeError) as error:
        raise DatabaseDamaged(f"{type(error).__name__}: {error}") from error
    except apsw.Error as error:
        raise EngineFailed(f"{file}: {type(error).__name__}: {error}") from error


def _check(connection: apsw.Connection, stream: str, pause_s: float) -> Checked:
    state = state_of(connection, stream)
    if state is None:
        raise DatabaseDamaged("it has no position")
    tracker = SqliteRowTracker(connection, Tallies(state.tallies))
    tracker.open()
    if tracker.fingerprint() != state.fingerprint:
        raise DatabaseDamaged("its schema and tallies do not add up to its fingerprint")
    found = tracker.read_again(lambda: time.sleep(pause_s)).values()
    if found != state.tallies:
        raise DatabaseDamaged(_differing(found, state.tallies))
    wrong = [text for (text,) in connection.execute(f"pragma integrity_check({_NAMED_MAX})") if text != "ok"]
    if wrong:
        raise DatabaseDamaged("; ".join(wrong).replace("\n", " "))
    return Checked(state.applied, state.changes, sum(tally.count for tally in found.values()))


def _differing(found: dict[str, RowTally], kept: dict[str, RowTally]) -> str:
    """The tables whose tallies differ, with the actual and the expected number of rows."""
    tables = [table for table in sorted({*found, *kept}) if found.get(table) != kept.get(table)]
    counts = [(table, found.get(table, RowTally()).count, kept.get(table, RowTally()).count) for table in tables]
    descriptions = [
        f"{table}: {count} rows, and not all as they were written"
        if count == must
        else f"{table}: {count} rows of {must}"
        for table, count, must in counts[:_NAMED_MAX]
    ]
    more = f", and {len(tables) - _NAMED_MAX} more tables" if len(tables) > _NAMED_MAX else ""
    return "; ".join(descriptions) + more


# For the command line.


def files_in(folder: Path) -> list[tuple[str, Path]]:
    """The databases and kept copies of a node, with their streams."""
    found = [*folder.glob("*.sqlite"), *folder.glob("*.sqlite.kept")]
    return [(_stream_of(file), file) for file in sorted(found)]


def _stream_of(file: Path) -> str:
    """The stream of a database or copy. A shortened file name does not contain it, so it is read from the database.

    For a damaged database that may fail; then the shortened name is returned.
    """
    name = file.name.partition(".")[0]
    if not is_shortened(name, ESCAPE):
        return unquote(name)
    try:
        connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return stream_in(connection) or name
        finally:
            connection.close()
    except (apsw.Error, UnicodeDecodeError):
        return name


def check_report(file: Path, stream: str) -> dict[str, object]:
    """The result of a check as a row of output."""
    try:
        checked = check(file, stream)
    except DatabaseDamaged as damage:
        return {"position": None, "rows": None, "damage": str(damage)}
    return {"position": checked.index, "rows": checked.rows, "damage": ""}
