"""What real nodes do to a sequence, and what publishers and readers must see of it."""

from __future__ import annotations

import contextlib
import json
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chaplain import Client
from chaplain.client.api.sequence_calls import SequenceEvent
from chaplain.config import NODE_FILE
from chaplain.errors import ChaplainError, Unknown
from chaplain.runtime.cluster.probe import get_status
from tests.support.process_cluster import PATIENCE_S, Cluster, Node, founded, promised, until

STREAM = "ticks"
PUBLISHERS = (1, 2, 3)
MEDIAN_S = 1.0
"""Promised: how long publishing stands still, in the median, after the holder of the lock was killed."""


def sequence_of(node: Node) -> dict:
    if node.process is None:
        return {}
    with node.inside():
        found = (get_status(node.http) or {}).get("sequence", {})
    assert isinstance(found, dict)
    return found


def wait_until_working(cluster: Cluster, *numbers: int) -> str:
    """All of these in one work set that is theirs alone; the name of its history."""
    wanted = sorted(numbers or cluster.nodes)
    histories: set[str] = set()

    def work() -> bool:
        seen = [sequence_of(cluster[number]) for number in wanted]
        histories.clear()
        histories.update(str(one.get("history")) for one in seen)
        facts = all(one.get("state") == "WRK" and sorted(one["work_set"]) == wanted for one in seen)
        return facts and len(histories) == 1

    until(work, f"nodes {wanted} work together")
    return histories.pop()


def wait_until_same(cluster: Cluster) -> None:
    def same() -> bool:
        facts = {(one.get("number"), one.get("hash")) for one in map(sequence_of, cluster)}
        return len(facts) == 1 and (None, None) not in facts

    until(same, "every node has decided the same")


@contextlib.contextmanager
def working(directory: Path, count: int, settings: str = "") -> Iterator[Cluster]:
    with founded(directory, count, settings=settings) as cluster:
        cluster.start()
        until(lambda: all(node.ready() for node in cluster), "every node serves", limit_s=2 * PATIENCE_S)
        wait_until_working(cluster)
        yield cluster


def five(directory: Path, settings: str = "") -> contextlib.AbstractContextManager[Cluster]:
    return working(directory, 5, settings)


@dataclass
class Attempt:
    value: bytes
    invoked_s: float
    acked_s: float = 0.0
    number: int = 0


class Publisher(threading.Thread):
    """Publishes at one node, one event after the other, and comes back when the node does."""

    def __init__(self, directory: Path, node: int) -> None:
        super().__init__(daemon=True)
        self.node = node
        self.attempts: list[Attempt] = []
        self.failure: BaseException | None = None
        self._directory = directory
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                with contextlib.suppress(ChaplainError):
                    self._publish()
        except BaseException as error:
            self.failure = error

    def _publish(self) -> None:
        with Client.connect(self._directory, node=self.node, timeout=3.0) as client:
            while not self._stopped.is_set():
                made = Attempt(b"%d:%d" % (self.node, len(self.attempts)), time.monotonic())
                self.attempts.append(made)
                made.number = client.sequence(STREAM).publish(made.value)
                made.acked_s = time.monotonic()

    def end(self) -> list[Attempt]:
        self._stopped.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), f"publisher {self.node} does not end"
        assert self.failure is None, f"publisher {self.node}: {self.failure!r}"
        return self.attempts


class Follower(threading.Thread):
    """Reads everything from the first event on, at whichever node serves it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self.events: list[SequenceEvent] = []
        self.failure: BaseException | None = None
        self._directory = directory
        self._last = 0

    def run(self) -> None:
        try:
            with Client.connect(self._directory, timeout=PATIENCE_S) as client:
                for event in client.sequence(STREAM).read(start=1, follow=True):
                    self.events.append(event)
                    if self._last and event.number >= self._last:
                        return
        except BaseException as error:
            self.failure = error

    def end(self, last: int) -> list[SequenceEvent]:
        """Everything up to this number; one more is published to wake the reader if it has read it already."""
        self._last = last
        with Client.connect(self._directory, timeout=PATIENCE_S) as client:
            client.sequence(STREAM).publish(b"end")
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the follower does not end"
        assert self.failure is None, f"the follower: {self.failure!r}"
        return self.events


class Load:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.follower = Follower(cluster.directory)
        self.publishers = [Publisher(cluster.directory, number) for number in PUBLISHERS]
        self.follower.start()
        for publisher in self.publishers:
            publisher.start()
        self.await_progress()

    def first_acked(self, since_s: float) -> float | None:
        """When the first publish that began after a moment was acknowledged."""
        acked = [one.acked_s for p in self.publishers for one in list(p.attempts) if one.invoked_s >= since_s]
        return min((when for when in acked if when), default=None)

    def await_progress(self) -> float:
        """From now until something that is published now has its number."""
        since_s = time.monotonic()
        until(lambda: self.first_acked(since_s) is not None, "something new is acknowledged")
        return (self.first_acked(since_s) or since_s) - since_s

    def finish(self) -> dict[str, int]:
        """What publishers were told is what everybody reads: one value a number, no gaps, nothing twice."""
        attempts = [one for publisher in self.publishers for one in publisher.end()]
        acked = {one.number: one.value for one in attempts if one.number}
        assert len(acked) == sum(one.number > 0 for one in attempts), "a number was given twice"
        wait_until_same(self.cluster)
        events = self.follower.end(max(acked))
        numbers = [event.number for event in events]
        assert numbers == list(range(1, len(numbers) + 1)), "a follower saw a gap"
        order = {event.number: event.value for event in events}
        lost = {number: value for number, value in acked.items() if order.get(number) != value}
        assert not lost, f"acknowledged and not as told: {lost}"
        assert len(set(order.values())) == len(order), "an event was numbered twice"
        for node in self.cluster:
            self._compare(node, events)
        return {"published": len(attempts), "acknowledged": len(acked), "lost or doubled": 0}

    def _compare(self, node: Node, events: list[SequenceEvent]) -> None:
        known = {event.number: event for event in events}
        with Client.connect(self.cluster.directory, node=node.number, timeout=PATIENCE_S) as client:
            for event in client.sequence(STREAM).read():
                assert known.get(event.number, event) == event, f"{node} has another {event.number}"


def kill_the_holder(load: Load) -> float:
    """Seconds from the kill of whoever holds the lock to the next acknowledged publish of the others."""
    cluster = load.cluster
    holder = cluster[int(sequence_of(cluster[4])["lock"] or 1)]
    holder.kill()
    took_s = load.await_progress()
    holder.start()
    wait_until_working(cluster)
    return took_s


def batter(cluster: Cluster, kills: int) -> tuple[dict[str, int], list[float]]:
    history = wait_until_working(cluster)
    load = Load(cluster)
    gaps = [kill_the_holder(load) for _ in range(kills)]
    assert wait_until_working(cluster) == history, "a second history began"
    counts = load.finish()
    assert statistics.median(gaps) <= promised(MEDIAN_S), gaps
    return counts, gaps


def first_node_forgets_everybody(cluster: Cluster) -> None:
    """Node 1 dies and starts without neighbours: it must find its way back, and begin nothing that stays."""
    history = wait_until_working(cluster)
    cluster[1].kill()
    forget_neighbours(cluster[1])
    cluster[1].start()
    assert wait_until_working(cluster) == history
    with Client.connect(cluster.directory, node=1, timeout=PATIENCE_S) as client:
        number = client.sequence("back").publish(b"here")
        assert number == 1
    with Client.connect(cluster.directory, node=2, timeout=PATIENCE_S) as client:
        assert [event.value for event in client.sequence("back").read(follow=True, stop=2)] == [b"here"]


def forget_neighbours(node: Node) -> None:
    file = node.folder / NODE_FILE
    lines = ["neighbours = []" if line.startswith("neighbours") else line for line in file.read_text().splitlines()]
    file.write_text("\n".join(lines) + "\n")


@contextlib.contextmanager
def three_by_beacons(directory: Path) -> Iterator[Cluster]:
    """They know each other's keys, and find each other by datagrams alone."""
    with founded(directory, 3, settings="[sequence]\npatience_seconds = 2\n") as cluster:
        port = cluster.endpoint(1).rsplit(":", 1)[1]  # ours by TCP, so no other test's by UDP
        for node in cluster:
            forget_neighbours(node)
            with (node.folder / NODE_FILE).open("a") as file:
                file.write(f'[beacon]\naddress = "127.255.255.255"\nport = {port}\nevery_seconds = 0.2\n')
        cluster.start()
        wait_until_working(cluster)
        yield cluster


def when_in(node: Node, state: str, since_s: float) -> float | None:
    return next((line["at_s"] for line in node.lines("sequence", since_s) if line["state"] == state), None)


def refusal(directory: Path, number: int) -> str:
    try:
        with Client.connect(directory, node=number, timeout=PATIENCE_S) as client:
            client.sequence(STREAM).publish(b"no")
    except Unknown:
        return ""
    except ChaplainError as error:
        return str(error)
    return ""


def shown(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]
