"""Two real `Sockets` on loopback, and waiting for conditions with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable

from chaplain.core import Admit, Dial, Knocked, Refuse
from chaplain.link.zmq.sockets import SocketInput, Sockets

PATIENCE_S = 20


class Side:
    """One end: remembers its inputs and lets in whoever shows the right proof."""

    def __init__(self, instance: bytes, bind: str | None = None, proof: bytes = b"open", **options: int) -> None:
        self.sockets = Sockets(instance, bind, **options)
        self.proof = proof
        self.seen: list[SocketInput] = []

    def turn(self, timeout_ms: int = 5) -> None:
        inputs = self.sockets.wait(timeout_ms * 1_000_000)
        self.seen.extend(inputs)
        for event in inputs:
            if isinstance(event, Knocked):
                right = event.proof == self.proof
                answer = Admit(event.request, "someone") if right else Refuse(event.request, "wrong proof")
                self.sockets.perform(answer)

    def of(self, kind: type) -> list:
        return [event for event in self.seen if isinstance(event, kind)]

    def dial(self, number: int, endpoint: str, name: bytes = b"n", proof: bytes = b"open") -> None:
        self.sockets.perform(Dial(number, endpoint, name, proof))

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.sockets.close()


def until(condition: Callable[[], object], *sides: Side) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, [side.seen[-5:] for side in sides]
        for side in sides:
            side.turn(1)
