"""The log of row changes of one database, in segments that Spark reads: a key, and the row now under it.

Changes are numbered, and the database's state contains their count. They are written here before the database commits.
If a process dies between the two steps, this log has changes that the database lacks, but the database never has
changes that this log lacks. When the message is executed again, it makes the same changes, and those already here are
skipped. Only after a machine failure may this log end before the database does. Then the database is rebuilt from the
journal (`is_behind`).

Invariant: offset n of the stream is always the database's change n.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from random import SystemRandom
from urllib.parse import quote

from chaplain import durable
from chaplain.errors import ChaplainError
from chaplain.file_names import FILE_NAME_BYTES_MAX, bounded
from chaplain.runtime.databases.interface import EngineFailed
from chaplain.runtime.disk.log_files import segments_of
from chaplain.runtime.disk.operations import DataFiles, NoRoom
from chaplain.runtime.disk.syscalls import DataDirectory
from chaplain.segment.files import list_segments
from chaplain.segment.settings import LogSettings
from chaplain.segment.tap import StreamKind, Tap

SEGMENT_BYTES = 16 * 1024 * 1024
RECORD_BYTES_MAX = 4 * 1024 * 1024
RECORD_ROWS_MAX = 50_000

Pair = tuple[bytes, bytes]
"""A key, and the row under it; empty if there is none."""


BEGIN = "begin"
"""A file beside the log with the number of its first change, if that is not 0."""
LOG = "rows"
"""The name of this log in Spark's option `kind`."""
CHANGES = "rows"
"""The folder beside the databases that contains one folder of row changes per stream."""


ESCAPE = "%"
SUFFIX_BYTES_MAX = len(".sqlite.kept.damaged-wal")
"""The longest suffix of a file beside a database. An escaped stream name that leaves less space for a suffix is
shortened. Databases under such unshortened names could never be copied, so their logs were never dropped, and they are
rebuilt under the shortened name.
"""


def quoted(stream: str) -> str:
    """The base name of a stream's files and of its folder of row changes."""
    escaped = quote(stream, safe="").replace(".", "%2E")
    return bounded(escaped, stream, ESCAPE, FILE_NAME_BYTES_MAX - SUFFIX_BYTES_MAX)


class ChangeLog:
    def __init__(self, folder: Path, stream: str, keep_bytes: int = 0) -> None:
        """With `keep_bytes`, the oldest changes are dropped beyond this size; otherwise all are kept."""
        self._stream = stream
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            settings = LogSettings(LOG, StreamKind.ROWS, segment_bytes=SEGMENT_BYTES, free_max=0)
            self._tap = Tap(settings, SystemRandom(), segments_of(folder, LOG), keep_bytes=keep_bytes)
            self._files = DataFiles(DataDirectory(str(folder)))
            begin = folder / BEGIN
            if begin.exists():
                self._tap.begin(stream, int(begin.read_text()))
        except (OSError, ChaplainError) as error:
            raise EngineFailed(f"the log of row changes in {folder}: {error}") from error

    def is_behind(self, count: int) -> bool:
        """True if this log lacks some of the changes of a database that has made this many."""
        return self._tap.head(self._stream) < count

    def write(self, first: int, pairs: Sequence[Pair], timestamp_ns: int) -> None:
        """Append changes from number `first` on; those already here are skipped."""
        head = self._tap.head(self._stream)
        assert first <= head, "a change would be missing"
        start = head - first
        try:
            while start < len(pairs):
                stop = _fitting(pairs, start)
                self._append(pairs[start:stop], timestamp_ns)
                start = stop
        except (OSError, NoRoom, ChaplainError) as error:
            raise EngineFailed(f"the log of row changes: {error}") from error

    def _append(self, pairs: Sequence[Pair], timestamp_ns: int) -> None:
        keys, values = [key for key, _ in pairs], [row for _, row in pairs]
        for operation in self._tap.write(StreamKind.ROWS, self._stream, values, timestamp_ns, keys=keys):
            self._files.perform(operation)

    def sync(self) -> None:
        self._files.sync()

    def close(self) -> None:
        self._files.close()


def begin_at(folder: Path, count: int) -> None:
    """Start the log after this many changes: the database was copied from another node, or rebuilt."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for segment in list_segments(folder, LOG):
        segment.path.unlink()
    durable.put(folder / BEGIN, f"{count}\n")


def _fitting(pairs: Sequence[Pair], start: int) -> int:
    """The end of the pairs that fit in one record."""
    stop = min(len(pairs), start + RECORD_ROWS_MAX)
    sizes = [len(key) + len(row) + 8 for key, row in pairs[start:stop]]
    if sum(sizes) <= RECORD_BYTES_MAX:
        return stop
    return start + max(1, bisect_right(list(accumulate(sizes)), RECORD_BYTES_MAX))
