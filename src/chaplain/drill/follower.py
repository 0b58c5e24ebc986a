"""Somebody who reads a sequence as it is written, at whichever node serves it.

A node that was restarted joins a sequence at its present number. So once every node was, nobody but a reader who was
there has what came before.
"""

from __future__ import annotations

import threading
import time

from chaplain.client.api.sequence_calls import SequenceEvent
from chaplain.drill.cluster import AGAIN_S, PATIENCE_S, Access
from chaplain.errors import ChaplainError

POLL_S = 0.05


class DrillFollower(threading.Thread):
    def __init__(self, access: Access) -> None:
        super().__init__(daemon=True, name="follower of the sequence")
        self.events: list[SequenceEvent] = []
        """In a row, of one history: if it ends, or the reader falls behind, it begins anew."""
        self.failure: BaseException | None = None
        self._access = access
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._follow()
                self._stopped.wait(AGAIN_S)
        except BaseException as error:  # told by whoever ends the thread
            self.failure = error

    def _follow(self) -> None:
        try:
            with self._access.connect(timeout_s=PATIENCE_S) as client:
                self.events = []
                for event in client.sequence(self._access.stream).read(follow=True):
                    self.events.append(event)
                    if self._stopped.is_set():
                        return
        except ChaplainError:
            pass  # its history is over, or no node has what comes next

    def end(self, number: int) -> list[SequenceEvent]:
        """What it has, when it has read so far or does not get there. A reader that waits for more is left behind."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s and (not self.events or self.events[-1].number < number):
            time.sleep(POLL_S)
        self._stopped.set()
        if self.failure is not None:
            raise ChaplainError(f"{self.name} did not end well: {self.failure}")
        return self.events.copy()
