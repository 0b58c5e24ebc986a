"""Waits for state that the engine changes, in an event loop. Keep it in step with `chaplain.client.sync.waiting`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import RLock
from typing import TypeVar
from weakref import WeakMethod

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


class AsyncTicker:
    """Calls a method of its owner again and again, in a task. It ends with its owner, even if nobody closes it.

    The method returns the seconds until the next call, or None to end. It must not raise.
    """

    def __init__(self, act: Callable[[], Awaitable[float | None]]) -> None:
        self._woken = asyncio.Event()
        self._task = asyncio.create_task(_tick(WeakMethod(act), self._woken))

    def wake(self) -> None:
        """Call the method soon."""
        self._woken.set()

    async def close(self) -> None:
        """End. The method is not running when this returns."""
        self._task.cancel()
        await asyncio.wait([self._task])


async def _tick(method: WeakMethod[Callable[[], Awaitable[float | None]]], woken: asyncio.Event) -> None:
    while (act := method()) is not None:
        woken.clear()
        wait_s = await act()
        if wait_s is None:
            return
        del act  # the owner may be collected during the wait
        with suppress(TimeoutError):
            await asyncio.wait_for(woken.wait(), wait_s)


def begin(first_wait: Callable[[], object]) -> None:
    """Do nothing: `first_wait` would have to be awaited. A listener or writer awaits it at its first use."""
