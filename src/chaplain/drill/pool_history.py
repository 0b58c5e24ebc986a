"""Checks what the speakers of a pool sent against what its listeners received: no broadcast twice, none out of order.

A pool is best effort, so a lost broadcast is counted but is no break. During a fault, and until all listeners hear all
speakers again, a loss may go unreported, because a killed node cannot report it. Losses at other times that were not
reported to the listener are counted separately. There should be few of them, such as broadcasts that waited on a
connection that was replaced by another.

A speaker whose broadcast was not acknowledged continues as another client. Its numbers stay in order nevertheless,
because nodes do not execute requests that their client may have given up.

Pure: records in, breaks and counts out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from chaplain.core import Frozen
from chaplain.drill.violations import POOL, BrokenPromise


class PoolHeard(Frozen, frozen=True):
    """A broadcast that a listener received."""

    speaker: int
    number: int
    gap_reported: bool
    """True if this broadcast informed the listener that it had missed earlier ones."""


Sent = Mapping[int, Sequence[float]]
"""By speaker: when broadcast number i was acknowledged; 0 if it was not."""
FaultSpans = Sequence[tuple[float, float]]
"""From each fault until all listeners heard all speakers again."""


class Losses(Frozen, frozen=True):
    """Broadcasts that a listener did not receive, summed over all listeners."""

    lost: int
    unreported: int
    """Those of them that were sent while no fault was active and that the listener was not informed of."""


def judge_pool(
    sent: Sent, received: Mapping[int, Sequence[PoolHeard]], faults: FaultSpans
) -> tuple[list[BrokenPromise], Losses]:
    """`received` maps the node of each listener to what it received, in order of arrival."""
    found: list[BrokenPromise] = []
    lost = unreported = 0
    for listener, heard in received.items():
        for speaker, times in sent.items():
            for gap, reported in _gaps(speaker, heard, len(times)):
                missed = [number for number in gap if times[number]]
                lost += len(missed)
                unreported += 0 if reported else sum(not _during_fault(times[number], faults) for number in missed)
            found += _check_order(listener, speaker, heard)
    return found, Losses(lost, unreported)


def _gaps(speaker: int, heard: Sequence[PoolHeard], count: int) -> Iterator[tuple[range, bool]]:
    """Yield the numbers between two received broadcasts, or after the last one, and whether the gap was reported.

    Broadcasts before the first one are no gap: the listener had not joined the pool yet.
    """
    last, reported = None, False
    for one in heard:
        reported = reported or one.gap_reported
        if one.speaker != speaker:
            continue
        if last is not None and one.number > last + 1:
            yield range(last + 1, one.number), reported
        last, reported = max(one.number, -1 if last is None else last), False
    if last is not None:
        yield range(last + 1, count), reported


def _during_fault(at_s: float, faults: FaultSpans) -> bool:
    return any(from_s <= at_s <= to_s for from_s, to_s in faults)


def _check_order(listener: int, speaker: int, heard: Sequence[PoolHeard]) -> Iterator[BrokenPromise]:
    """Find broadcasts of the speaker that the listener received twice or out of order."""
    seen: set[int] = set()
    last = -1
    for one in heard:
        if one.speaker != speaker:
            continue
        if one.number in seen:
            what = f"listener at node {listener} received it from node {speaker} twice"
            yield BrokenPromise("doubled", one.number, what, POOL)
        elif one.number < last:
            what = f"listener at node {listener} received it from node {speaker} after {last}"
            yield BrokenPromise("disordered", one.number, what, POOL)
        seen.add(one.number)
        last = max(last, one.number)
