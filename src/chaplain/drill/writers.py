"""Clients at work during a drill: each writes numbered values of its own and notes what became of them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from chaplain.client.connect.options import Secret
from chaplain.client.sync import Client
from chaplain.client.types.journal import Message
from chaplain.config import endpoints_of, load_cluster
from chaplain.drill.history import Attempt
from chaplain.errors import ChaplainError, Unknown

BATCH = 20
PATIENCE_S = 60.0


class DrillWriter(threading.Thread):
    """Writes until told to stop; even ones message by message, odd ones through `writer()`."""

    def __init__(
        self,
        directory: Path,
        stream: str,
        number: int,
        timeout_s: float = 10.0,
        *,
        identity: Secret | None = None,
        pace_s: float = 0.0,
    ) -> None:
        super().__init__(daemon=True, name=f"drill writer {number}")
        self.number = number
        self.attempts: list[Attempt] = []
        self.failure: BaseException | None = None
        self._directory = directory
        self._stream = stream
        self._timeout_s = timeout_s
        self._identity = identity
        self._pace_s = pace_s
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            endpoints = [*endpoints_of(load_cluster(self._directory).nodes)]
            turn = self.number % len(endpoints)
            rotated = endpoints[turn:] + endpoints[:turn]
            where = Client.connect(self._directory, endpoints=rotated, identity=self._identity, timeout=self._timeout_s)
            with where as client:
                while not self._stopped.is_set():
                    self._many(client) if self.number % 2 else self._one(client)
                    self._stopped.wait(self._pace_s)
        except BaseException as error:  # told by whoever ends the thread
            self.failure = error

    def stop(self) -> None:
        self._stopped.set()

    def end(self) -> list[Attempt]:
        self.stop()
        self.join(PATIENCE_S)
        if self.is_alive() or self.failure is not None:
            raise ChaplainError(f"a writer of the drill did not end well: {self.failure or 'it hangs'}")
        return self.attempts

    def acked_since(self, since_s: float) -> int:
        """How many writes that began after this moment are acknowledged."""
        count = 0
        for attempt in reversed(self.attempts.copy()):
            if attempt.invoked_s < since_s:
                break
            count += attempt.offset is not None
        return count

    def _attempt(self) -> Attempt:
        made = Attempt(b"%d:%d" % (self.number, len(self.attempts)), time.monotonic())
        self.attempts.append(made)
        return made

    def _one(self, client: Client) -> None:
        made = self._attempt()
        try:
            receipt = client.journal(self._stream).write(made.value)
        except Unknown:
            return
        except ChaplainError as error:
            made.refused = str(error)
            return
        made.offset, made.index, made.hash = receipt.offset, receipt.index, receipt.hash
        made.acked_s = time.monotonic()

    def _many(self, client: Client) -> None:
        writer = client.journal(self._stream).writer(receipts=True)
        batch = []
        try:
            with writer:
                for _ in range(BATCH):
                    batch.append(self._attempt())
                    writer.write(batch[-1].value)
        except ChaplainError:
            pass  # those without a receipt are unknown
        now_s = time.monotonic()
        for made, receipt in zip(batch, writer.take_receipts(), strict=False):
            made.offset, made.index, made.hash, made.acked_s = receipt.offset, receipt.index, receipt.hash, now_s


def read_all(directory: Path, node: int, stream: str) -> list[Message]:
    """What one node has of the stream."""
    with Client.connect(directory, node=node, timeout=PATIENCE_S) as client:
        return list(client.journal(stream).read())
