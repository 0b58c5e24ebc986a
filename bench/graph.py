"""Measures the graph: appends a second on three real nodes, the cost of synchronizing two nodes, and of a large Model.

    python bench/graph.py [--events 1000000] [--seconds 5] [--only appends|fetch|add]

*appends*: three nodes in separate processes, and one client with many appends in flight. An append is acknowledged
when it is on the disk of the client's node. *fetch*: two cores in this process; one lacks the newest events and has
some that the other lacks. It counts the octets of messages and the request rounds until both are equal. Signatures
are neither made nor checked, because their cost does not depend on the synchronization. *add*: microseconds to add
an event to a Model of ten thousand and of a million events, alternating. Prints tables and one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

from chaplain import AsyncClient
from chaplain.config import load_cluster
from chaplain.core import Drained, Persist, Persisted
from chaplain.gossip.events import GossipParcel
from chaplain.graph.core import GraphCore
from chaplain.graph.events import CheckSignatures, EventsRead, ReadEvents, SignaturesChecked
from chaplain.graph.messages.event import NO_ID, VERSION, SignedEvent, decode
from chaplain.graph.messages.peer import FetchMissing
from chaplain.graph.messages.peer import decode as decode_message
from chaplain.graph.model import Model
from chaplain.graph.settings import GraphSettings
from chaplain.graph.storage.stored import EventPosition, StoredEvent
from chaplain.link.auth.identity import Identity
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered, Whisper
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.cluster.local import bring_down, bring_up
from chaplain.runtime.cluster.probe import get_status
from chaplain.wire import parcel

VALUE_BYTES = 100
UNDER_WAY = 256
MISSING = (10, 1_000, 100_000)
AUTHOR = bytes(range(32))
OWN = 10
"""Events that only the lagging node has, because it wrote them itself."""


def unsigned(author: bytes, number: int, previous: SignedEvent | None) -> SignedEvent:
    """Return an event with an empty signature; the measured code does not check signatures."""
    height = 0 if previous is None else previous.height + 1
    link = bytes(4) + NO_ID if previous is None else previous.height.to_bytes(4, "big") + previous.id
    tail = b"%b%b%b\0\5notes\0%b" % (
        number.to_bytes(8, "big"),
        height.to_bytes(4, "big"),
        link,
        number.to_bytes(8, "big").ljust(VALUE_BYTES, b"."),
    )
    return decode(bytes((VERSION,)) + author + bytes(64) + tail)


def line(author: bytes, count: int, behind: SignedEvent | None = None, first: int = 0) -> list[SignedEvent]:
    events: list[SignedEvent] = []
    last = behind
    for number in range(first, first + count):
        last = unsigned(author, number, last)
        events.append(last)
    return events


# Adding.


def add(count: int) -> dict[str, float]:
    """Return microseconds per added event, in a Model of ten thousand events and of `count`; medians of all rounds."""
    author, probe = bytes(32), 2_000
    small, large = Model(), Model()
    events = line(author, count + 20 * probe)
    for event in events[:10_000]:
        small.add(event)
    began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for event in events[:count]:
        large.add(event)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began
    took: dict[str, list[float]] = {"small": [], "large": []}
    for turn in range(10):
        for name, model, base in (("small", small, 10_000), ("large", large, count)):
            part = events[base + turn * probe : base + (turn + 1) * probe]
            start = time.process_time()
            for event in part:
                model.add(event)
            took[name].append((time.process_time() - start) / probe * 1e6)
    small_us, large_us = (sorted(took[name])[5] for name in ("small", "large"))
    return {
        "events": count,
        "small_us": round(small_us, 2),
        "large_us": round(large_us, 2),
        "ratio": round(large_us / small_us, 2),
        "bytes_an_event": round(grown * 1024 / count),
    }


# Fetching.


class Node:
    """A core whose disk writes and signature checks complete immediately."""

    def __init__(self, seed: int, peers: list[bytes]) -> None:
        identity = Identity(bytes((seed,)) * 32)
        self.peer = Peer(bytes((seed,)) * 16, identity.identifier, identity.key)
        settings = GraphSettings("bench", served_burst_bytes=1 << 40, recent_bytes_max=1 << 33)
        self.core = GraphCore(settings, identity, random.Random(seed), now_ns=0, founders=peers)
        self.sent: deque[bytes] = deque()

    def load(self, events: list[SignedEvent]) -> None:
        stream = self.core.context.stream("notes")
        assert stream is not None
        for number, event in enumerate(events):
            stream.load(StoredEvent(event, EventPosition(0, 0), number))
            self.core.context.remember(event.id, event.raw)
        stream.model.mark_read(len(events) - 1)
        stream.unread.masks.clear()

    def step(self, event: Any) -> None:
        inbox = deque([event, Drained()])
        while inbox:
            for effect in self.core.step(1, inbox.popleft()):
                match effect:
                    case Whisper():
                        self.sent.append(effect.content)
                    case CheckSignatures():
                        inbox.append(SignaturesChecked(effect.ticket, (True,) * len(effect.checks)))
                        inbox.append(Drained())
                    case ReadEvents():
                        inbox.append(EventsRead(effect.token, (b"",) * len(effect.places)))
                    case Persist():
                        inbox.extend([Persisted(effect.ticket), Drained()])
                    case _:
                        pass


def fetch(full: Node, events: list[SignedEvent], missing: int, own: int) -> dict[str, float]:
    """Synchronize a node that has all events with one that lacks the newest and has some of its own."""
    lagging = Node(2, [])
    common = events[: len(events) - missing]
    lagging.load(common + line(AUTHOR, own, common[-1], first=1 << 40))
    octets = {"to lagging": 0, "to full": 0}
    rounds = 0
    start = time.process_time()
    full.step(Entered(lagging.peer, {}))
    lagging.step(Entered(full.peer, {}))
    while full.sent or lagging.sent:
        for here, there, name in ((full, lagging, "to lagging"), (lagging, full, "to full")):
            while here.sent:
                content = here.sent.popleft()
                said = parcel.decode(content)
                octets[name] += len(content)
                rounds += isinstance(decode_message(said.body, said.payload), FetchMissing)
                there.step(GossipParcel(here.peer, said))
    models = [node.core.streams["notes"].model for node in (full, lagging)]
    assert models[0].fingerprint == models[1].fingerprint, "not equal"
    useful = sum(len(event.raw) for event in events[len(common) :])
    return {
        "missing": missing,
        "own": own,
        "fetches": rounds,
        "bytes": sum(octets.values()),
        "bytes_of_missing": useful,
        "ratio": round(sum(octets.values()) / max(useful, 1), 2),
        "cpu_s": round(time.process_time() - start, 2),
    }


# Appending.


async def _append(directory: Path, seconds: float) -> tuple[int, float]:
    async with AsyncClient.connect(directory, node=1) as client:
        stream, count, value = client.graph("bench"), 0, bytes(VALUE_BYTES)
        end = time.perf_counter() + seconds

        async def lane() -> None:
            nonlocal count
            while time.perf_counter() < end:
                await stream.append(value)
                count += 1

        began = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(UNDER_WAY)))
        return count, time.perf_counter() - began


def appends(seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "cluster"
        make_cluster(directory, 3, "none", None)
        bring_up(directory, lambda _: None)
        try:
            count, took_s = asyncio.run(_append(directory, seconds))
            began, nodes = time.perf_counter(), load_cluster(directory).nodes
            while not all(_events(node.http) == count for node in nodes):
                time.sleep(0.02)
            return {
                "appended": count,
                "per_s": round(count / took_s),
                "equal_after_s": round(time.perf_counter() - began, 2),
            }
        finally:
            bring_down(directory)


def _events(http: str) -> int:
    status: dict[str, Any] = get_status(http) or {}
    return int(status.get("graph", {}).get("bench", {}).get("events", -1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", choices=("appends", "fetch", "add"))
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if options.only in (None, "appends"):
        found["appends"] = appends(options.seconds)
        print("appends:", found["appends"])
    if options.only in (None, "add"):
        found["add"] = add(options.events)
        print("add:", found["add"])
    if options.only in (None, "fetch"):
        events = line(AUTHOR, options.events)
        full = Node(1, [])
        full.load(events)
        found["fetch"] = []
        for missing in (missing for missing in MISSING if missing < options.events):
            found["fetch"].append(fetch(full, events, missing, OWN if missing > OWN else 0))
            print("fetch:", found["fetch"][-1], flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
