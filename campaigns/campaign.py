"""What a campaign is: a list of pieces, each worth some seconds to minutes, done in any process and any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Report:
    done: dict[str, int] = field(default_factory=dict)
    """Numbers, which are added up."""
    findings: list[str] = field(default_factory=list)
    """Lines of text; none is good."""
    times_s: dict[str, list[float]] = field(default_factory=dict)
    """What took how long, in seconds; their distribution is told."""


@dataclass(frozen=True)
class Campaign:
    name: str
    about: str
    pieces: Callable[[bool], list[str]]
    """The names of all pieces; of a quick slice if asked."""
    run: Callable[[str], Report]
    loads: str = ""
    """A statement that loads all code that it runs. None is needed if it starts nodes: they run anything."""
