"""What clients saw of a sequence, and what must follow: numbers without gaps, one message for each, the same on every
node, what was acknowledged under its number, in the order of real time.

A sequence lives in memory: what was acknowledged before no majority remembered it is left out, and so is what nodes no
longer keep. Pure: entries and readings in, breaks out.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from chaplain.client.api.sequence_calls import SequenceEvent
from chaplain.drill.violations import SEQUENCE, BrokenPromise, shown
from chaplain.drill.workers import WriteAttempt

Readings = Mapping[int, Sequence[SequenceEvent]]


def judge_sequence(
    entries: Sequence[WriteAttempt], readings: Readings, since_s: float, followed: Sequence[SequenceEvent] = ()
) -> tuple[list[BrokenPromise], list[str]]:
    """All breaks, and what was left out. `since_s`: before it no majority remembers anything. `followed`: what a reader
    saw who was there all the time.
    """
    acked = [entry for entry in entries if entry.acked_s and entry.invoked_s >= since_s]
    gone = sum(bool(entry.acked_s) for entry in entries) - len(acked)
    left_out = (
        [f"{gone} numbers given before a majority was killed at once: a sequence lives in memory"] if gone else []
    )
    if not readings:
        what = f"{len(acked)} acknowledged numbers could not be looked for: no node could be read"
        return [
            BrokenPromise("unverified", min(entry.number for entry in acked), what, SEQUENCE)
        ] if acked else [], left_out
    found = [*_nodes(readings), *_follower(readings, followed), *_twice(acked), *_overtaken(acked)]
    order = {event.number: event.value for reading in (followed, *readings.values()) for event in reading}
    oldest = min(order, default=0)
    kept = [entry for entry in acked if entry.number >= oldest]
    if len(kept) < len(acked):
        left_out.append(f"{len(acked) - len(kept)} numbers that nodes keep no longer, all before {oldest}")
    return [*found, *_fates(kept, order), *_strange(entries, order)], left_out


def _nodes(readings: Readings) -> Iterator[BrokenPromise]:
    seen: dict[int, tuple[int, SequenceEvent]] = {}
    for node, reading in readings.items():
        numbers = [event.number for event in reading]
        for before, after in itertools.pairwise(numbers):
            if after != before + 1:
                yield BrokenPromise("gap", before + 1, f"node {node} goes on with {after} after {before}", SEQUENCE)
        for event in reading:
            other, first = seen.setdefault(event.number, (node, event))
            if first != event:
                yield BrokenPromise(
                    "different", event.number, f"nodes {node} and {other} hold different messages", SEQUENCE
                )
                break
    heads = {node: max((event.number for event in reading), default=0) for node, reading in readings.items()}
    if len({*heads.values()}) > 1:
        yield BrokenPromise("different", min(heads.values()), f"nodes end with different numbers: {heads}", SEQUENCE)


def _follower(readings: Readings, followed: Sequence[SequenceEvent]) -> Iterator[BrokenPromise]:
    for before, after in itertools.pairwise(followed):
        if after.number != before.number + 1:
            yield BrokenPromise(
                "gap", before.number + 1, f"a reader was given {after.number} after {before.number}", SEQUENCE
            )
    held = {event.number: event for reading in readings.values() for event in reading}
    for event in followed:
        if held.get(event.number, event) != event:
            yield BrokenPromise(
                "different", event.number, "a reader was given something else than nodes hold now", SEQUENCE
            )
            break


def _twice(acked: Sequence[WriteAttempt]) -> Iterator[BrokenPromise]:
    given: dict[int, WriteAttempt] = {}
    for entry in acked:
        other = given.setdefault(entry.number, entry)
        if other is not entry:
            what = f"{shown(other.value)} and {shown(entry.value)} were both given number {entry.number}"
            yield BrokenPromise("doubled", entry.number, what, SEQUENCE)


def _overtaken(acked: Sequence[WriteAttempt]) -> Iterator[BrokenPromise]:
    done = sorted(acked, key=lambda entry: entry.acked_s)
    highest, place = 0, 0
    for later in sorted(acked, key=lambda entry: entry.invoked_s):
        while place < len(done) and done[place].acked_s < later.invoked_s:
            highest = max(highest, done[place].number)
            place += 1
        if later.number <= highest:
            what = f"{shown(later.value)} was begun after number {highest} was acknowledged"
            yield BrokenPromise("overtaken", later.number, what, SEQUENCE)


def _fates(acked: Sequence[WriteAttempt], order: Mapping[int, bytes]) -> Iterator[BrokenPromise]:
    places = {value: number for number, value in order.items()}
    for entry in acked:
        if order.get(entry.number) == entry.value:
            continue
        name = f"{shown(entry.value)} was given number {entry.number}"
        if entry.value in places:
            yield BrokenPromise("moved", entry.number, f"{name}, and has {places[entry.value]}", SEQUENCE)
        else:
            yield BrokenPromise("lost", entry.number, f"{name}, and is not there", SEQUENCE)


def _strange(entries: Sequence[WriteAttempt], order: Mapping[int, bytes]) -> Iterator[BrokenPromise]:
    ours = {entry.value: entry for entry in entries}
    counts = Counter(order.values())
    for number, value in sorted(order.items()):
        entry = ours.get(value)
        if entry is None:
            yield BrokenPromise("foreign", number, f"nobody published {shown(value)}", SEQUENCE)
        elif entry.refused:
            yield BrokenPromise(
                "phantom", number, f"{shown(value)} was refused ({entry.refused}), and has a number", SEQUENCE
            )
        elif counts[value] > 1:
            yield BrokenPromise("doubled", number, f"{shown(value)} has {counts[value]} numbers", SEQUENCE)
