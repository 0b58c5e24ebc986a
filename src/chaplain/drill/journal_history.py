"""Checks the history of a journal's clients against the final readings of the nodes.

Every writer writes unique values. In the reading of every node, a value

- that was acknowledged is present exactly once, at the offset of its receipt,
- whose outcome is unknown is present at most once,
- that was refused is absent.

The values of one writer are in the order in which it wrote them. A write that was acknowledged before another one began
precedes it (real-time order). All nodes have the same messages.

Pure: histories and readings in, breaks out. It does not use what the nodes report about themselves.
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
    """The hash of the cluster chain in the receipt."""
    refused: str = ""
    """Why it was certainly not written; "" if it was acknowledged or its outcome is unknown."""


Histories = Sequence[Sequence[Attempt]]


def judge(histories: Histories, readings: Mapping[int, Sequence[Message]]) -> list[BrokenPromise]:
    """Return all breaks, differences between nodes first."""
    if not readings:
        return _unverified(histories)
    first_node, first = next(iter(readings.items()))
    found = [broken for node, reading in readings.items() for broken in _check_node(node, reading, first_node, first)]
    at: dict[bytes, Message] = {}
    for message in first:
        at.setdefault(message.value, message)
    attempts = [attempt for history in histories for attempt in history]
    found += _check_values(first, {attempt.value for attempt in attempts})
    found += [broken for attempt in attempts for broken in _check_outcome(attempt, at.get(attempt.value))]
    found += [broken for history in histories for broken in _check_writer_order(history, at)]
    return [*found, *_check_real_time_order(attempts)]


def _unverified(histories: Histories) -> list[BrokenPromise]:
    """Return a break for the acknowledged writes if no node could be read: they are neither present nor lost."""
    offsets = sorted(one.offset for history in histories for one in history if one.offset is not None)
    if not offsets:
        return []
    what = f"{len(offsets)} acknowledged writes, at offsets {offsets[0]} to {offsets[-1]}"
    return [BrokenPromise("unverified", offsets[0], f"{what}, could not be looked for: no node could be read")]


def _check_node(
    node: int, reading: Sequence[Message], first_node: int, first: Sequence[Message]
) -> Iterator[BrokenPromise]:
    for expected, message in enumerate(reading):
        if message.offset != expected:
            yield BrokenPromise("gap", expected, f"node {node} has offset {message.offset} where {expected} should be")
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


def _check_values(first: Sequence[Message], written: set[bytes]) -> Iterator[BrokenPromise]:
    """Find values that occur more than once, and values that no writer wrote."""
    counts = Counter(message.value for message in first)
    for message in first:
        if counts[message.value] > 1:
            yield BrokenPromise(
                "doubled", message.offset, f"{shown(message.value)} occurs {counts[message.value]} times"
            )
        if message.value not in written:
            yield BrokenPromise("foreign", message.offset, f"no client wrote {shown(message.value)}")


def _check_outcome(attempt: Attempt, found: Message | None) -> Iterator[BrokenPromise]:
    name = shown(attempt.value)
    if attempt.refused and found is not None:
        yield BrokenPromise("phantom", found.offset, f"{name} was refused ({attempt.refused}), and is written")
    elif attempt.offset is not None and found is None:
        yield BrokenPromise(
            "lost", attempt.offset, f"{name} was acknowledged at offset {attempt.offset}, and is not there"
        )
    elif attempt.offset is not None and found is not None and _position(found) != (attempt.offset, attempt.index):
        where = f"offset {found.offset} of message {found.index}"
        yield BrokenPromise(
            "moved", attempt.offset, f"{name} was acknowledged in message {attempt.index}, and is at {where}"
        )


def _position(message: Message) -> tuple[int, int]:
    return message.offset, message.index


def _check_writer_order(history: Sequence[Attempt], at: Mapping[bytes, Message]) -> Iterator[BrokenPromise]:
    last = -1
    for attempt in history:
        found = at.get(attempt.value)
        if found is None:
            continue
        if found.offset < last:
            yield BrokenPromise(
                "disordered", found.offset, f"{shown(attempt.value)} precedes a value that its writer wrote earlier"
            )
        last = max(last, found.offset)


def _check_real_time_order(attempts: Sequence[Attempt]) -> Iterator[BrokenPromise]:
    """Each write must have a higher offset than all writes that were acknowledged before it began.

    One pass over the writes by begin time; `highest` is the highest offset acknowledged before the present one began.
    """
    done = sorted((attempt for attempt in attempts if attempt.offset is not None), key=lambda one: one.acked_s)
    highest, position = -1, 0
    for later in sorted(done, key=lambda one: one.invoked_s):
        while position < len(done) and done[position].acked_s < later.invoked_s:
            highest = max(highest, done[position].offset or 0)
            position += 1
        assert later.offset is not None
        if later.offset <= highest:
            what = f"{shown(later.value)} was begun after offset {highest} was acknowledged"
            yield BrokenPromise("overtaken", later.offset, what)
