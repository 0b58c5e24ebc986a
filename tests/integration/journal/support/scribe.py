"""One writer as a process of its own: `python -m tests.integration.journal.support.scribe DIR IDENTITY NUMBER COUNT`.

Says `ready`, waits for a line, writes, and says the offsets it got, in order.
"""

from __future__ import annotations

import json
import sys

from chaplain import Client
from tests.integration.journal.support.history import STREAM


def main(directory: str, identity: str, number: str, count: str) -> None:
    with Client.connect(directory, identity=identity, timeout=60) as client:
        client.journal(STREAM).write(b"%d:0" % int(number))
        print("ready", flush=True)
        sys.stdin.readline()
        with client.journal(STREAM).writer(receipts=True) as writer:
            for at in range(1, int(count)):
                writer.write(b"%d:%d" % (int(number), at))
        print(json.dumps([receipt.offset for receipt in writer.take_receipts()]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
