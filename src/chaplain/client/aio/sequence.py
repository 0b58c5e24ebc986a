"""The sequence: `AsyncSequenceStream`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from chaplain.client.aio.connection import AsyncClientContext
from chaplain.client.api import sequence_calls
from chaplain.client.api.sequence_calls import Published, SequenceEvent, SequenceReader


class AsyncSequenceStream:
    """A stream of the sequence: events with agreed, gapless numbers, held in the memory of a majority."""

    def __init__(self, context: AsyncClientContext, stream: str) -> None:
        self.stream = sequence_calls.check_stream(stream)
        self._context = context

    def __repr__(self) -> str:
        return f"AsyncSequenceStream({self.stream!r})"

    async def publish(self, value: bytes) -> Published:
        """Publish one event. Returns its number and hash once a majority of the work set has it and all events before
        it.
        """
        return await self.publish_many([value])

    async def publish_many(self, values: Iterable[bytes]) -> Published:
        """Publish events with consecutive numbers, all of them or none. Returns the number and hash of the first."""
        return await self._context.run(sequence_calls.publish(self.stream, sequence_calls.check_values(values)))

    def read(
        self,
        start: int | None = None,
        stop: int | None = None,
        follow: bool = False,
        timeout: float | None = None,
        *,
        verify: bool | Published = False,
        fresh: bool = False,
    ) -> AsyncIterator[SequenceEvent]:
        """Iterate over events from number `start` up to, but excluding, `stop`.

        Without `start`, it begins with the oldest event that the node remembers. Without `stop`, it ends at the head
        that the stream had when the read began; with `follow`, it continues with new events, until `timeout` seconds
        pass without one. Raises `Missing` if an event is no longer available.

        With `verify`, the reader recomputes the stream's hash chain and raises `Unproven` at the first event that does
        not continue it. With `verify=published`, it also raises `Unproven` if the event of that number is not the
        published one. With `fresh`, it contains everything that was published before the read began, at any node; a
        node without a majority then refuses.
        """
        return self._pages(SequenceReader(self.stream, start, stop, follow, timeout, verify=verify, fresh=fresh))

    async def _pages(self, reading: SequenceReader) -> AsyncIterator[SequenceEvent]:
        while not reading.ended:
            for event in reading.take(await self._context.run(reading.next_request())):
                yield event
