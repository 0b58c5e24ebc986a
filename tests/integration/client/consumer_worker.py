"""A worker of a named consumer as a process of its own: it notes each message before it acknowledges it.

`python -m tests.integration.client.consumer_worker DIRECTORY STREAM NAME MODE LEASE FILE`. Each line of the file has
the time, the offset, the key and the fencing token. In the modes `sql` and `copy`, the worker is one of a keyed
consumer. It inserts a row, or writes a message to the stream `copies`, for each message, together with its
acknowledgement.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from chaplain import Client, LeaseLost, Unknown, Unreachable


def main() -> None:
    directory, stream, name, mode, lease, file = sys.argv[1:]
    with Path(file).open("ab", buffering=0) as notes:
        while True:
            with contextlib.suppress(LeaseLost, Unknown, Unreachable):  # consume again: the position is the cluster's
                work(directory, stream, name, mode, float(lease), notes=notes)


def work(directory: str, stream: str, name: str, mode: str, lease: float, *, notes: object) -> None:
    kind = "keyed" if mode in ("sql", "copy") else mode
    with (
        Client.connect(directory, timeout=20) as client,
        client.journal(stream).consume(name, mode=kind, lease=lease) as consumer,
    ):
        for message in consumer:
            line = b"%d %d %s %d\n" % (time.monotonic_ns(), message.offset, message.key or b"-", consumer.token)
            if mode == "sql":
                message.execute("insert into done (place) values (?)", [message.offset], database="main")
                notes.write(line)  # type: ignore[attr-defined]
            elif mode == "copy":
                message.write("copies", b"%d" % message.offset, message.key)
                notes.write(line)  # type: ignore[attr-defined]
            else:
                notes.write(line)  # type: ignore[attr-defined]
                message.ack()


if __name__ == "__main__":
    main()
