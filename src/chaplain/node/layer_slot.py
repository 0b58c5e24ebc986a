"""A layer inside a node: its step function, and the routes of its effects."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, final


class _Destination(Enum):
    HOST = "host"


TO_HOST: Final = _Destination.HOST
"""The route of effects that the host performs."""


@final
class LayerSlot:
    """A layer, and the route of each type of its effects.

    A layer changes only in its steps. So the node computes its deadline once after each step, and sends it `Drained`
    only if it had a step in the round.
    """

    __slots__ = ("at_once", "deadline", "deadline_known", "due_ns", "follows_journal", "routes", "step", "stepped")

    def __init__(
        self,
        step: Callable[[int, Any], list[Any]],
        deadline: Callable[[], int | None],
        *,
        follows_journal: bool = False,
        at_once: bool = False,
    ) -> None:
        self.step = step
        self.follows_journal = follows_journal
        """The layer reads what the journal has agreed. So it also gets `Drained` when the journal had a step."""
        self.at_once = at_once
        """True for the lower layers, through which each message passes. If no other input waits, such a layer is
        stepped as soon as it gets an input, before the next effect of the sending layer.
        """
        self.routes: dict[type, Route] = {}
        """By type of effect: the layer that gets it, `TO_HOST`, or the function that delivers it."""
        self.stepped = True
        """True if the layer had a step since its last `Drained`."""
        self.deadline_known = False
        """`due_ns` is its current deadline, so the node need not compute it."""
        self.deadline = deadline
        self.due_ns: int | None = None
        """Its deadline, if `deadline_known`."""

    def route(self, route: Route, *kinds: type) -> None:
        """Deliver effects of these types on this route."""
        self.routes.update(dict.fromkeys(kinds, route))


Route: TypeAlias = LayerSlot | Literal[_Destination.HOST] | Callable[[Any], None]
