"""A core that keeps a log of numbers: enough to show everything a host does for a core."""

from __future__ import annotations

from collections import Counter

from chaplain.core import (
    Admit,
    Arrived,
    Cast,
    Drained,
    Halt,
    Heard,
    HostEffect,
    HostInput,
    Knocked,
    Persist,
    Persisted,
    Report,
    Send,
    Stopping,
    Woken,
    WriteAt,
)


class ToyCore:
    """Echoes a frame once it is on disk; halts or breaks when told; wakes itself every 10 ms."""

    def __init__(self, now_ns: int, cast: bytes = b"toy") -> None:
        self.counts: Counter[str] = Counter()
        self.seen: list[HostInput] = []
        self.times: list[int] = []
        self._cast = cast
        self._deadline_ns = now_ns
        self._position = 0
        self._waiting: dict[int, Arrived] = {}

    def deadline(self) -> int | None:
        return self._deadline_ns

    def gauges(self) -> dict[str, float]:
        return {"toy_waiting": len(self._waiting)}

    def step(self, now_ns: int, event: HostInput) -> list[HostEffect]:
        self.counts[type(event).__name__] += 1
        self.times.append(now_ns)
        if not isinstance(event, Woken | Drained):
            self.seen.append(event)
        match event:
            case Knocked():
                return [Admit(event.request, "toy")]
            case Woken():
                self._deadline_ns = now_ns + 10_000_000
                return [Cast(self._cast)]
            case Arrived(frame=b"halt"):
                return [Halt("a toy was told to halt")]
            case Arrived(frame=b"remove"):
                return [Halt("a toy was removed", removed=True)]
            case Arrived(frame=b"break"):
                raise RuntimeError("a toy broke")
            case Arrived():
                return self._write(event)
            case Persisted():
                written = self._waiting.pop(event.ticket)
                return [Send(written.channel, b"ok " + written.frame)]
            case Heard():
                return [Report("heard", event.address, {"size": len(event.datagram)})]
            case Stopping():
                return [Report("good-bye")]
            case _:
                return []

    def _write(self, event: Arrived) -> list[HostEffect]:
        ticket = self._position
        self._waiting[ticket] = event
        write = WriteAt("log", self._position, event.frame)
        self._position += len(event.frame)
        return [Persist(ticket, (write,))]
