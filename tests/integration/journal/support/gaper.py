"""One reader in its own process, which a test stops.

Run as `python -m tests.integration.journal.support.gaper DIR NODE STREAM`.

Says `ready` when its first message has come; then it takes what comes, as long as it is let.
"""

from __future__ import annotations

import sys

from chaplain import Client


def main(directory: str, node: str, stream: str) -> None:
    with Client.connect(directory, node=int(node), timeout=60) as client:
        for count, _ in enumerate(client.journal(stream).read(follow=True)):
            if count == 0:
                print("ready", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
