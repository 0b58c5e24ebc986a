"""What clients saw of a journal, and what must follow from it alone, whatever the nodes think of themselves.

Every writer writes numbered values of its own. An acknowledged one must be in every node's final reading exactly once,
at the offset of its receipt; one whose fate is unknown at most once; one that was refused not at all. A writer's values
stand in its order, and what was acknowledged before another was begun stands before it.

Pure: histories and readings in, breaks out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from chaplain.client.types.journal import Message
from chaplain.drill.violations import BrokenPromise, shown


@dataclass(slots=True)
class Attempt:
    """One write, as its writer saw it."""

    value: bytes
    invoked_s: float
    acked_s: float = 0.0
    offset: int | None = None
    index: int = 0
    hash: bytes = b""
    """Of the cluster chain, as the receipt says."""
    refused: str = ""
    """Why it is surely not written."""


Histories = Sequence[Sequence[Attempt]]


def judge(histories: Histories, readings: Mapping[int, Sequence[Message]]) -> list[BrokenPromise]:
    """All breaks, the nodes' differences first."""
    if not readings:
        return _unverified(histories)
    first_node, first = next(iter(readings.items()))
    found = [broken for node, reading in readings.items() for broken in _reading(node, reading, first_node, first)]
    at: dict[bytes, Message] = {}
    for message in first:
        at.setdefault(message.value, message)
    attempts = [attempt for history in histories for attempt in history]
    found += _strange(first, {attempt.value for attempt in attempts})
    found += [broken for attempt in attempts for broken in _fate(attempt, at.get(attempt.value))]
    found += [broken for history in histories for broken in _own_order(history, at)]
    return [*found, *_real_time(attempts)]


def _unverified(histories: Histories) -> list[BrokenPromise]:
    """Nobody could be read: whatever was acknowledged is neither found nor missing."""
    offsets = sorted(one.offset for history in histories for one in history if one.offset is not None)
    if not offsets:
        return []
    what = f"{len(offsets)} acknowledged writes, at offsets {offsets[0]} to {offsets[-1]}"
    return [BrokenPromise("unverified", offsets[0], f"{what}, could not be looked for: no node could be read")]


def _reading(
    node: int, reading: Sequence[Message], first_node: int, first: Sequence[Message]
) -> Iterator[BrokenPromise]:
    for expected, message in enumerate(reading):
        if message.offset != expected:
            yield BrokenPromise(
                "gap", expected, f"node {node} has offset {message.offset} where {expected} should stand"
            )
            break
    for mine, other in zip(reading, first, strict=False):
        if mine != other:
            yield BrokenPromise("different", mine.offset, f"nodes {node} and {first_node} hold different messages")
            break
    if len(reading) != len(first):
        shorter = min(len(reading), len(first))
        yield BrokenPromise(
            "different", shorter, f"node {node} holds {len(reading)} messages, node {first_node} {len(first)}"
        )


def _strange(first: Sequence[Message], ours: set[bytes]) -> Iterator[BrokenPromise]:
    counts = Counter(message.value for message in first)
    for message in first:
        if counts[message.value] > 1:
            yield BrokenPromise(
                "doubled", message.offset, f"{shown(message.value)} stands {counts[message.value]} times"
            )
        if message.value not in ours:
            yield BrokenPromise("foreign", message.offset, f"nobody wrote {shown(message.value)}")


def _fate(attempt: Attempt, found: Message | None) -> Iterator[BrokenPromise]:
    name = shown(attempt.value)
    if attempt.refused and found is not None:
        yield BrokenPromise("phantom", found.offset, f"{name} was refused ({attempt.refused}), and is written")
    elif attempt.offset is not None and found is None:
        yield BrokenPromise(
            "lost", attempt.offset, f"{name} was acknowledged at offset {attempt.offset}, and is not there"
        )
    elif found is not None and _place(found) != (attempt.offset, attempt.index) and attempt.offset is not None:
        where = f"offset {found.offset} of message {found.index}"
        yield BrokenPromise(
            "moved", attempt.offset, f"{name} was acknowledged in message {attempt.index}, and is at {where}"
        )


def _place(message: Message) -> tuple[int, int]:
    return message.offset, message.index


def _own_order(history: Sequence[Attempt], at: Mapping[bytes, Message]) -> Iterator[BrokenPromise]:
    last = -1
    for attempt in history:
        found = at.get(attempt.value)
        if found is None:
            continue
        if found.offset < last:
            yield BrokenPromise(
                "disordered", found.offset, f"{shown(attempt.value)} stands before what its writer wrote first"
            )
        last = max(last, found.offset)


def _real_time(attempts: Sequence[Attempt]) -> Iterator[BrokenPromise]:
    done = sorted((attempt for attempt in attempts if attempt.offset is not None), key=lambda one: one.acked_s)
    highest, place = -1, 0
    for later in sorted(done, key=lambda one: one.invoked_s):
        while place < len(done) and done[place].acked_s < later.invoked_s:
            highest = max(highest, done[place].offset or 0)
            place += 1
        assert later.offset is not None
        if later.offset <= highest:
            what = f"{shown(later.value)} was begun after offset {highest} was acknowledged"
            yield BrokenPromise("overtaken", later.offset, what)
