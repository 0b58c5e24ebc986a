"""A layer's place in a node: how to step it, and where each of its effects goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LayerSlot:
    """A layer, and where each of its effects goes.

    Nothing changes in a layer that is not stepped. So its deadline is asked for once after each step, and a round in
    which it had no step does not end for it.
    """

    __slots__ = ("_deadline", "due_ns", "follows", "routes", "step", "stirred", "timed")

    def __init__(
        self, step: Callable[[int, Any], list[Any]], deadline: Callable[[], int | None], *, follows: bool = False
    ) -> None:
        self.step = step
        self.follows = follows
        """It looks at what the journal has agreed: a round in which the journal had a step ends for it, too."""
        self.routes: dict[type, Callable[[Any], None]] = {}
        self.stirred = True
        """It had a step since a round last ended for it."""
        self.timed = False
        """Its deadline is known."""
        self._deadline = deadline
        self.due_ns: int | None = None
        """Its deadline, while it is known."""

    def send(self, hand: Callable[[Any], None], *kinds: type) -> None:
        self.routes.update(dict.fromkeys(kinds, hand))

    def deadline(self) -> int | None:
        if not self.timed:
            self.due_ns = self._deadline()
            self.timed = True
        return self.due_ns
