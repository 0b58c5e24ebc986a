"""A node with a planted bug and a disk to show it: it says "on disk" at once, and the disk forgets the last second when
the process is killed. Started like `python -m chaplain.cli.main`.
"""

from __future__ import annotations

import os
import threading
import time

from chaplain.cli.main import main
from chaplain.core import Persist, Persisted
from chaplain.runtime.storage import Storage

FORGETS_S = 1.0


def finish(self: Storage, group: list[Persist]) -> None:
    for persist in group:
        self._done.append(Persisted(persist.ticket))
    os.eventfd_write(self.fd, 1)
    with LOCK:
        LATE.append((time.monotonic() + FORGETS_S, self, group))


def write_late() -> None:
    while True:
        with LOCK:
            while LATE and LATE[0][0] <= time.monotonic():
                _, storage, group = LATE.pop(0)
                for persist in group:
                    for operation in persist.operations:
                        storage._files.perform(operation)
        time.sleep(0.02)


LATE: list[tuple[float, Storage, list[Persist]]] = []
LOCK = threading.Lock()

if __name__ == "__main__":
    Storage._at_once = lambda self, persists: False  # type: ignore[method-assign]
    Storage._perform_all = lambda self, group: None  # type: ignore[method-assign]
    Storage._finish = finish  # type: ignore[method-assign]
    threading.Thread(target=write_late, daemon=True).start()
    main()
