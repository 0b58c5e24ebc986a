"""A node with a planted bug and a disk to show it: while a file `forget` is beside its folder it says "on disk" of
what it keeps in memory only. Started like `python -m chaplain.cli.main`.

What it wrote before is whole: so it surely starts again, and surely without what it promised since.
"""

from __future__ import annotations

import sys
from pathlib import Path

from chaplain.cli.main import main
from chaplain.core import Persist, Persisted, PersistFailed
from chaplain.runtime.disk.writer import DiskWriter

FLAG = "forget"
_really_at_once, _really_perform, _really_finish = DiskWriter.write_now, DiskWriter._perform_all, DiskWriter._finish
_flag = Path(sys.argv[-1]).parent.parent / FLAG
_forgetting = False


def at_once(self: DiskWriter, persists: list[Persist]) -> list[Persisted | PersistFailed]:
    return [] if _forgets() else _really_at_once(self, persists)


def perform_all(self: DiskWriter, group: list[Persist]) -> None:
    if not _forgets():
        _really_perform(self, group)


def finish(self: DiskWriter, group: list[Persist]) -> list[Persisted | PersistFailed]:
    if not _forgetting:
        return _really_finish(self, group)
    return [Persisted(persist.ticket) for persist in group]


def _forgets() -> bool:
    """From the first time on, for good: a log with a hole in it would be another bug."""
    global _forgetting  # noqa: PLW0603
    _forgetting = _forgetting or _flag.exists()
    return _forgetting


if __name__ == "__main__":
    DiskWriter.write_now = at_once  # type: ignore[method-assign]
    DiskWriter._perform_all = perform_all  # type: ignore[method-assign]
    DiskWriter._finish = finish  # type: ignore[method-assign]
    main()
