"""A call registry that belongs to one event loop, as its client does.

In another loop no coroutine would be woken, and two threads would use the sockets at once. A call from there raises
`Closed` before anything else happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from chaplain.client.io.call_registry import CallRegistry
from chaplain.client.io.lifecycle import LOOP_ENDED, OTHER_LOOP
from chaplain.client.protocol.events import ClientInput
from chaplain.errors import Closed


class AsyncioCallRegistry(CallRegistry):
    """A call registry that only its own event loop may use."""

    def __init__(self, submit: Callable[[ClientInput], None], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(submit)
        self._loop = loop

    def check_usable(self) -> None:
        super().check_usable()
        if self._loop.is_closed():
            raise Closed(LOOP_ENDED)
        with suppress(RuntimeError):  # no loop runs in this thread: the call waits until the client's loop runs
            if asyncio.get_running_loop() is not self._loop:
                raise Closed(OTHER_LOOP)
