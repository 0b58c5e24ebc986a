"""A layer inside a node: its step function, and the routes of its effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LayerSlot:
    """A layer, and the route of each type of its effects.

    A layer changes only in its steps. So the node computes its deadline once after each step, and sends it `Drained`
    only if it had a step in the round.
    """

    __slots__ = ("_deadline", "deadline_known", "due_ns", "follows_journal", "routes", "step", "stepped")

    def __init__(
        self,
        step: Callable[[int, Any], list[Any]],
        deadline: Callable[[], int | None],
        *,
        follows_journal: bool = False,
    ) -> None:
        self.step = step
        self.follows_journal = follows_journal
        """The layer reads what the journal has agreed. So it also gets `Drained` when the journal had a step."""
        self.routes: dict[type, Callable[[Any], None]] = {}
        """By type of effect: the function that delivers it."""
        self.stepped = True
        """True if the layer had a step since its last `Drained`."""
        self.deadline_known = False
        """`due_ns` is its current deadline."""
        self._deadline = deadline
        self.due_ns: int | None = None
        """Its deadline, if `deadline_known`."""

    def route(self, deliver: Callable[[Any], None], *kinds: type) -> None:
        """Deliver effects of these types with this function."""
        self.routes.update(dict.fromkeys(kinds, deliver))

    def deadline(self) -> int | None:
        if not self.deadline_known:
            self.due_ns = self._deadline()
            self.deadline_known = True
        return self.due_ns
