"""Records delivered events in a log that Spark can read. The record is local, and nothing waits for it.

A row's `client_message_id` is the event's number, its key the publisher. A record contains one run. Its header has the
stream's hash before and after the run, so a verification finds a record that was changed later. While more than 16 MiB
wait for the disk, further events are left out and their count is reported; gaps in the numbers show where.
"""

from __future__ import annotations

from chaplain.core import Operation, Persist, Report
from chaplain.segment.tap import StreamKind, Tap
from chaplain.sequence.events import Delivered
from chaplain.sequence.messages.entry import run_hash

EVERYTHING = "*"
_WAITING_BYTES_MAX = 16 << 20


class SequenceRecorder:
    def __init__(self, tap: Tap, streams: tuple[str, ...]) -> None:
        self._tap = tap
        self._streams = streams
        self._waiting: list[Delivered] = []
        self._bytes = 0
        self._ticket = 0
        self._writing = 0
        """While a write is in flight: the log position after it; else 0."""
        self._left_out = 0
        """Events left out since the last report."""

    def add(self, delivered: Delivered) -> None:
        if EVERYTHING not in self._streams and delivered.run.stream not in self._streams:
            return
        size = delivered.run.end - delivered.run.at
        if self._bytes + size > _WAITING_BYTES_MAX:
            self._left_out += len(delivered.run.lengths)
            return
        self._waiting.append(delivered)
        self._bytes += size

    def drained(self, now_ns: int) -> list[Persist | Report]:
        return [] if self._writing else self._write(now_ns)

    def persisted(self, now_ns: int) -> list[Persist | Report]:
        self._tap.synced(self._writing)
        self._writing = 0
        return self._write(now_ns)

    def _write(self, now_ns: int) -> list[Persist | Report]:
        if not self._waiting:
            return []
        operations: list[Operation] = []
        for delivered in self._waiting:
            run = delivered.run
            keys = (run.publisher.encode(),) * len(run.lengths)
            values = tuple(run.values())
            operations += self._tap.write(
                StreamKind.SEQUENCE,
                run.stream,
                values,
                now_ns,
                keys=keys,
                first_id=delivered.first,
                hashes=(delivered.before, run_hash(delivered.before, delivered.first, run)),
            )
        self._waiting, self._bytes = [], 0
        self._writing = self._tap.written
        self._ticket += 1
        count, self._left_out = self._left_out, 0
        reports = [Report("events not recorded", detail={"count": count})] if count else []
        return [Persist(self._ticket, tuple(operations)), *reports]
