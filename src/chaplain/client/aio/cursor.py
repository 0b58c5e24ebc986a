"""The file cursor of a client: begins at the first retained message of its stream."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from chaplain.client.aio.connection import AsyncClientContext
from chaplain.client.api import journal_calls, offset_file
from chaplain.client.types.journal import StreamRecord


class AsyncCursor(offset_file.Cursor):
    """A consumer's stored position. Use it in an `async with` statement; `offset` is the next offset to read.

    A new one begins at the first retained message.
    """

    def __init__(self, context: AsyncClientContext, file: str | Path, stream: str) -> None:
        super().__init__(file, context.cluster, stream)
        self._context = context
        self._stream = stream

    async def __aenter__(self) -> Self:
        if self.fresh:
            found = await find_stream(self._context, self._stream)
            self.offset = max(self.offset, found.first_offset if found is not None else 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


async def find_stream(context: AsyncClientContext, stream: str) -> StreamRecord | None:
    """The record of a stream; None if it does not exist, or if the client may not read it."""
    after = ""
    while True:
        page = await context.run(journal_calls.streams(after))
        for found in page.streams:
            if found.stream == stream:
                return found
        if not page.after or page.after >= stream:
            return None
        after = page.after
