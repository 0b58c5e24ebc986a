"""What clients saw of a graph, and what must follow: everything acknowledged is on every node in the end, once, as it
was written, and all nodes show one order. Pure: entries and readings in, breaks out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from chaplain.client.api.graph import GraphEvent
from chaplain.drill.violations import GRAPH, BrokenPromise, shown
from chaplain.drill.workers import WriteAttempt

Readings = Mapping[int, Sequence[GraphEvent]]


def judge_graph(entries: Sequence[WriteAttempt], readings: Readings) -> list[BrokenPromise]:
    acked = [entry for entry in entries if entry.acked_s]
    if not readings:
        what = f"{len(acked)} acknowledged events could not be looked for: no node could be read"
        return [BrokenPromise("unverified", None, what, GRAPH)] if acked else []
    return [*_nodes(readings), *_fates(acked, readings), *_strange(entries, readings)]


def _nodes(readings: Readings) -> Iterator[BrokenPromise]:
    first_node, first = next(iter(readings.items()))
    for node, reading in readings.items():
        for event_id, times in Counter(event.id for event in reading).items():
            if times > 1:
                yield BrokenPromise("doubled", None, f"node {node} shows event {event_id[:16]} {times} times", GRAPH)
        if [event.id for event in reading] != [event.id for event in first]:
            what = f"nodes {node} and {first_node} show other events, or another order: {len(reading)} and {len(first)}"
            yield BrokenPromise("different", None, what, GRAPH)


def _fates(acked: Sequence[WriteAttempt], readings: Readings) -> Iterator[BrokenPromise]:
    at = {node: {event.id: event.value for event in reading} for node, reading in readings.items()}
    for entry in acked:
        name = f"{shown(entry.value)}, event {entry.id[:16]}"
        absent = [node for node, held in at.items() if entry.id not in held]
        if absent:
            yield BrokenPromise("lost", None, f"{name}, was acknowledged, and is not on node {_listed(absent)}", GRAPH)
        changed = [node for node, held in at.items() if held.get(entry.id, entry.value) != entry.value]
        if changed:
            yield BrokenPromise("moved", None, f"{name}, holds something else on node {_listed(changed)}", GRAPH)


def _strange(entries: Sequence[WriteAttempt], readings: Readings) -> Iterator[BrokenPromise]:
    values = {entry.value: entry for entry in entries}
    found = {event.id: event.value for reading in readings.values() for event in reading}
    counts = Counter(found.values())
    for value, times in counts.items():
        entry = values.get(value)
        if entry is None:
            yield BrokenPromise("foreign", None, f"nobody appended {shown(value)}", GRAPH)
        elif entry.refused:
            yield BrokenPromise("phantom", None, f"{shown(value)} was refused ({entry.refused}), and is there", GRAPH)
        elif times > 1:
            yield BrokenPromise(
                "doubled", None, f"{shown(value)} was appended once, and stands under {times} ids", GRAPH
            )


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))
