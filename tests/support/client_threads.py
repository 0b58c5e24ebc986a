"""The threads of clients that a test made: others in its process may keep theirs, as what reads for Spark does."""

from __future__ import annotations

import threading

before: set[threading.Thread] = set()
"""Those that were there when the test began."""


def client_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "chaplain-client" and thread not in before]
