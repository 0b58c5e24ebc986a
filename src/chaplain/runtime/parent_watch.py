"""Stops a node when the program that started it has ended, however it ended.

A node that belongs to a program (`chaplain.open`, `chaplain.testing`) must not outlive it. A killed program cannot stop
its nodes, so each node looks for its parent: the kernel gives an orphan another one.
"""

from __future__ import annotations

import os
import signal
import threading
import time

LOOK_S = 0.2


def stop_with_parent(pid: int) -> None:
    """Send this process a SIGTERM as soon as `pid` is not its parent."""
    threading.Thread(target=_watch, args=(pid,), name="parent", daemon=True).start()


def _watch(pid: int) -> None:
    while os.getppid() == pid:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
