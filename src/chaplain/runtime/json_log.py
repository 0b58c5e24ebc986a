"""Structured logging: one JSON object a line, at most `LINES_PER_SECOND_MAX` lines of each event a second.

The next line of an event reports in `left_out` how many lines the limit suppressed. Log lines contain no secrets,
because `Report` effects contain none.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TextIO

LINES_PER_SECOND_MAX = 20
EVENTS_MAX = 1024
"""Events whose rate is remembered. One more clears the table, and with it the counts of suppressed lines."""


class JsonLog:
    """The log of one node. Any thread may write to it; lines do not interleave, because each line is one write."""

    def __init__(
        self,
        node: str,
        stream: TextIO | None = None,
        lines_per_second_max: int = LINES_PER_SECOND_MAX,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._stream = sys.stderr if stream is None else stream
        self._lines_per_second_max = lines_per_second_max
        self._monotonic_s = monotonic_s
        self._spent: dict[str, tuple[int, int, int]] = {}
        """By event: the current second, lines written in that second, lines suppressed since the last written one."""

    def write(
        self, event: str, detail: Mapping[str, object] = MappingProxyType({}), *, level: str = "info", peer: str = ""
    ) -> None:
        left_out = self._admit(event)
        if left_out is None:
            return
        line: dict[str, object] = {"time": _now(), "level": level, "node": self._node, "event": event}
        if peer:
            line["peer"] = peer
        for name, value in detail.items():
            line.setdefault(name, value)
        if left_out:
            line["left_out"] = left_out
        self._put(json.dumps(line, default=str) + "\n")

    def _put(self, line: str) -> None:
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError):
            return  # a node keeps running when its log cannot be written

    def _admit(self, event: str) -> int | None:
        """Return how many lines of this event were suppressed before this one; None if this one is suppressed, too."""
        if len(self._spent) >= EVENTS_MAX and event not in self._spent:
            self._spent.clear()
        second, written, left_out = self._spent.get(event, (-1, 0, 0))
        now = int(self._monotonic_s())
        if now != second:
            second, written = now, 0
        if written >= self._lines_per_second_max:
            self._spent[event] = (second, written, left_out + 1)
            return None
        self._spent[event] = (second, written + 1, 0)
        return left_out


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
