"""Decides whether a history of concurrent operations is linearizable, for any sequential model.

The algorithm is that of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993) with the cache of Lowe
("Testing for Linearizability", 2017), as in the checker Porcupine. Operations are tried in every order that their times
allow, and a state that was reached before with the same operations is not tried again. The model is independent of
chaplain.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


class Operation(NamedTuple):
    """One operation of a client."""

    called_ns: int
    returned_ns: int | None
    """None if the client never learned the outcome: it may have taken effect at any time since, or never."""
    asked: Any
    answer: Any
    """None if the outcome is not known."""


class _Event:
    """A call or a return, in a doubly linked list."""

    __slots__ = ("after", "before", "is_call", "match", "number")

    def __init__(self, number: int, is_call: bool) -> None:
        self.number = number
        self.is_call = is_call
        self.match: _Event | None = None
        self.before: _Event | None = None
        self.after: _Event | None = None

    def lift(self) -> None:
        """Take a call and its return out of the list."""
        for event in (self, self.match):
            if event is not None:
                assert event.before is not None
                event.before.after = event.after
                if event.after is not None:
                    event.after.before = event.before

    def unlift(self) -> None:
        """Put them back. Only in the reverse order of `lift`."""
        for event in (self.match, self):
            if event is not None:
                assert event.before is not None
                event.before.after = event
                if event.after is not None:
                    event.after.before = event


def is_linearizable(history: Sequence[Operation], initial: S, step: Callable[[S, Any, Any], S | None]) -> bool:
    """True if there is an order of the operations that their times allow and in which the model gives each its answer.

    `step(state, asked, answer)` returns the next state, or None if the model would not give this answer. With the
    answer None, it returns the state after the operation took effect, or None if it cannot take effect.
    """
    head = _events(history)
    state, done = initial, 0
    seen: set[tuple[int, S]] = set()
    undo: list[tuple[_Event, S]] = []
    certain = sum(1 << number for number, one in enumerate(history) if one.returned_ns is not None)
    event = head.after
    while certain & ~done:
        if event is not None and event.is_call:
            one = history[event.number]
            after = step(state, one.asked, one.answer)
            place = done | 1 << event.number
            if after is not None and (place, after) not in seen:
                seen.add((place, after))
                undo.append((event, state))
                state, done = after, place
                event.lift()
                event = head.after
            else:
                event = event.after
            continue
        # The return of an operation that was not ordered yet, or the end of the list: go back.
        if not undo:
            return False
        event, state = undo.pop()
        done &= ~(1 << event.number)
        event.unlift()
        event = event.after
    return True


def _events(history: Sequence[Operation]) -> _Event:
    """The calls and returns in the order of their times; at the same time, calls come first."""
    timed: list[tuple[int, int, _Event]] = []
    for number, one in enumerate(history):
        call = _Event(number, True)
        timed.append((one.called_ns, 0, call))
        if one.returned_ns is not None:
            call.match = _Event(number, False)
            timed.append((one.returned_ns, 1, call.match))
    head = last = _Event(-1, False)
    for _, _, event in sorted(timed, key=lambda one: one[:2]):
        last.after, event.before = event, last
        last = event
    return head


# A model: a stream with conditions.


class StreamState(NamedTuple):
    """What conditions depend on."""

    length: int = 0
    versions: tuple[tuple[bytes, int], ...] = ()
    """The last offset of each key, in the order of the keys."""


class Asked(NamedTuple):
    """A write of messages under these keys."""

    keys: tuple[bytes, ...]
    expect_offset: int | None = None
    expect_key_versions: tuple[tuple[bytes, int], ...] = ()


class Answered(NamedTuple):
    """The offset of the first message; or of the conflict."""

    written: bool
    offset: int


def step_of_stream(state: StreamState, asked: Asked, answer: Answered | None) -> StreamState | None:
    """The model of a stream that is tracked from its first message on."""
    versions = dict(state.versions)
    conflict: int | None = None
    if asked.expect_offset is not None and asked.expect_offset != state.length:
        conflict = state.length
    for key, version in asked.expect_key_versions:
        if conflict is None and versions.get(key, -1) != version:
            conflict = versions.get(key, -1)
    if answer is not None and answer.written is (conflict is not None):
        return None
    if answer is not None and answer.offset != (state.length if conflict is None else conflict):
        return None
    if conflict is not None:
        return None if answer is None else state
    for number, key in enumerate(asked.keys):
        versions[key] = state.length + number
    return StreamState(state.length + len(asked.keys), tuple(sorted(versions.items())))
