"""What speakers said in a pool, what listeners heard, and what must follow: nothing twice, nothing out of order.

A pool is best-effort, so a loss is counted and no break. While nodes are struck, until everybody hears everybody again,
it may well go untold: who dies tells nothing. What was lost in calm and untold is counted by itself; it should be
little, such as what waited on a connection that was replaced by another. A speaker that was not told that it was heard
goes on as another client, and its numbers stay in order all the same: nodes do nothing that may have been given up.
Pure: notes in, breaks and counts out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from chaplain.core import Frozen
from chaplain.drill.violations import POOL, BrokenPromise


class PoolHeard(Frozen, frozen=True):
    speaker: int
    number: int
    told: bool
    """With it the listener was told that something was missed before."""


Said = Mapping[int, Sequence[float]]
"""By speaker: when broadcast number i was acknowledged; 0 if it was not."""
Spans = Sequence[tuple[float, float]]
"""From a blow until everybody heard everybody again."""


class Losses(Frozen, frozen=True):
    lost: int
    """Broadcasts that somebody did not hear."""
    untold: int
    """Of these, those in calm that the listener was not told of."""


def judge_pool(
    said: Said, notes: Mapping[int, Sequence[PoolHeard]], blows: Spans
) -> tuple[list[BrokenPromise], Losses]:
    found: list[BrokenPromise] = []
    lost = untold = 0
    for ear, heard in notes.items():
        for speaker, times in said.items():
            for hole, told in _holes(speaker, heard, len(times)):
                missed = [number for number in hole if times[number]]
                lost += len(missed)
                untold += 0 if told else sum(not _struck(times[number], blows) for number in missed)
            found += _twice(ear, speaker, heard)
    return found, Losses(lost, untold)


def _holes(speaker: int, heard: Sequence[PoolHeard], count: int) -> Iterator[tuple[range, bool]]:
    """Numbers between two that were heard, or behind the last, and whether the listener was told."""
    last, told = None, False
    for note in heard:
        told = told or note.told
        if note.speaker != speaker:
            continue
        if last is not None and note.number > last + 1:
            yield range(last + 1, note.number), told
        last, told = max(note.number, -1 if last is None else last), False
    if last is not None:
        yield range(last + 1, count), told


def _struck(at_s: float, blows: Spans) -> bool:
    return any(from_s <= at_s <= to_s for from_s, to_s in blows)


def _twice(ear: int, speaker: int, heard: Sequence[PoolHeard]) -> Iterator[BrokenPromise]:
    seen: set[int] = set()
    last = -1
    for note in heard:
        if note.speaker != speaker:
            continue
        if note.number in seen:
            yield BrokenPromise(
                "doubled", note.number, f"listener at node {ear} heard it of node {speaker} twice", POOL
            )
        elif note.number < last:
            what = f"listener at node {ear} heard it of node {speaker} after {last}"
            yield BrokenPromise("disordered", note.number, what, POOL)
        seen.add(note.number)
        last = max(last, note.number)
