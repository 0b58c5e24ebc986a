"""The load on a pool: at each node a client that broadcasts numbers, and one that listens."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from chaplain.client.sync import Client
from chaplain.drill.cluster import PATIENCE_S, Access
from chaplain.drill.load import Blow, Worker
from chaplain.drill.pool_history import PoolHeard, judge_pool
from chaplain.drill.violations import POOL, BrokenPromise, Judged, shown

LISTEN_S = 0.2
POLL_S = 0.05
NOTICE_S = 1.0
"""Before a blow: what was said then may still have been on its way."""


class Speaker(Worker):
    def __init__(self, access: Access, node: int) -> None:
        super().__init__(access, node, f"pool speaker at node {node}")
        self.invoked_s: list[float] = []
        self.acked_s: list[float] = []

    def turn(self, client: Client) -> None:
        self.acked_s.append(0.0)
        self.invoked_s.append(time.monotonic())
        number = len(self.invoked_s) - 1
        client.pool(self.access.stream).broadcast(b"%d:%d" % (self.node, number))
        self.acked_s[number] = time.monotonic()


class PoolListener(Worker):
    def __init__(self, access: Access, node: int) -> None:
        super().__init__(access, node, f"pool listener at node {node}")
        self.notes: list[PoolHeard] = []
        self.foreign: list[bytes] = []
        self._last: dict[int, int] = {}
        self._away = False

    def begin(self, client: Client) -> None:
        self._away = bool(self.notes)

    def turn(self, client: Client) -> None:
        for message in client.pool(self.access.stream).listen(timeout=LISTEN_S):
            told = message.missed > 0 or message.moved or self._away
            self._away = False
            self._note(message.value, told)
            if self.stopped.is_set():
                return

    def _note(self, value: bytes, told: bool) -> None:
        speaker, _, number = value.partition(b":")
        if not speaker.isdigit() or not number.isdigit():
            self.foreign.append(value)
            return
        self.notes.append(PoolHeard(int(speaker), int(number), told))
        self._last[int(speaker)] = int(number)

    def last_of(self, speaker: int) -> int:
        return self._last.get(speaker, -1)


class PoolLoad:
    of = POOL

    def __init__(self, access: Access) -> None:
        self._speakers = [Speaker(access, node.id) for node in access.nodes]
        self._ears = [PoolListener(access, node.id) for node in access.nodes]

    def start(self) -> None:
        for worker in (*self._ears, *self._speakers):
            worker.start()

    def acked_since(self, since_s: float) -> int:
        return len(self._acked(since_s))

    def first_acked(self, since_s: float) -> float | None:
        return min(self._acked(since_s), default=None)

    def _acked(self, since_s: float) -> list[float]:
        pairs = [pair for one in self._speakers for pair in zip(one.invoked_s.copy(), one.acked_s.copy(), strict=False)]
        return [acked_s for invoked_s, acked_s in pairs if acked_s and invoked_s >= since_s]

    def missing(self, since_s: float, statuses: Sequence[Mapping[str, object]]) -> str:
        """Everybody has heard everybody since."""
        for ear in self._ears:
            for speaker in self._speakers:
                number = ear.last_of(speaker.node)
                if number < 0 or speaker.invoked_s[number] < since_s:
                    return f"the listener at node {ear.node} hears nothing of node {speaker.node}"
        return ""

    def end(self) -> None:
        for worker in self._speakers:
            worker.stopped.set()
        for worker in self._speakers:
            worker.end()
        self._wait_for_the_last()
        for ear in self._ears:
            ear.stopped.set()
        for ear in self._ears:
            ear.end()

    def _wait_for_the_last(self) -> None:
        """What was said in the end is heard, or lost, and then that is counted."""
        lasts = {
            speaker.node: max((at for at, acked_s in enumerate(speaker.acked_s) if acked_s), default=-1)
            for speaker in self._speakers
        }
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            if all(ear.last_of(node) >= last for ear in self._ears for node, last in lasts.items()):
                return
            time.sleep(POLL_S)

    def judge(self, blows: Sequence[Blow]) -> Judged:
        said = {speaker.node: speaker.acked_s for speaker in self._speakers}
        notes = {ear.node: ear.notes for ear in self._ears}
        spans = [(blow.from_s - NOTICE_S, blow.to_s) for blow in blows]
        breaks, losses = judge_pool(said, notes, spans)
        strange = [value for ear in self._ears for value in ear.foreign]
        breaks += [BrokenPromise("foreign", None, f"nobody said {shown(value)}", POOL) for value in strange]
        acknowledged = sum(acked_s > 0 for times in said.values() for acked_s in times)
        unknown = sum(map(len, said.values())) - acknowledged
        told = sum(note.told for heard in notes.values() for note in heard)
        return Judged(self.of, acknowledged, unknown, 0, tuple(breaks), (), losses.lost, told, losses.untold)
