"""The sequence for threads and for asyncio: `SequenceStream` and `AsyncSequenceStream`, made of the same calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Protocol, TypeVar

from chaplain.client.api import sequence_calls
from chaplain.client.api.calls import PreparedCall
from chaplain.client.api.sequence_calls import SequenceEvent, SequenceReader

T = TypeVar("T")


class SequenceClientContext(Protocol):
    def run(self, ask: PreparedCall[T]) -> T: ...


class AsyncSequenceClientContext(Protocol):
    async def run(self, ask: PreparedCall[T]) -> T: ...


class SequenceStream:
    """A stream of the sequence: one agreed, gapless numbering, in the memories of a majority."""

    def __init__(self, line: SequenceClientContext, stream: str) -> None:
        self.stream = sequence_calls.check_stream(stream)
        self._line = line

    def __repr__(self) -> str:
        return f"SequenceStream({self.stream!r})"

    def publish(self, value: bytes) -> int:
        """Publish one event; its number, once a majority of the work set holds it and everything before it."""
        return self.publish_many([value])

    def publish_many(self, values: Iterable[bytes]) -> int:
        """Publish events under consecutive numbers, all of them or none; the number of the first."""
        return self._line.run(sequence_calls.publish(self.stream, sequence_calls.check_values(values)))

    def read(
        self, start: int | None = None, stop: int | None = None, follow: bool = False, timeout: float | None = None
    ) -> Iterator[SequenceEvent]:
        """Events from number `start`, or the oldest the node remembers, up to `stop`, without it, or the head now.

        With `follow`, whatever comes; with `timeout`, until nothing came for so many seconds.
        """
        reading = SequenceReader(self.stream, start, stop, follow, timeout)
        return self._pages(reading)

    def _pages(self, reading: SequenceReader) -> Iterator[SequenceEvent]:
        while not reading.ended:
            yield from reading.take(self._line.run(reading.ask()))


class AsyncSequenceStream:
    """A stream of the sequence, awaited."""

    def __init__(self, line: AsyncSequenceClientContext, stream: str) -> None:
        self.stream = sequence_calls.check_stream(stream)
        self._line = line

    def __repr__(self) -> str:
        return f"AsyncSequenceStream({self.stream!r})"

    async def publish(self, value: bytes) -> int:
        """Publish one event; its number, once a majority of the work set holds it and everything before it."""
        return await self.publish_many([value])

    async def publish_many(self, values: Iterable[bytes]) -> int:
        """Publish events under consecutive numbers, all of them or none; the number of the first."""
        return await self._line.run(sequence_calls.publish(self.stream, sequence_calls.check_values(values)))

    def read(
        self, start: int | None = None, stop: int | None = None, follow: bool = False, timeout: float | None = None
    ) -> AsyncIterator[SequenceEvent]:
        """Events, as `SequenceStream.read` gives them."""
        return self._pages(SequenceReader(self.stream, start, stop, follow, timeout))

    async def _pages(self, reading: SequenceReader) -> AsyncIterator[SequenceEvent]:
        while not reading.ended:
            for event in reading.take(await self._line.run(reading.ask())):
                yield event
