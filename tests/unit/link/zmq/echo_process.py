"""A process that binds `Sockets`, lets in who shows the right proof, and echoes frames that begin with `echo`.

Prints its endpoint; then, for every line it is sent, its peak resident memory in bytes and its counts.
"""

from __future__ import annotations

import json
import sys

from chaplain.core import Admit, Arrived, Knocked, Refuse, Send
from chaplain.link.zmq.sockets import Sockets


def peak_bytes() -> int:
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> None:
    sockets = Sockets(b"s" * 16, "tcp://127.0.0.1:*")
    print(sockets.endpoint, flush=True)

    def answer() -> None:
        if not sys.stdin.readline():
            sys.exit(0)
        print(json.dumps({"peak_bytes": peak_bytes(), "counts": sockets.counts}), flush=True)

    sockets.watch(sys.stdin.fileno(), answer)
    while True:
        for event in sockets.wait():
            match event:
                case Knocked(proof=b"right"):
                    sockets.perform(Admit(event.request, "friend"))
                case Knocked():
                    sockets.perform(Refuse(event.request, "wrong"))
                case Arrived() if event.frame.startswith(b"echo"):
                    sockets.perform(Send(event.channel, event.frame))
                case _:
                    pass


if __name__ == "__main__":
    main()
