"""A node under cProfile, for `journal.py --profile`: the product knows nothing of it.

The loop and each of the threads that work for it are profiled apart, from when the node serves until it ends.
"""

from __future__ import annotations

import cProfile
import os
import sys
from collections.abc import Callable
from typing import Any

from chaplain.cli.main import main
from chaplain.runtime.disk.writer import DiskWriter
from chaplain.runtime.event_loop import EventLoop
from chaplain.runtime.worker_pool import WorkerPool
from journal_clusters import PROFILE_VARIABLE


def profiled(part: str, work: Callable[[Any], Any]) -> Callable[[Any], Any]:
    count = 0

    def run(owner: object) -> object:
        nonlocal count
        count += 1
        path = f"{os.environ[PROFILE_VARIABLE]}.{part}{count}"
        profiler = cProfile.Profile()
        try:
            return profiler.runcall(work, owner)
        finally:
            profiler.dump_stats(path)

    return run


if __name__ == "__main__" and PROFILE_VARIABLE in os.environ:
    for kind, name in ((EventLoop, "run"), (DiskWriter, "_work"), (WorkerPool, "_work")):
        setattr(kind, name, profiled(kind.__name__.lower(), getattr(kind, name)))
    main(sys.argv[1:])
