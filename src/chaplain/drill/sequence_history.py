"""Checks the history of a sequence's clients against the final readings of the nodes.

Numbers have no gaps, each number has one event, and it is the same on every node. An acknowledged event has the number
of its acknowledgement. An event that was published after another one was acknowledged has a higher number (real-time
order).

A sequence lives in memory. The check therefore leaves out events that were acknowledged before a majority of the nodes
was killed at once, and events that the nodes no longer retain. Pure: attempts and readings in, breaks out.
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
    attempts: Sequence[WriteAttempt], readings: Readings, since_s: float, followed: Sequence[SequenceEvent] = ()
) -> tuple[list[BrokenPromise], list[str]]:
    """Return all breaks, and what was left out.

    `since_s`: the last time that a majority was killed at once; earlier events may be lost. `followed`: the events of a
    reader that was connected all the time.
    """
    acked = [attempt for attempt in attempts if attempt.acked_s and attempt.invoked_s >= since_s]
    gone = sum(bool(attempt.acked_s) for attempt in attempts) - len(acked)
    left_out = (
        [f"{gone} numbers given before a majority was killed at once: a sequence lives in memory"] if gone else []
    )
    if not readings:
        what = f"{len(acked)} acknowledged numbers could not be looked for: no node could be read"
        return [
            BrokenPromise("unverified", min(attempt.number for attempt in acked), what, SEQUENCE)
        ] if acked else [], left_out
    found = [
        *_check_nodes(readings),
        *_check_follower(readings, followed),
        *_check_unique_numbers(acked),
        *_check_real_time_order(acked),
    ]
    order = {event.number: event.value for reading in (followed, *readings.values()) for event in reading}
    oldest = min(order, default=0)
    retained = [attempt for attempt in acked if attempt.number >= oldest]
    if len(retained) < len(acked):
        left_out.append(f"{len(acked) - len(retained)} numbers that nodes keep no longer, all before {oldest}")
    return [*found, *_check_acknowledged(retained, order), *_check_values(attempts, order)], left_out


def _check_nodes(readings: Readings) -> Iterator[BrokenPromise]:
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


def _check_follower(readings: Readings, followed: Sequence[SequenceEvent]) -> Iterator[BrokenPromise]:
    for before, after in itertools.pairwise(followed):
        if after.number != before.number + 1:
            yield BrokenPromise(
                "gap", before.number + 1, f"a reader received {after.number} after {before.number}", SEQUENCE
            )
    held = {event.number: event for reading in readings.values() for event in reading}
    for event in followed:
        if held.get(event.number, event) != event:
            yield BrokenPromise(
                "different", event.number, "a reader received another event than nodes have now", SEQUENCE
            )
            break


def _check_unique_numbers(acked: Sequence[WriteAttempt]) -> Iterator[BrokenPromise]:
    given: dict[int, WriteAttempt] = {}
    for attempt in acked:
        other = given.setdefault(attempt.number, attempt)
        if other is not attempt:
            what = f"{shown(other.value)} and {shown(attempt.value)} were both given number {attempt.number}"
            yield BrokenPromise("doubled", attempt.number, what, SEQUENCE)


def _check_real_time_order(acked: Sequence[WriteAttempt]) -> Iterator[BrokenPromise]:
    """Each event must have a higher number than all events that were acknowledged before it was published.

    One pass over the events by begin time; `highest` is the highest number acknowledged before the present one began.
    """
    done = sorted(acked, key=lambda attempt: attempt.acked_s)
    highest, position = 0, 0
    for later in sorted(acked, key=lambda attempt: attempt.invoked_s):
        while position < len(done) and done[position].acked_s < later.invoked_s:
            highest = max(highest, done[position].number)
            position += 1
        if later.number <= highest:
            what = f"{shown(later.value)} was begun after number {highest} was acknowledged"
            yield BrokenPromise("overtaken", later.number, what, SEQUENCE)


def _check_acknowledged(acked: Sequence[WriteAttempt], order: Mapping[int, bytes]) -> Iterator[BrokenPromise]:
    numbers = {value: number for number, value in order.items()}
    for attempt in acked:
        if order.get(attempt.number) == attempt.value:
            continue
        name = f"{shown(attempt.value)} was given number {attempt.number}"
        if attempt.value in numbers:
            yield BrokenPromise("moved", attempt.number, f"{name}, but has {numbers[attempt.value]}", SEQUENCE)
        else:
            yield BrokenPromise("lost", attempt.number, f"{name}, but is absent", SEQUENCE)


def _check_values(attempts: Sequence[WriteAttempt], order: Mapping[int, bytes]) -> Iterator[BrokenPromise]:
    """Find values that no client published, that were refused, or that have several numbers."""
    published = {attempt.value: attempt for attempt in attempts}
    counts = Counter(order.values())
    for number, value in sorted(order.items()):
        attempt = published.get(value)
        if attempt is None:
            yield BrokenPromise("foreign", number, f"no client published {shown(value)}", SEQUENCE)
        elif attempt.refused:
            yield BrokenPromise(
                "phantom", number, f"{shown(value)} was refused ({attempt.refused}), but has a number", SEQUENCE
            )
        elif counts[value] > 1:
            yield BrokenPromise("doubled", number, f"{shown(value)} has {counts[value]} numbers", SEQUENCE)
