"""Checks the history of a graph's clients against the final readings of the nodes.

Every acknowledged event is on every node exactly once, with the value that was written, and all nodes return the events
in the same order. Pure: attempts and readings in, breaks out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from chaplain.client.api.graph_calls import GraphEvent
from chaplain.drill.violations import GRAPH, BrokenPromise, shown
from chaplain.drill.workers import WriteAttempt

Readings = Mapping[int, Sequence[GraphEvent]]


def judge_graph(attempts: Sequence[WriteAttempt], readings: Readings) -> list[BrokenPromise]:
    acked = [attempt for attempt in attempts if attempt.acked_s]
    if not readings:
        what = f"{len(acked)} acknowledged events could not be looked for: no node could be read"
        return [BrokenPromise("unverified", None, what, GRAPH)] if acked else []
    return [*_check_nodes(readings), *_check_acknowledged(acked, readings), *_check_values(attempts, readings)]


def _check_nodes(readings: Readings) -> Iterator[BrokenPromise]:
    first_node, first = next(iter(readings.items()))
    for node, reading in readings.items():
        for event_id, times in Counter(event.id for event in reading).items():
            if times > 1:
                yield BrokenPromise("doubled", None, f"node {node} shows event {event_id[:16]} {times} times", GRAPH)
        if [event.id for event in reading] != [event.id for event in first]:
            what = f"nodes {node} and {first_node} differ in events or order: {len(reading)} and {len(first)} events"
            yield BrokenPromise("different", None, what, GRAPH)


def _check_acknowledged(acked: Sequence[WriteAttempt], readings: Readings) -> Iterator[BrokenPromise]:
    at = {node: {event.id: event.value for event in reading} for node, reading in readings.items()}
    for attempt in acked:
        name = f"{shown(attempt.value)}, event {attempt.id[:16]}"
        absent = [node for node, held in at.items() if attempt.id not in held]
        if absent:
            yield BrokenPromise("lost", None, f"{name}, was acknowledged, and is not on node {_listed(absent)}", GRAPH)
        changed = [node for node, held in at.items() if held.get(attempt.id, attempt.value) != attempt.value]
        if changed:
            yield BrokenPromise("moved", None, f"{name}, has another value on node {_listed(changed)}", GRAPH)


def _check_values(attempts: Sequence[WriteAttempt], readings: Readings) -> Iterator[BrokenPromise]:
    """Find values that no client appended, that were refused, or that occur under several ids."""
    written = {attempt.value: attempt for attempt in attempts}
    found = {event.id: event.value for reading in readings.values() for event in reading}
    counts = Counter(found.values())
    for value, times in counts.items():
        attempt = written.get(value)
        if attempt is None:
            yield BrokenPromise("foreign", None, f"no client appended {shown(value)}", GRAPH)
        elif attempt.refused:
            what = f"{shown(value)} was refused ({attempt.refused}), but is present"
            yield BrokenPromise("phantom", None, what, GRAPH)
        elif times > 1:
            yield BrokenPromise("doubled", None, f"{shown(value)} was appended once, but has {times} ids", GRAPH)


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))
