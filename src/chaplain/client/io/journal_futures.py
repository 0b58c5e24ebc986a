"""Who waits for the journal: a writer for its receipts, a reader for its portions. Neither knows threads or loops."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from chaplain.client.io.call_registry import FutureLike, Sink, error_of
from chaplain.client.protocol.call_events import Raised
from chaplain.client.protocol.events import Outcome
from chaplain.client.protocol.journal.events import ReadChunk, WritesAcknowledged
from chaplain.client.types.receipts import ReceiptPlace


class _Nobody:
    """Stands where a future would."""

    def done(self) -> bool:
        return True

    def set_result(self, result: object, /) -> None:
        raise AssertionError("nobody waits")

    def set_exception(self, exception: BaseException, /) -> None:
        raise AssertionError("nobody waits")


NOBODY: FutureLike = _Nobody()


class ChunkSink(Sink):
    """Waits for the receipt of one chunk of a writer."""

    def __init__(
        self, size_bytes: int, written: Callable[[int, ReceiptPlace], None], failed: Callable[[BaseException], None]
    ) -> None:
        super().__init__(NOBODY)
        self._size_bytes = size_bytes
        self._written = written
        self._failed = failed

    def take(self, outcome: Outcome) -> None:
        if isinstance(outcome, WritesAcknowledged):
            self._written(self._size_bytes, outcome.place)
        elif isinstance(outcome, Raised):
            self.fail(error_of(outcome))

    def fail(self, error: BaseException) -> None:
        self._failed(error)


class PortionSink(Sink):
    """Keeps the portions of one read until somebody takes them. How many come is bounded by what was taken."""

    def __init__(self, knock: Callable[[], None]) -> None:
        super().__init__(NOBODY)
        self._knock = knock
        self.portions: deque[ReadChunk] = deque()
        self.ended = False
        self.error: BaseException | None = None

    def take(self, outcome: Outcome) -> None:
        if isinstance(outcome, ReadChunk):
            self.portions.append(outcome)
        elif isinstance(outcome, Raised):
            self.error = error_of(outcome)
        else:
            self.ended = True
        self._knock()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._knock()
