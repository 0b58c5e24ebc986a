"""Sinks for the journal: one for a writer's chunks, one for a reader. They depend on neither threads nor event
loops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from chaplain.client.io.call_registry import error_of
from chaplain.client.protocol.call_events import Raised
from chaplain.client.protocol.events import Outcome
from chaplain.client.protocol.journal.events import ReadChunk, WritesAcknowledged
from chaplain.client.types.receipts import ReceiptPlace


class ChunkSink:
    """Receives the receipt of one chunk of a writer."""

    def __init__(
        self, size_bytes: int, written: Callable[[int, ReceiptPlace], None], failed: Callable[[BaseException], None]
    ) -> None:
        self._size_bytes = size_bytes
        self._written = written
        self._failed = failed

    def on_outcome(self, outcome: Outcome) -> None:
        if isinstance(outcome, WritesAcknowledged):
            self._written(self._size_bytes, outcome.place)
        elif isinstance(outcome, Raised):
            self.fail(error_of(outcome))

    def fail(self, error: BaseException) -> None:
        self._failed(error)


class ReadSink:
    """Buffers the chunks of one read until the reader takes them.

    Flow control bounds the buffer: nodes send more only for bytes that were taken.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self.chunks: deque[ReadChunk] = deque()
        self.ended = False
        self.error: BaseException | None = None

    def on_outcome(self, outcome: Outcome) -> None:
        if isinstance(outcome, ReadChunk):
            self.chunks.append(outcome)
        elif isinstance(outcome, Raised):
            self.error = error_of(outcome)
        else:
            self.ended = True
        self._notify()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._notify()
