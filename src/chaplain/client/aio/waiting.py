"""Waits for state that the engine changes, in an event loop. Keep it in step with `chaplain.client.sync.waiting`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import RLock
from typing import TypeVar

T = TypeVar("T")


class AsyncNotifier:
    """Lets tasks wait until the engine has changed something."""

    def __init__(self) -> None:
        self.lock = RLock()
        """For state that threads would share. Never contended in a loop, and cheaper than a lock that does nothing."""
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Make every waiting task check its condition again."""
        self._changed.set()

    async def wait_for(self, take: Callable[[], T | None], timeout_s: float | None) -> T | None:
        """Return the result of `take` as soon as it is not None, or None after `timeout_s` seconds."""
        if (taken := take()) is not None:
            return taken
        try:
            async with asyncio.timeout(timeout_s) as limit:
                while True:
                    self._changed.clear()
                    if (taken := take()) is not None:
                        return taken
                    await self._changed.wait()
        except TimeoutError:
            if not limit.expired():  # `take` raised it
                raise
            return None


def begin(first_wait: Callable[[], object]) -> None:
    """Do nothing: `first_wait` would have to be awaited. A listener or writer awaits it at its first use."""
