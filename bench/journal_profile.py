"""A node under cProfile, for `journal.py --profile`: the product knows nothing of it."""

from __future__ import annotations

import cProfile
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from journal_clusters import PROFILE_VARIABLE

from chaplain.cli.main import main


def watch_threads(path: str) -> None:
    """Every thread is profiled apart; each leaves its profile when it ends."""
    run = threading.Thread.run

    def profiled(thread: threading.Thread) -> None:
        profiler = cProfile.Profile()
        try:
            profiler.runcall(run, thread)
        finally:
            profiler.dump_stats(f"{path}.{thread.name}")

    replaced: Callable[[Any], None] = profiled
    threading.Thread.run = replaced  # type: ignore[method-assign]


if __name__ == "__main__":
    target = os.environ[PROFILE_VARIABLE]
    watch_threads(target)
    profiler = cProfile.Profile()
    try:
        profiler.runcall(main, sys.argv[1:])
    finally:
        profiler.dump_stats(f"{target}.loop")
