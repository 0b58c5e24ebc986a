"""Runs a node under cProfile, for `journal.py --profile`. The product has no code for it.

The event loop and each worker thread are profiled separately, from the start of service to the end of the node.
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
from support.journal_clusters import PROFILE_VARIABLE


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
