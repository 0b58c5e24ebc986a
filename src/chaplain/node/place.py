"""A layer's place in a node: how to step it, and where each of its effects goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Place(NamedTuple):
    """A layer, and where each of its effects goes."""

    step: Callable[[int, Any], list[Any]]
    deadline: Callable[[], int | None]
    routes: dict[type, Callable[[Any], None]]

    def send(self, hand: Callable[[Any], None], *kinds: type) -> None:
        self.routes.update(dict.fromkeys(kinds, hand))
