"""A board that belongs to one event loop, as its client does.

In another loop nobody would be woken, and two threads would use the sockets at once: whoever wants something there is
told before anything happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from chaplain.client.io.call_registry import CallRegistry
from chaplain.client.io.lifecycle import LOOP_ENDED, OTHER_LOOP
from chaplain.client.protocol.events import ClientInput
from chaplain.errors import Closed


class LoopBoard(CallRegistry):
    def __init__(self, submit: Callable[[ClientInput], None], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(submit)
        self._loop = loop

    def check(self) -> None:
        super().check()
        if self._loop.is_closed():
            raise Closed(LOOP_ENDED)
        with suppress(RuntimeError):  # none runs here: what is handed over waits until its own does
            if asyncio.get_running_loop() is not self._loop:
                raise Closed(OTHER_LOOP)
