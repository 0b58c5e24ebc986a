"""Broadcasts through a pool of a real cluster, numbered, so that what is lost, doubled or out of order shows.

A speaker broadcasts `name:number` at a steady rate. An ear writes down everything it hears. `Ear.faults` are the
promises of a pool: from each speaker the numbers only go up, and where one is left out the listener was told, by
`missed` or `moved`, between the message before the hole and the one after it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from chaplain import Client, PoolMessage
from tests.support.process_cluster import PATIENCE_S, until

POOL = "traffic"
READY = 0
"""What a speaker says, again and again, until every ear has heard it."""


class Worker:
    """A thread that runs until told to stop and keeps what it failed of."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def check(self) -> None:
        if self.failure is not None:
            raise AssertionError(f"{self}: {self.failure}") from self.failure

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.turn()
        except BaseException as error:
            self.failure = error

    def turn(self) -> None:
        raise NotImplementedError


class Speaker(Worker):
    def __init__(self, client: Client, name: str, per_second: float, size_bytes: int = 0) -> None:
        super().__init__()
        self.name = name
        self.acked_s: list[float] = []
        """When broadcast number i + 1 was acknowledged, as the logs count time."""
        self._pool = client.pool(POOL)
        self._pause_s = 1 / per_second
        self._padding = bytes(size_bytes)

    def __repr__(self) -> str:
        return f"speaker {self.name}"

    @property
    def sent(self) -> int:
        return len(self.acked_s)

    def say(self, number: int) -> None:
        self._pool.broadcast(b"%s:%d:" % (self.name.encode(), number) + self._padding)

    def turn(self) -> None:
        self.say(self.sent + 1)
        self.acked_s.append(time.time())
        self._stop.wait(self._pause_s)


class Note(NamedTuple):
    speaker: str
    number: int
    told: bool
    """The listener was told of a loss before this one."""
    missed: int


class Ear(Worker):
    def __init__(self, client: Client, name: str) -> None:
        super().__init__()
        self.name = name
        self.notes: list[Note] = []
        self._pool = client.pool(POOL)
        self._pool.join()

    def __repr__(self) -> str:
        return f"ear {self.name}"

    def turn(self) -> None:
        for message in self._pool.listen(timeout=0.2):
            self.notes.append(_note(message))
            if self._stop.is_set():
                return

    def heard(self, speaker: str) -> list[int]:
        return [note.number for note in list(self.notes) if note.speaker == speaker and note.number != READY]

    def was_greeted_by(self, speaker: str) -> bool:
        return any(note.speaker == speaker for note in list(self.notes))

    @property
    def told(self) -> int:
        """How often it was told of a loss."""
        return sum(note.told for note in list(self.notes))

    def faults(self, speakers: Sequence[str]) -> list[str]:
        """What breaks a pool's promises; holes that were told of do not."""
        found = []
        for speaker in speakers:
            last, told = None, False
            for note in list(self.notes):
                told = told or note.told
                if note.speaker != speaker or note.number == READY:
                    continue
                if last is not None and note.number <= last:
                    found.append(f"{self}: {speaker}:{note.number} after {last}")
                if last is not None and note.number > last + 1 and not told:
                    found.append(f"{self}: {speaker}:{last + 1} to {note.number - 1} lost in silence")
                last, told = note.number, False
        return found


def _note(message: PoolMessage) -> Note:
    speaker, number, _ = message.value.split(b":", 2)
    return Note(speaker.decode(), int(number), message.moved or message.missed > 0, message.missed)


@contextlib.contextmanager
def talking(
    directory: Path,
    *,
    speakers: Sequence[int],
    ears: Sequence[int],
    per_second: float,
    size_bytes: int = 0,
) -> Iterator[tuple[list[Speaker], list[Ear]]]:
    """Clients at these nodes, all of whom have heard each other once. Whoever failed fails the test at the end."""
    with contextlib.ExitStack() as stack:

        def connect(node: int) -> Client:
            return stack.enter_context(Client.connect(directory, node=node, timeout=30))

        mouths = [Speaker(connect(node), f"s{i}at{node}", per_second, size_bytes) for i, node in enumerate(speakers)]
        listeners = [Ear(connect(node), f"at{node}") for node in ears]
        for ear in listeners:
            ear.start()
            stack.callback(ear.stop)
        until(lambda: _all_greeted(mouths, listeners), "every listener hears every speaker")
        for mouth in mouths:
            mouth.start()
            stack.callback(mouth.stop)
        yield mouths, listeners
        for mouth in mouths:
            mouth.stop()
        for worker in (*mouths, *listeners):
            worker.check()


def _all_greeted(mouths: Sequence[Speaker], listeners: Sequence[Ear]) -> bool:
    waiting = [mouth for mouth in mouths if not all(ear.was_greeted_by(mouth.name) for ear in listeners)]
    for mouth in waiting:
        mouth.say(READY)
    return not waiting


def wait_to_hear(ear: Ear, mouths: list[Speaker], more: int = 10) -> None:
    """Until it has heard what each speaker has said by now, and so many beyond that."""
    marks = {mouth.name: mouth.sent + more for mouth in mouths}
    until(
        lambda: all(number >= marks[mouth.name] for mouth in mouths for number in ear.heard(mouth.name)[-1:] or [-1]),
        f"{ear} goes on to hear",
    )
